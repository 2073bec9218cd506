"""The HTTP agent protocol, spoken to an outside agent: one POST per step, one answer, and nothing tried twice.

A step carries what the user said or the results of the calls of the answer before, never both. The agent answers with a
reply or with calls to run; the loop runs them. Whatever else comes is a ModelError that says what was wrong: a status
other than 2xx with its body, a body that is not JSON, too long or of another form, a redirect, silence. The address is
judged at each step, and the connection goes to what was judged.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from kit.addresses import AddressRefused, AddressUnresolved, PrivateHosts, checked_url, split_url
from kit.http_engine import HttpEngine
from kit.pinned import Pinned, as_judged
from services.worker.runner.models.base import ModelError, ModelErrorKind, ToolCall, ToolDefinition

MOST_ANSWER_BYTES = 4 * 1024 * 1024
MOST_CALLS = 256
# What of a body that is no answer is shown.
MOST_SHOWN_CHARACTERS = 1000
MOST_NAME_CHARACTERS = 256
# JSON that is nested deeper can't be written to a log.
MOST_LEVELS = 100
CONNECT_SECONDS = 10.0
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    # What is packed could unpack to anything.
    "Accept-Encoding": "identity",
    "User-Agent": "managed-agents",
}


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of one call: its result where it succeeded, else what went wrong."""

    id: str
    ok: bool
    value: Any


@dataclass(frozen=True, slots=True)
class Step:
    """One request. It has either a message or results; a repeat of it is the same to the last byte."""

    number: int
    session_id: str
    system: str
    tools: Sequence[ToolDefinition]
    message: str | None = None
    results: Sequence[StepResult] | None = None

    @property
    def key(self) -> str:
        """By which an agent can tell a repeat from a new step."""
        return f"{self.session_id}:{self.number}"

    def body(self) -> bytes:
        """The request, and the step's number, which is a field of ours."""
        fields: dict[str, Any] = {
            "session_id": self.session_id,
            "step": self.number,
            "system": self.system,
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
                for tool in self.tools
            ],
        }
        if self.results is None:
            fields["message"] = self.message or ""
        else:
            fields["tool_results"] = [
                {"id": each.id, "ok": each.ok, "result" if each.ok else "error": each.value} for each in self.results
            ]
        return orjson.dumps(fields)


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """What the agent answered: a reply, which ends its turn, or calls."""

    reply: str | None = None
    calls: tuple[ToolCall, ...] = ()


class NotPosted(ModelError):
    """The step did not reach the agent, so that making it later is no repeat."""


class HttpAgent:
    """One outside agent."""

    def __init__(self, engine: HttpEngine, private: PrivateHosts, tls: ssl.SSLContext | None = None) -> None:
        self._engine = engine
        self._private = private
        self._tls = tls
        host, self.port, scheme = split_url(engine.url)
        self.host = host
        self.name = f"The agent at {scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def post(self, step: Step, headers: Mapping[str, str]) -> StepAnswer:
        """Make one step. Raises ModelError."""
        try:
            async with asyncio.timeout(self._engine.timeout_seconds):
                raw = await self._post(step.body(), {**_HEADERS, **headers, "Idempotency-Key": step.key})
        except aiohttp.ClientConnectorError as error:
            raise self._not_posted(_reason(error)) from error
        except aiohttp.ClientError as error:
            raise self.failed(ModelErrorKind.CONNECTION, _reason(error)) from error
        except TimeoutError:
            seconds = self._engine.timeout_seconds
            raise self.failed(ModelErrorKind.TIMEOUT, f"did not answer within {seconds} seconds") from None
        except (AddressRefused, AddressUnresolved) as refused:
            raise self._not_posted(f"can't be reached: {refused.message.rstrip('.')}") from None
        except (ssl.SSLError, OSError) as error:
            raise self.failed(ModelErrorKind.CONNECTION, _reason(error)) from error
        return self.read(raw)

    def read(self, raw: bytes) -> StepAnswer:
        """What the body of a 2xx says. Raises ModelError where that is no answer."""
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise self._unusable(f"answered with a body that is not JSON: {_shown(raw)}") from None
        if not isinstance(body, dict):
            raise self._unusable("answered with JSON that is not an object")
        reply, calls = body.get("reply"), body.get("tool_calls")
        if reply is not None:
            if not isinstance(reply, str):
                raise self._unusable("answered with a reply that is not a string")
            return StepAnswer(reply)
        if calls is None or calls == []:
            raise self._unusable("answered with neither reply nor tool_calls")
        if not isinstance(calls, list) or len(calls) > MOST_CALLS:
            raise self._unusable(f"answered with tool_calls that are not an array of at most {MOST_CALLS} calls")
        read = tuple(self._call(index, call) for index, call in enumerate(calls))
        if len({call.id for call in read}) < len(read):
            raise self._unusable("answered with tool_calls of which two have the same id")
        return StepAnswer(calls=read)

    def failed(self, kind: ModelErrorKind, what: str, status: int | None = None) -> ModelError:
        """An error about this agent, for people. A step is not made again by itself."""
        return ModelError(kind, f"{self.name} {what}.", status=status, retryable=False)

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        target = await checked_url(self._engine.url, allowed=self._private)
        address = as_judged(self._engine.url, target)
        connector = aiohttp.TCPConnector(
            resolver=Pinned(target.addresses), use_dns_cache=False, force_close=True, ssl=self._tls or True
        )
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            ) as session,
            # A redirect would carry the headers to wherever it points.
            session.post(address, data=body, headers=headers, allow_redirects=False) as response,
        ):
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise self._unusable("answered with a packed body, although it was asked not to")
            return await self._read_body(response)

    async def _read_body(self, response: aiohttp.ClientResponse) -> bytes:
        pieces, size = list[bytes](), 0
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > MOST_ANSWER_BYTES:
                raise self._unusable(f"answered with more than {MOST_ANSWER_BYTES} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    async def _refusal(self, response: aiohttp.ClientResponse) -> ModelError:
        raw = bytearray()
        # Enough to show, whatever the size of its characters.
        while len(raw) <= 4 * MOST_SHOWN_CHARACTERS and (piece := await response.content.readany()):
            raw += piece
        told = f"answered with status {response.status}"
        if 300 <= response.status < 400:
            told += ", and redirects are not followed"
        return self.failed(ModelErrorKind.SERVER, f"{told}: {_shown(bytes(raw))}", response.status)

    def _call(self, index: int, call: Any) -> ToolCall:
        where = f"answered with tool_calls of which number {index + 1}"
        if not isinstance(call, dict):
            raise self._unusable(f"{where} is not an object")
        for name in ("id", "name"):
            value = call.get(name)
            if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MOST_NAME_CHARACTERS:
                raise self._unusable(f"{where} has no {name} of 1 to {MOST_NAME_CHARACTERS} printable characters")
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            raise self._unusable(f"{where} has arguments that are not an object")
        if _levels(arguments) > MOST_LEVELS:
            raise self._unusable(f"{where} has arguments that are nested more than {MOST_LEVELS} levels deep")
        return ToolCall(call["id"], call["name"], arguments)

    def _not_posted(self, why: str) -> NotPosted:
        return NotPosted(ModelErrorKind.CONNECTION, f"{self.name} {why}.", retryable=False)

    def _unusable(self, what: str) -> ModelError:
        return self.failed(ModelErrorKind.INVALID_REQUEST, what)


def _levels(value: Any) -> int:
    """How deep a JSON value is nested, without recursion."""
    levels, here = 0, [value]
    while here:
        levels += 1
        inner: list[Any] = []
        for each in here:
            members = each.values() if isinstance(each, dict) else each
            inner += [member for member in members if isinstance(member, dict | list)]
        here = inner
    return levels


def _shown(raw: bytes) -> str:
    """A body as people read it: bounded, and in one line."""
    text = raw[: 4 * MOST_SHOWN_CHARACTERS].decode("utf-8", "replace")
    plain = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    if len(plain) > MOST_SHOWN_CHARACTERS or len(raw) > 4 * MOST_SHOWN_CHARACTERS:
        return f"{plain[:MOST_SHOWN_CHARACTERS]} … (cut off)"
    return plain or "(an empty body)"


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError | ssl.SSLError):
        return "can't be reached: its certificate or encryption is not accepted"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "can't be reached: it took too long to connect"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"can't be reached: {error.strerror or 'the connection failed'}"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | OSError):
        return "broke the connection off before it had answered"
    return "answered with what is no HTTP"
