"""A session's servers under test: with a played vault, and addresses of loopback allowed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from kit.addresses import NO_PRIVATE_HOSTS, PrivateHosts
from services.worker.runner.mcp.credentials import Credentials, Owner
from services.worker.runner.mcp.reach import Reach
from services.worker.runner.mcp.session import Limits, SessionServers
from services.worker.runner.mcp.spec import Server
from tests.integration.runner.played import PlayedInjections

LOOPBACK = PrivateHosts.parse("127.0.0.1")
UNRESTRICTED: Mapping[str, Any] = {"network": {"type": "unrestricted"}}


@asynccontextmanager
async def session_servers(
    *servers: Server,
    vault: PlayedInjections | None = None,
    environment: Mapping[str, Any] = UNRESTRICTED,
    private: PrivateHosts = LOOPBACK,
    host: Any = None,
    connect_seconds: float = 5.0,
    call_seconds: float = 5.0,
) -> AsyncIterator[SessionServers]:
    """The servers of one session, closed afterwards."""
    owner = Owner("wrkspc_default", "sess_1", ("vlt_1",) if vault is not None else ())
    made = SessionServers(Credentials(vault, owner, "runner_1"), Limits(connect_seconds, call_seconds))
    made.configure(servers, Reach.of(environment, private), lambda: host)
    try:
        yield made
    finally:
        await made.close()


__all__ = ["LOOPBACK", "NO_PRIVATE_HOSTS", "session_servers"]
