"""Agents over real sockets: the example ones as processes, and one that behaves as badly as a test asks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "rehearsals"

# What a badly behaved agent does with its connection, once it has read a request.
Behaviour = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def example_agent(domain: str, name: str) -> Iterator[str]:
    """The URL of a running example agent."""
    command = [sys.executable, str(EXAMPLES / domain / f"{name}.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline().decode()
            assert line.startswith("Listening on http://"), line
            yield line.split()[2].rstrip(".")
        finally:
            process.kill()


@dataclass
class Served:
    """An agent of a test: where it listens, and the requests (head and body) that it got."""

    url: str
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)


@asynccontextmanager
async def agent_that(behaves: Behaviour) -> AsyncIterator[Served]:
    served = Served("")
    conversations: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        conversations.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [line for line in head.lower().splitlines() if line.startswith("content-length:")]
                # A request without a body asks for something; only steps bring one.
                body = orjson.loads(await reader.readexactly(int(lengths[0].split(":")[1]))) if lengths else {}
                served.heads.append(head)
                served.bodies.append(body)
                await behaves(body, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            conversations.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/step"
        try:
            yield served
        finally:
            for task in list(conversations):
                task.cancel()
            await asyncio.gather(*conversations)


async def answer(writer: asyncio.StreamWriter, body: bytes, status: str = "200 OK", *headers: str) -> None:
    """One whole HTTP answer."""
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *headers]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
