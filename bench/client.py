"""The client side: plain requests over aiohttp, and event streams that only note what came when."""

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import aiohttp
import orjson

_TOOLS = [
    {
        "type": "agent_toolset_20260401",
        "configs": [{"name": "bash", "enabled": True, "permission_policy": {"type": "always_allow"}}],
    }
]
_IDLE = b"event: session.status_idle\n"
# A stored event with its time; the server never splits one over two chunks of the body.
_EVENT = re.compile(rb'id: (\d+)\nevent: [\w.]+\ndata: [^\n]*?"processed_at":"([^"]+)"')


class Client:
    """Speaks to one platform."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._base = f"http://127.0.0.1:{port}"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=128))

    async def close(self) -> None:
        await self._session.close()

    async def get(self, path: str) -> bytes:
        async with self._session.get(self._base + path) as answer:
            return await _body(answer)

    async def post(self, path: str, document: Any) -> Any:
        headers = {"content-type": "application/json"}
        async with self._session.post(self._base + path, data=orjson.dumps(document), headers=headers) as answer:
            return orjson.loads(await _body(answer))

    async def upload(self, content: bytes, name: str) -> str:
        form = aiohttp.FormData()
        form.add_field("file", content, filename=name, content_type="application/octet-stream")
        async with self._session.post(f"{self._base}/v1/files", data=form) as answer:
            return orjson.loads(await _body(answer))["id"]

    async def agent(self, name: str = "bench") -> str:
        document = {"name": name, "model": "bench", "system": "You are measured.", "tools": _TOOLS}
        return (await self.post("/v1/agents", document))["id"]

    async def session(self, agent: str, environment: str = "env_default") -> str:
        document = {"agent": agent, "title": "bench", "environment_id": environment}
        return (await self.post("/v1/sessions", document))["id"]

    async def say(self, session: str, text: str) -> None:
        event = {"type": "user.message", "content": [{"type": "text", "text": text}]}
        await self.post(f"/v1/sessions/{session}/events", {"events": [event]})

    async def interrupt(self, session: str, times: int = 1) -> None:
        """Events that an idle session stores and does nothing about."""
        await self.post(f"/v1/sessions/{session}/events", {"events": [{"type": "user.interrupt"}] * times})

    async def fill(self, session: str, events: int) -> None:
        for begun in range(0, events, 250):
            await self.interrupt(session, min(250, events - begun))

    async def listen(self, session: str, after: int | None = None, last: int = 0) -> "Listener":
        """An open stream; `last` is the seq whose arrival sets `reached`."""
        cursor = "" if after is None else f"last-event-id: {after}\r\n"
        request = f"GET /v1/sessions/{session}/events/stream HTTP/1.1\r\nhost: 127.0.0.1\r\n{cursor}\r\n".encode()
        loop = asyncio.get_running_loop()
        _, listener = await loop.create_connection(lambda: Listener(request, last), "127.0.0.1", self.port)
        await listener.until(lambda: listener.opened)
        return listener


class Listener(asyncio.Protocol):
    """One event stream. It keeps pieces with their times; parsing comes after the measurement."""

    def __init__(self, request: bytes, last: int) -> None:
        self._request = request
        self._last = b"id: %d\n" % last if last else b""
        self._rest = b""
        self._waiting: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.pieces: list[tuple[float, bytes]] = []
        self.opened = False
        self.reached = False
        self.idles = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.time(), data))
        if not self.opened and not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"A stream was refused: {data[:300]!r}")
        self.opened = True
        seen = self._rest + data
        self.idles += seen.count(_IDLE)
        self.reached = self.reached or (self._last != b"" and self._last in seen)
        self._rest = seen[-len(_IDLE) + 1 :]
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._waiting = asyncio.get_running_loop().create_future()
                await self._waiting

    def count(self) -> int:
        """How many stored events came."""
        return b"".join(data for _, data in self.pieces).count(b"\nevent: ")

    def delays(self) -> list[float]:
        """Seconds from an event's time to its arrival here, for each event that carries one."""
        ends, total = [], 0
        for _, data in self.pieces:
            total += len(data)
            ends.append(total)
        found, piece = [], 0
        for event in _EVENT.finditer(b"".join(data for _, data in self.pieces)):
            while ends[piece] < event.end():
                piece += 1
            written = datetime.fromisoformat(event[2].decode()).timestamp()
            found.append(max(0.0, self.pieces[piece][0] - written))
        return found

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    body = await answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"{answer.method} {answer.url.path} was answered {answer.status}: {body[:300]!r}")
    return body


async def work(times: int, at_once: int, do: Callable[[int], Awaitable[Any]]) -> tuple[list[float], float]:
    """Do something so often, so many at a time: seconds of each, and of all together."""
    numbers, each = iter(range(times)), []

    async def worker() -> None:
        for number in numbers:
            began = time.perf_counter()
            await do(number)
            each.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    return each, time.perf_counter() - began


def percentile(values: list[float], share: float) -> float:
    """By nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share / 100 * len(ordered) + 0.5) - 1))]


def milliseconds(values: list[float], share: float) -> float:
    return percentile(values, share) * 1000
