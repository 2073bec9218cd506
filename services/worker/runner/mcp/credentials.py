"""Secrets for a session's servers, asked of the vault when they are needed and kept for as long as a connection.

A server by URL gets the bearer or OAuth token that is kept for exactly its URL. A process gets nothing here: of the
session's environment variables its sandbox tells it. A session without vaults asks nobody.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kit.errors import DomainError, FailedPrecondition
from kit.ids import new_id
from kit.rpc.context import CallContext
from kit.telemetry import log, register_secret
from managed_agents.vault.v1.injections_pb2 import (
    INJECTION_TARGET_KIND_MCP_SERVER,
    Injection,
    RefreshInjectionRequest,
    ResolveInjectionsRequest,
)
from services.worker.runner.mcp.errors import ServerFailed
from services.worker.runner.secrets import Scrubber, SessionSecrets

ASK_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose secrets they are: a session with its vaults, in their order."""

    workspace_id: str
    session_id: str
    vault_ids: tuple[str, ...]


class Credentials:
    """What the vault holds for the servers of one session.

    `scrubber` knows every value that was handed out, to servers and to the session's sandbox: what one of them got may
    turn up in what another says.
    """

    def __init__(self, vault: Any, owner: Owner, runner_id: str, session: SessionSecrets | None = None) -> None:
        """`vault` is the stub of InjectionService; `session` are the secrets of the session's sandbox."""
        self.owner = owner
        # Held, so that what was opened is known for as long as a server may repeat it.
        self._session = session
        self.scrubber = session.scrubber if session is not None else Scrubber()
        self._vault = vault
        self._runner_id = runner_id

    async def for_url(self, url: str) -> "Token":
        """The token of a server, which may be none. Raises ServerFailed where the vault can't be asked."""
        return Token(self, url, await self.resolve_url(url))

    async def resolve_url(self, url: str) -> Injection | None:
        """What the vault has for a URL now."""
        found = await self._resolve(target=INJECTION_TARGET_KIND_MCP_SERVER, url=url)
        return next((injection for injection in found if injection.value), None)

    async def refresh(self, used: Injection) -> Injection | None:
        """What to try instead of a token that was refused; None where the vault has nothing else."""
        request = RefreshInjectionRequest(
            session_id=self.owner.session_id,
            vault_id=used.vault_id,
            credential_id=used.credential_id,
            secret_version=used.secret_version,
        )
        try:
            answer = await self._vault.RefreshInjection(request, context=self._context(), timeout_seconds=ASK_SECONDS)
        except FailedPrecondition:
            return None
        except DomainError as failed:
            log.warning("a token could not be refreshed", session_id=self.owner.session_id, error=failed.reason)
            return None
        return self._known(answer.injection)

    async def _resolve(self, **target: Any) -> Sequence[Injection]:
        if not self.owner.vault_ids:
            return ()
        request = ResolveInjectionsRequest(session_id=self.owner.session_id, vault_ids=self.owner.vault_ids, **target)
        try:
            answer = await self._vault.ResolveInjections(
                request, context=self._context(), timeout_seconds=ASK_SECONDS, retry=True
            )
        except DomainError as failed:
            log.warning("the vault could not be asked", session_id=self.owner.session_id, error=failed.reason)
            raise ServerFailed("The vault can't be asked for the server's credential.") from failed
        return [self._known(injection) for injection in answer.injections]

    def _known(self, injection: Injection) -> Injection:
        register_secret(injection.value)
        self.scrubber.add({injection.value: injection.name or injection.credential_id})
        return injection

    def _context(self) -> CallContext:
        return CallContext(self.owner.workspace_id, new_id("req"), self._runner_id)


class Token:
    """The token of one server. Calls that are refused at the same time are renewed for once."""

    def __init__(self, credentials: Credentials, url: str, injection: Injection | None) -> None:
        self._credentials = credentials
        self._url = url
        self._injection = injection
        self._lock = asyncio.Lock()
        # A token that was refused, and for which the vault has no other.
        self._hopeless: str | None = None

    @property
    def token(self) -> str:
        """What is sent now; empty where nothing is."""
        return self._injection.value if self._injection is not None else ""

    async def renew(self, refused: str) -> bool:
        """The server refused this token; whether there is another one to try."""
        async with self._lock:
            if self.token != refused:
                return True
            if self._hopeless == refused or self._injection is None:
                return False
            found = await self._credentials.refresh(self._injection)
            if found is None:
                # What can't be refreshed may have been rotated since.
                try:
                    found = await self._credentials.resolve_url(self._url)
                except ServerFailed:
                    found = None
            if found is None or found.value == refused:
                self._hopeless = refused
                return False
            self._injection = found
            return True
