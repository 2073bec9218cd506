"""A real authorization server with an MCP server behind it, on a loopback port, for tests of renewals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class AuthorizationServer:
    """Trades refresh tokens for access tokens, each once, and serves an MCP endpoint that takes the newest of them.

    `refuse` is a status and body to answer renewals with, `hold` keeps them waiting, `redirect` sends them elsewhere.
    """

    url: str = ""
    expires_in: int | None = 3600
    refresh_token: str = "refresh-token-number-0"
    access_token: str = "access-token-number-0"
    rotates: bool = True
    refuse: tuple[int, str] | None = None
    redirect: str = ""
    mcp_status: int = 0
    mcp_body: str = ""
    as_events: bool = False
    hold: asyncio.Event | None = None
    renewals: list[dict[str, Any]] = field(default_factory=list)
    mcp_calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def token_endpoint(self) -> str:
        return f"{self.url}/token"

    @property
    def mcp_url(self) -> str:
        return f"{self.url}/mcp"

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    async def token(self, request: web.Request) -> web.Response:
        form = dict(await request.post())
        self.renewals.append({"form": form, "authorization": request.headers.get("authorization", "")})
        if self.hold is not None:
            await self.hold.wait()
        if self.redirect:
            return web.Response(status=307, headers={"location": self.redirect})
        if self.refuse is not None:
            return web.Response(status=self.refuse[0], text=self.refuse[1], content_type="application/json")
        if form.get("refresh_token") != self.refresh_token:
            return web.json_response({"error": "invalid_grant"}, status=400)
        number = len(self.renewals)
        self.access_token = f"access-token-number-{number}"
        answer: dict[str, Any] = {"access_token": self.access_token, "token_type": "Bearer"}
        if self.expires_in is not None:
            answer["expires_in"] = self.expires_in
        if self.rotates:
            self.refresh_token = answer["refresh_token"] = f"refresh-token-number-{number}"
        return web.json_response(answer)

    async def mcp(self, request: web.Request) -> web.StreamResponse:
        message = await request.json()
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.mcp_calls.append((message["method"], given))
        if self.mcp_status:
            return web.Response(status=self.mcp_status, text=self.mcp_body)
        if given != self.access_token:
            return web.Response(status=401, text=f"unknown token {given}", content_type="text/plain")
        if message["method"] != "initialize" and request.headers.get("mcp-session-id") != "the-session":
            return web.Response(status=400, text="no session")
        if "id" not in message:
            return web.Response(status=202)
        result = {"jsonrpc": "2.0", "id": message["id"], "result": {}}
        if self.as_events:
            events = web.StreamResponse(headers={"content-type": "text/event-stream", "mcp-session-id": "the-session"})
            await events.prepare(request)
            await events.write(f"event: message\ndata: {web.json_response(result).text}\n\n".encode())
            await asyncio.Event().wait()
        return web.json_response(result, headers={"mcp-session-id": "the-session"})


@asynccontextmanager
async def authorization_server(**behaviour: Any) -> AsyncIterator[AuthorizationServer]:
    """One that listens."""
    server = AuthorizationServer(**behaviour)
    app = web.Application()
    app.router.add_post("/token", server.token)
    app.router.add_post("/mcp", server.mcp)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
