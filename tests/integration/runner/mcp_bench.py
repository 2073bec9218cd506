"""A session's servers under test: with a played vault, and addresses of loopback allowed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kit.addresses import NO_PRIVATE_HOSTS, PrivateHosts
from kit.errors import FailedPrecondition
from managed_agents.vault.v1.injections_pb2 import (
    INJECTION_TARGET_KIND_PROCESS,
    Injection,
    RefreshInjectionRequest,
    RefreshInjectionResponse,
    ResolveInjectionsRequest,
    ResolveInjectionsResponse,
)
from services.worker.runner.mcp.credentials import Credentials, Owner
from services.worker.runner.mcp.reach import Reach
from services.worker.runner.mcp.session import Limits, SessionServers
from services.worker.runner.mcp.spec import Server

LOOPBACK = PrivateHosts.parse("127.0.0.1")
UNRESTRICTED: Mapping[str, Any] = {"network": {"type": "unrestricted"}}


class RefreshFailed(FailedPrecondition):
    """As the vault says it."""

    reason = "CREDENTIAL_REFRESH_FAILED"


@dataclass
class Vault:
    """Holds one token for each URL, and variables for processes. `renewals` are the tokens that refreshes bring."""

    tokens: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    renewals: list[str] = field(default_factory=list)
    version: int = 1
    resolved: int = 0
    refreshed: int = 0

    async def ResolveInjections(self, request: ResolveInjectionsRequest, *_: Any, **__: Any) -> Any:
        """What there is for the target."""
        self.resolved += 1
        if request.target == INJECTION_TARGET_KIND_PROCESS:
            found = [Injection(credential_id="vcrd_v", name=name, value=value) for name, value in self.variables.items()]
            return ResolveInjectionsResponse(injections=found)
        token = self.tokens.get(request.url)
        return ResolveInjectionsResponse(injections=[self._injection(token)] if token else [])

    async def RefreshInjection(self, request: RefreshInjectionRequest, *_: Any, **__: Any) -> Any:
        """The next renewal, once for each version; FAILED_PRECONDITION where there is none."""
        if request.secret_version == self.version:
            if not self.renewals:
                raise RefreshFailed("There is nothing to refresh with.")
            self.refreshed += 1
            self.version += 1
            renewed = self.renewals.pop(0)
            self.tokens = dict.fromkeys(self.tokens, renewed)
        return RefreshInjectionResponse(injection=self._injection(next(iter(self.tokens.values()))))

    def _injection(self, token: str) -> Injection:
        return Injection(
            credential_id="vcrd_1", vault_id="vlt_1", type="mcp_oauth", value=token, secret_version=self.version
        )


@asynccontextmanager
async def session_servers(
    *servers: Server,
    vault: Vault | None = None,
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


__all__ = ["LOOPBACK", "NO_PRIVATE_HOSTS", "Vault", "session_servers"]
