"""A web server on loopback whose every byte a test decides, and a fetcher that may reach it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from kit.addresses import AddressRefused, checked_address
from services.worker.runner.web.fetch import Fetcher, Limits
from services.worker.runner.web.pages import PageReader

Write = Callable[[bytes], Awaitable[None]]
Answer = Callable[[str, Write], Awaitable[None]]


@dataclass
class WebServer:
    """Answers by path; remembers what it was asked."""

    answers: dict[str, bytes | Answer] = field(default_factory=dict)
    port: int = 0
    requests: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    written: int = 0
    # What is being answered; an answer that never ends has to be ended with the test.
    open: set[asyncio.Task[None]] = field(default_factory=set)

    def page(self, path: str, body: bytes, content_type: str = "text/plain", *headers: str, status: int = 200) -> None:
        """Serve a body as it is."""
        lines = [f"HTTP/1.1 {status} X", f"content-type: {content_type}", f"content-length: {len(body)}", *headers]
        self.answers[path] = "\r\n".join([*lines, "", ""]).encode() + body

    def redirect(self, path: str, location: str, status: int = 302) -> None:
        """Serve a redirect."""
        self.answers[path] = f"HTTP/1.1 {status} X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""

        async def write(data: bytes) -> None:
            writer.write(data)
            self.written += len(data)
            await writer.drain()

        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            path = head[0].split(" ")[1]
            self.requests.append(path)
            self.hosts += [line.partition(":")[2].strip() for line in head if line.lower().startswith("host:")]
            answer = self.answers.get(path.partition("?")[0], b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n")
            await (write(answer) if isinstance(answer, bytes) else answer(path, write))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The other side has gone, or the test is over.
            pass
        finally:
            self.open.discard(task)
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def end(self) -> None:
        """Give up what is still being answered."""
        open_ones = list(self.open)
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)


@asynccontextmanager
async def web_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[WebServer]:
    """A server for one test."""
    server = WebServer()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await server.end()
        await listener.wait_closed()


@dataclass
class Names:
    """A resolver for tests: names stand for loopback, all else is judged as always."""

    here: set[str] = field(default_factory=lambda: {"web.example", "other.example"})
    asked: list[str] = field(default_factory=list)

    async def guard(self, host: str, port: int) -> list[str]:
        """The addresses of a host."""
        self.asked.append(host)
        if host in self.here:
            return ["127.0.0.1"]
        if host.endswith(".example"):
            raise AddressRefused(f"{host} leads to an address that may not be connected to.")
        return await checked_address(host, port)


@asynccontextmanager
async def fetcher(names: Names, tls: ssl.SSLContext | None = None, **limits: float) -> AsyncIterator[Fetcher]:
    """A fetcher with that resolver."""
    pages = PageReader()
    try:
        yield Fetcher(pages, guard=names.guard, tls=tls, limits=Limits(**limits))  # type: ignore[arg-type]
    finally:
        await pages.close()
