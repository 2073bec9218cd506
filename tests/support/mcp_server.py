"""A real MCP server over streamable HTTP on loopback, with a doorman in front of it that does what a test says."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import CallToolResult, ResourceLink, TextContent

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360000000000500010d0a2db40000000049454e44ae426082"
)


@dataclass
class Doorman:
    """What the server was sent, and how the next requests fare."""

    url: str = ""
    port: int = 0
    # Accepted as bearer; None lets everybody in.
    tokens: set[str] | None = None
    # Requests of these methods get no answer; of `*` none does.
    hang: set[str] = field(default_factory=set)
    # Methods that the server says it does not know.
    unknown: set[str] = field(default_factory=set)
    # These session ids are unknown from now on.
    forgotten: set[str] = field(default_factory=set)
    # Answered to everything, if set: status and headers.
    instead: tuple[int, dict[str, str]] | None = None
    seen: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    cancelled: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    server: MCPServer = field(default_factory=lambda: MCPServer("tested", log_level="CRITICAL"))

    def methods(self) -> list[str]:
        """The methods that arrived, in order."""
        return [entry["method"] for entry in self.seen if entry["method"]]

    def sessions(self) -> list[str]:
        """The session ids that arrived, each once."""
        return list(dict.fromkeys(entry["session"] for entry in self.seen if entry["session"]))


Receive = Callable[[], Awaitable[dict[str, Any]]]


class _Door:
    def __init__(self, doorman: Doorman, inner: Any) -> None:
        self._doorman = doorman
        self._inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Any) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        doorman = self._doorman
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        body, receive = await _read(scope, receive)
        method = body.get("method", "") if isinstance(body, dict) else ""
        session = headers.get("mcp-session-id", "")
        token = headers.get("authorization", "").removeprefix("Bearer ")
        doorman.seen.append(
            {"verb": scope["method"], "method": method, "session": session, "token": token, "host": headers["host"]}
        )
        if method == "notifications/cancelled":
            doorman.cancelled += 1
        if doorman.instead is not None:
            await _answer(send, *doorman.instead)
        elif doorman.tokens is not None and token not in doorman.tokens:
            await _answer(send, 401, {"www-authenticate": "Bearer"})
        elif method in doorman.unknown:
            error = {"code": -32601, "message": "Method not found"}
            await _answer(send, 200, {"content-type": "application/json"}, {"id": body["id"], "error": error})
        elif session in doorman.forgotten:
            await _answer(send, 404, {})
        elif method in doorman.hang or "*" in doorman.hang:
            await asyncio.Event().wait()
        else:
            await self._inner(scope, receive, send)


async def _read(scope: dict[str, Any], receive: Receive) -> tuple[Any, Receive]:
    if scope["method"] != "POST":
        return {}, receive
    first = await receive()
    data, more = first.get("body", b""), first.get("more_body", False)
    while more:
        message = await receive()
        data, more = data + message.get("body", b""), message.get("more_body", False)
    sent = False

    async def again() -> dict[str, Any]:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": data, "more_body": False}

    return json.loads(data or b"{}"), again


async def _answer(send: Any, status: int, headers: dict[str, str], message: dict[str, Any] | None = None) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode() if message else b""
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    encoded.append((b"content-length", str(len(data)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": data})


def _tools(doorman: Doorman) -> None:
    server = doorman.server

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        doorman.calls.append(("add", {"a": a, "b": b}))
        return a + b

    @server.tool()
    def fail(why: str) -> str:
        """Fails."""
        raise ValueError(why)

    @server.tool(structured_output=False)
    def picture() -> list[Any]:
        """Text and a picture."""
        return ["before", Image(data=PIXEL, format="png"), "after"]

    @server.tool()
    def point() -> CallToolResult:
        """A link to something."""
        link = ResourceLink(
            type="resource_link", name="report", uri="https://example.com/r.pdf", mime_type="text/plain"
        )
        return CallToolResult(content=[TextContent(type="text", text="see"), link], structured_content={"pages": 3})

    @server.tool()
    def flood(count: int) -> str:
        """Much text."""
        return "x" * count

    @server.tool()
    async def wait() -> str:
        """Waits at the gate."""
        doorman.calls.append(("wait", {}))
        await doorman.gate.wait()
        return "waited"

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Adds a tool named late."""

        def late() -> str:
            """A tool that came later."""
            return "late indeed"

        server.add_tool(late)
        await ctx.session.send_tool_list_changed()
        return "grown"


@asynccontextmanager
async def mcp_server(**options: Any) -> AsyncIterator[Doorman]:
    """Serve until the block is left."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    doorman = Doorman()
    _tools(doorman)
    app = doorman.server.streamable_http_app(**options)
    listener = socket.create_server(("127.0.0.1", 0))
    doorman.port = listener.getsockname()[1]
    doorman.url = f"http://127.0.0.1:{doorman.port}/mcp"
    config = uvicorn.Config(
        _Door(doorman, app), ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=1, lifespan="on"
    )
    server = uvicorn.Server(config)
    # Signals are the test run's own business.
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve([listener]))
    try:
        while not server.started:
            if task.done():
                task.result()
            await asyncio.sleep(0.01)
        yield doorman
    finally:
        doorman.gate.set()
        doorman.hang.clear()
        server.should_exit = server.force_exit = True
        await task
        listener.close()


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """A port that takes connections and never says anything; its address."""
    writers: list[asyncio.StreamWriter] = []

    async def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()
