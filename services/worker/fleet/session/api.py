"""The session protocol's calls, as the published client makes them."""

import base64
import binascii
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from kit.redaction import register_secret
from services.worker.fleet.errors import Unreachable
from services.worker.fleet.platform import Platform, segment

_BETA = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
_MEMORY = {"anthropic-version": "2023-06-01", "anthropic-beta": "agent-memory-2026-07-22"}
_SKILLS = {"anthropic-version": "2023-06-01"}
NO_HEARTBEAT = "NO_HEARTBEAT"
# The longest that a question for work may be held open in this protocol.
BLOCK_MS = 999
PAGE = 1_000
_LINE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Work:
    """An item that was handed out; its secret is in no text that is made of this."""

    id: str
    environment_id: str
    kind: str
    session_id: str
    token: str | None

    def __repr__(self) -> str:
        return f"Work({self.id})"


@dataclass(frozen=True, slots=True)
class Beat:
    """How the platform answered to a heartbeat."""

    last: str
    extended: bool
    state: str
    ttl_seconds: float


class WorkApi:
    """The work of one environment, under the worker's key."""

    def __init__(self, platform: Platform, environment_id: str, worker_id: str) -> None:
        self._platform = platform
        self._base = f"/v1/environments/{segment(environment_id)}/work"
        self._environment_id = environment_id
        self._worker_id = worker_id

    async def poll(self, wait_seconds: float) -> Work | None:
        """The next item, as soon as there is one."""
        query = {"block_ms": str(max(1, min(int(wait_seconds * 1000), BLOCK_MS)))} if wait_seconds else {}
        headers = _BETA | {"anthropic-worker-id": self._worker_id}
        answer = await self._platform.call("GET", f"{self._base}/poll", query=query, headers=headers)
        if not answer:
            return None
        if not isinstance(answer, Mapping) or not isinstance(answer.get("id"), str):
            raise Unreachable("the platform's answer to a poll is no work item")
        data = answer.get("data")
        data = data if isinstance(data, Mapping) else {}
        token = sessions_token(answer.get("secret"))
        register_secret(token)
        register_secret(answer.get("secret") if isinstance(answer.get("secret"), str) else None)
        environment_id = str(answer.get("environment_id") or self._environment_id)
        return Work(answer["id"], environment_id, str(data.get("type") or ""), str(data.get("id") or ""), token)

    async def ack(self, work: Work) -> None:
        """Take it off the queue."""
        await self._ask(work, "ack", {})

    async def heartbeat(self, work: Work, expected: str, seconds: float) -> Beat:
        """Keep the lease."""
        path = f"{self._base}/{segment(work.id)}/heartbeat"
        query = {"expected_last_heartbeat": expected}
        answer = await self._platform.call(
            "POST", path, {}, query=query, headers=_BETA, token=work.token, seconds=seconds
        )
        answer = answer if isinstance(answer, Mapping) else {}
        return Beat(
            str(answer.get("last_heartbeat") or ""),
            bool(answer.get("lease_extended")),
            str(answer.get("state") or ""),
            float(answer.get("ttl_seconds") or 0),
        )

    async def stop(self, work: Work) -> None:
        """Say that it is over."""
        await self._ask(work, "stop", {"force": True})

    async def _ask(self, work: Work, verb: str, body: dict[str, Any]) -> None:
        token = work.token if verb == "stop" else None
        await self._platform.call("POST", f"{self._base}/{segment(work.id)}/{verb}", body, headers=_BETA, token=token)


class SessionApi:
    """One session, its memory stores and skills, under the token of its item."""

    def __init__(self, platform: Platform, session_id: str, token: str | None) -> None:
        self._platform = platform
        self._token = token
        self._base = f"/v1/sessions/{segment(session_id)}"

    async def session(self) -> dict[str, Any]:
        """The session itself."""
        answer = await self._platform.call("GET", self._base, headers=_BETA, token=self._token)
        return dict(answer or {})

    async def history(self) -> AsyncIterator[dict[str, Any]]:
        """Every event up to now, to the last page."""
        query = {"limit": str(PAGE), "order": "asc"}
        while True:
            answer = await self._platform.call(
                "GET", f"{self._base}/events", query=query, headers=_BETA, token=self._token, seconds=60
            )
            for event in answer["data"]:
                yield event
            if not answer.get("next_page"):
                return
            query = query | {"page": answer["next_page"]}

    @asynccontextmanager
    async def stream(self, after: int) -> AsyncIterator[AsyncIterator[tuple[int, dict[str, Any]]]]:
        """The events after a seq, as they come, each with its seq."""
        headers = _BETA | {"last-event-id": str(after)}
        async with self._platform.stream(f"{self._base}/events/stream", headers=headers, token=self._token) as reader:
            yield _frames(reader)

    async def send_result(self, call_id: str, text: str, *, is_error: bool) -> None:
        """Answer a call. A repeat is the same answer."""
        event = {
            "type": "user.tool_result",
            "tool_use_id": call_id,
            "is_error": is_error,
            "content": [{"type": "text", "text": text}],
        }
        headers = _BETA | {"idempotency-key": f"worker-result-{call_id}"}
        await self._platform.call(
            "POST", f"{self._base}/events", {"events": [event]}, headers=headers, token=self._token, seconds=60
        )

    async def skill(self, skill_id: str, version: str) -> tuple[str, bytes]:
        """Name and package of a skill."""
        base = f"/v1/skills/{segment(skill_id)}/versions"
        found = await self._platform.call("GET", f"{base}/{segment(version)}", headers=_SKILLS, token=self._token)
        exact = segment(str(found["id"]))
        data = await self._platform.bytes(
            "GET", f"{base}/{exact}/content", headers=_SKILLS, token=self._token, seconds=120
        )
        return str(found.get("directory") or found.get("name") or skill_id), data

    async def memory(
        self,
        method: str,
        store_id: str,
        path: str = "",
        body: dict[str, Any] | None = None,
        query: dict[str, str] | None = None,
    ) -> Any:
        """A call on the memories of a store."""
        return await self._platform.call(
            method,
            f"/v1/memory_stores/{segment(store_id)}/memories{path}",
            body,
            query=query,
            headers=_MEMORY,
            token=self._token,
        )


def sessions_token(secret: Any) -> str | None:
    """What an item's secret holds for us; None where it holds nothing that can be used."""
    if not isinstance(secret, str) or not secret:
        return None
    try:
        payload = json.loads(base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4)))
    except (ValueError, binascii.Error):
        return None
    token = payload.get("sessions_token") if isinstance(payload, dict) else None
    return token if isinstance(token, str) and token and token.isascii() and token.isprintable() else None


async def _frames(reader: Any) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """The events of a stream. Lines are cut here, as the reader's own limit is far below that of an event."""
    rest, number, data = bytearray(), 0, []
    async for piece in reader.iter_any():
        rest += piece
        if len(rest) > _LINE_BYTES:
            raise Unreachable("the event stream has a line that is too long")
        *lines, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in (bytes(each).rstrip(b"\r") for each in lines):
            name, _, value = line.partition(b":")
            if not line and data:
                event = orjson.loads(b"\n".join(data))
                data = []
                if isinstance(event, dict):
                    yield number, event
            elif name == b"id" and value.strip().isdigit():
                number = int(value)
            elif name == b"data":
                data.append(value.removeprefix(b" "))
