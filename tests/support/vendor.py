"""A model vendor under a test's control: a real HTTP server on loopback with scripted answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """One scripted HTTP answer. `chunks` are sent one by one; `hang` keeps the connection open after them."""

    status: int = 200
    chunks: list[bytes] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False


def sse(*frames: dict[str, Any] | str, named: bool = False) -> list[bytes]:
    """Frames of a server-sent event stream, one chunk each; `named` adds the event line."""
    chunks = []
    for frame in frames:
        data = frame if isinstance(frame, str) else json.dumps(frame)
        name = f"event: {frame['type']}\n" if named and isinstance(frame, dict) else ""
        chunks.append(f"{name}data: {data}\n\n".encode())
    return chunks


def refusal(status: int, body: dict[str, Any], **headers: str) -> Answer:
    """An error answer with a JSON body."""
    return Answer(status, [json.dumps(body).encode()], {"content-type": "application/json", **headers})


@dataclass
class Vendor:
    """What the server was asked, and what it answers next; the last answer repeats."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    disconnects: int = 0
    plan: Callable[[dict[str, Any]], Answer] | None = None

    def next_answer(self, body: dict[str, Any]) -> Answer:
        """The scripted answer to a request."""
        if self.plan is not None:
            return self.plan(body)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def vendor(*answers: Answer) -> AsyncIterator[Vendor]:
    """Serves the answers in order on a free loopback port."""
    scripted = Vendor(answers=list(answers))
    open_writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        try:
            await _serve_one(scripted, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            scripted.disconnects += 1
        finally:
            open_writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        server.close()
        for writer in list(open_writers):
            writer.close()
        await server.wait_closed()


async def _serve_one(scripted: Vendor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    headers = {
        name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:]) if value
    }
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    body = json.loads(raw) if raw else {}
    scripted.requests.append(body)
    scripted.headers.append(headers)
    answer = scripted.next_answer(body)
    fields = {"content-type": "text/event-stream", "connection": "close", **answer.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"HTTP/1.1 {answer.status} Scripted\r\n{lines}\r\n".encode())
    for chunk in answer.chunks:
        writer.write(chunk)
        await writer.drain()
    if answer.hang:
        await reader.readexactly(1)
