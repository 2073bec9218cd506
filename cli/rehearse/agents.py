"""The agent on the other side: one POST per step, as the HTTP agent protocol has it.

Whatever isn't an answer by the protocol is a `RuntimeFailure` in words that show what came. A step has one time limit
over all of it; what an agent sends is read up to a bound. Nothing is ever sent twice.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2
import orjson

from cli.rehearse.world import Call

MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_CALLS_PER_ANSWER = 256
MAX_DEPTH = 64
_SHOWN_CHARACTERS = 2_000


class RuntimeFailure(Exception):
    """The agent did not answer as the protocol says; the trial ends."""


@dataclass(frozen=True)
class Reply:
    text: str


@dataclass(frozen=True)
class Calls:
    calls: Sequence[Call]


class Agent:
    """Where steps are posted to. Open it with `async with`.

    The platform takes a message that comes twice in a row for a request that was sent again, unless steps have names.
    Other agents get the protocol's own fields and the given headers, and no name.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float,
        connections: int = 4,
        names_steps: bool = False,
    ) -> None:
        self._url = url
        self._names_steps = names_steps
        self._turns: dict[str, int] = {}
        self._timeout_seconds = timeout_seconds
        limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
        # No proxy, no redirect, no password file: a step goes where it was told to go, and carries what it was given.
        self._client = httpx2.AsyncClient(
            headers={"content-type": "application/json", "accept": "application/json", **(headers or {})},
            timeout=None,
            limits=limits,
            trust_env=False,
            # A cookie that one trial was given must not turn up in another.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def __aenter__(self) -> "Agent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def step(self, body: Mapping[str, Any]) -> Reply | Calls:
        """Post one step. RuntimeFailure when no answer by the protocol comes in time."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                status, content = await self._post(orjson.dumps(body), self._name(body))
        except TimeoutError:
            raise RuntimeFailure(f"the agent gave no answer within {self._timeout_seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            told = str(error).rstrip(".") or type(error).__name__
            raise RuntimeFailure(f"the agent can't be reached or broke off: {told}") from None
        if not 200 <= status < 300:
            raise RuntimeFailure(f"the agent answered with status {status}: {_start(content)}")
        return read_answer(content)

    def _name(self, body: Mapping[str, Any]) -> dict[str, str]:
        if not self._names_steps or "message" not in body:
            return {}
        session = body["session_id"]
        self._turns[session] = self._turns.get(session, 0) + 1
        return {"idempotency-key": f"{session}/{self._turns[session]}"}

    async def _post(self, content: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        async with self._client.stream("POST", self._url, content=content, headers=headers) as answer:
            found = bytearray()
            async for piece in answer.aiter_bytes():
                found += piece
                if len(found) > MAX_ANSWER_BYTES:
                    raise RuntimeFailure(f"the agent's answer is larger than {MAX_ANSWER_BYTES:,} bytes")
            return answer.status_code, bytes(found)


def read_answer(content: bytes) -> Reply | Calls:
    """The answer of a step. A field that is null is not present; an empty list of calls is no list of calls."""
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise RuntimeFailure(f"the agent's answer is not JSON: {_start(content)}") from None
    if not _is_flat(answer):
        raise RuntimeFailure(f"the agent's answer is nested deeper than {MAX_DEPTH} levels: {_start(content)}")
    fields = answer if isinstance(answer, dict) else {}
    if (reply := fields.get("reply")) is not None:
        if not isinstance(reply, str):
            raise RuntimeFailure(f'"reply" of the agent\'s answer must be a text: {_start(content)}')
        return Reply(reply)
    if fields.get("tool_calls") in (None, []):
        raise RuntimeFailure(f"the agent's answer has neither reply nor tool_calls: {_start(content)}")
    return Calls(_calls(fields["tool_calls"], content))


def _is_flat(answer: Any) -> bool:
    """Whether everything that looks at the answer later can do so level by level."""
    level = [answer]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return True
    return False


def _calls(given: Any, content: bytes) -> list[Call]:
    if not isinstance(given, list):
        raise RuntimeFailure(f'"tool_calls" of the agent\'s answer must be a list: {_start(content)}')
    if len(given) > MAX_CALLS_PER_ANSWER:
        raise RuntimeFailure(f"the agent asked for {len(given)} calls at once; {MAX_CALLS_PER_ANSWER} are run")
    found = []
    for index, call in enumerate(given):
        fields = call if isinstance(call, dict) else {}
        for name, kind, told in (("id", str, "a text"), ("name", str, "a text"), ("arguments", dict, "an object")):
            if not isinstance(fields.get(name), kind):
                where = f'"tool_calls[{index}].{name}" of the agent\'s answer'
                raise RuntimeFailure(f"{where} must be {told}: {_start(content)}")
        found.append(Call(fields["id"], fields["name"], fields["arguments"]))
    return found


def _start(content: bytes) -> str:
    text = content[: 4 * _SHOWN_CHARACTERS].decode(errors="replace").strip()
    if not text:
        return "an empty body"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
