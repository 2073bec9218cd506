"""How a server is reached: over HTTP, or as a process in the session's sandbox.

Imported beside the event loop, when the first session needs a server: this module and what it loads take most of a
second. `warm` is what else is slow.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from ssl import SSLContext

import httpx2
from mcp.client.streamable_http import streamable_http_client

from services.worker.runner.mcp.connection import Connection, Opened
from services.worker.runner.mcp.http import MOST_ANSWER_BYTES, Bearer, BearerAuth, GuardedTransport
from services.worker.runner.mcp.reach import Reach
from services.worker.runner.mcp.stdio import over_stdio

__all__ = ["Connection", "over_http", "over_stdio", "warm"]

_FAREWELL_SECONDS = 2.0
_MOST_CONNECTIONS = 32


@lru_cache(maxsize=1)
def warm() -> SSLContext:
    """The certificates that are trusted; reading them takes its time."""
    return httpx2.create_ssl_context()


@asynccontextmanager
async def over_http(url: str, bearer: Bearer, reach: Reach, connect_seconds: float) -> AsyncIterator[Opened]:
    """A connection by streamable HTTP; the server's session is ended with it."""
    inner = httpx2.AsyncHTTPTransport(
        verify=warm(), trust_env=False, limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS)
    )
    transport = GuardedTransport(inner, allows=reach.allows, private=reach.private)
    client = httpx2.AsyncClient(
        transport=transport,
        auth=BearerAuth(bearer),
        headers={"accept-encoding": "identity", "user-agent": "managed-agents"},
        # How long an answer may take is each request's own matter.
        timeout=httpx2.Timeout(connect_seconds, read=None),
        trust_env=False,
    )
    async with client:
        try:
            async with streamable_http_client(
                url, http_client=client, terminate_on_close=False, max_sse_event_size=MOST_ANSWER_BYTES
            ) as (read, write):
                yield Opened(read, write, listening=lambda: transport.listening)
        finally:
            if transport.session_id:
                with suppress(httpx2.HTTPError, TimeoutError):
                    async with asyncio.timeout(_FAREWELL_SECONDS):
                        await client.delete(url, headers={"mcp-session-id": transport.session_id})
