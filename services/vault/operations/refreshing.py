"""Renewing OAuth tokens: one renewal of a credential at a time, over all processes.

Callers of one process share a task. Processes share a lease in the credential's row, which
is held while the token endpoint is asked and outlives a killed holder by its time only;
those that find it taken wait for what the holder stores. A renewal that began is finished
even if nobody waits for it any more, since the server has perhaps already replaced the
refresh token. Its result is stored if the refresh token that it spent is still the stored
one, so a client that brought new tokens meanwhile keeps them.

A failure is audited, told as an event when it is the first since a token came, and for some
seconds repeated to whoever asks again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from kit import failpoints
from kit.clock import Clock
from kit.errors import Aborted, DomainError, Unavailable
from kit.ids import new_id
from kit.postgres import Database
from kit.telemetry import log
from services.vault.domain import oauth
from services.vault.domain.credential import OAUTH, Credential, Secrets, hint, identity
from services.vault.domain.errors import CredentialRefreshFailed
from services.vault.domain.oauth import Refresh, Tokens, UnusableAnswer
from services.vault.domain.sealing import Sealer
from services.vault.operations.announcements import Announcements
from services.vault.operations.outward import REQUEST_SECONDS, Outward, Reply, Unreachable
from services.vault.store.audit import AuditStore
from services.vault.store.credentials import CredentialStore

# Longer than a request may take and its result needs to be stored.
LEASE_SECONDS = REQUEST_SECONDS + 4.0
STORE_SECONDS = 4.0
POLL_SECONDS = 0.05
# How long a failure answers for the token endpoint.
REST_SECONDS = 5.0

SUCCEEDED, FAILED, CONNECT_ERROR, NO_REFRESH_TOKEN = "succeeded", "failed", "connect_error", "no_refresh_token"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a renewal ended. `reply` is what the token endpoint answered where it refused."""

    status: str
    why: str = ""
    reply: Reply | None = None
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose token is to be renewed, from which version, and for whom."""

    workspace_id: str
    credential: Credential
    actor: str
    session_id: str = ""


class Refresher:
    """Renewals of one process."""

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        clock: Clock,
        outward: Outward,
        announcements: Announcements,
        *,
        enabled: bool = True,
    ) -> None:
        self.enabled = enabled
        self._database = database
        self._sealer = sealer
        self._clock = clock
        self._outward = outward
        self._announcements = announcements
        self._running: dict[tuple[str, str], asyncio.Task[Outcome]] = {}

    def can_refresh(self, credential: Credential) -> bool:
        """Whether there is something to renew it with."""
        return self.enabled and credential.type == OAUTH and credential.refresh is not None

    async def refresh(self, wanted: Wanted) -> Outcome:
        """Renews, or waits for whoever does. After SUCCEEDED the stored token is newer than the one that was wanted."""
        key = (wanted.workspace_id, wanted.credential.id)
        while True:
            task = self._running.get(key)
            if task is None:
                task = asyncio.create_task(self._renew(wanted), name=f"refresh {wanted.credential.id}")
                self._running[key] = task
                task.add_done_callback(lambda done: self._ended(key, done))
                return await asyncio.shield(task)
            outcome = await asyncio.shield(task)
            if outcome.status != SUCCEEDED or await self._is_past(wanted):
                return outcome

    async def close(self) -> None:
        """Lets renewals that are under way end: each is bounded."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _ended(self, key: tuple[str, str], done: asyncio.Task[Outcome]) -> None:
        self._running.pop(key, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning("a renewal broke off", resource_id=key[1], error=type(error).__name__)

    async def _is_past(self, wanted: Wanted) -> bool:
        async with self._database.read(wanted.workspace_id) as tx:
            state = await CredentialStore(tx).refresh_state(wanted.credential.id)
        return state is None or state.archived or state.secret_version > wanted.credential.secret_version

    async def _renew(self, wanted: Wanted) -> Outcome:
        if not self.can_refresh(wanted.credential):
            return Outcome(NO_REFRESH_TOKEN, "there is nothing to renew the token with")
        credential, holder = wanted.credential, new_id("hold")
        deadline = time.monotonic() + LEASE_SECONDS
        while time.monotonic() < deadline:
            async with self._database.read(wanted.workspace_id) as tx:
                state = await CredentialStore(tx).refresh_state(credential.id)
            if state is None or state.archived:
                return Outcome(FAILED, "the credential is gone")
            if state.secret_version > credential.secret_version:
                return Outcome(SUCCEEDED)
            if state.failed_at and (self._clock.now() - state.failed_at).total_seconds() < REST_SECONDS:
                return Outcome(FAILED, "an attempt failed a moment ago")
            if not state.is_held:
                async with self._database.statements(wanted.workspace_id) as tx:
                    taken = await CredentialStore(tx).take_refresh(
                        credential.id, holder, credential.secret_version, LEASE_SECONDS
                    )
                if taken:
                    return await self._ask(wanted, holder)
            await asyncio.sleep(POLL_SECONDS)
        return Outcome(CONNECT_ERROR, "another process did not finish the renewal")

    async def _ask(self, wanted: Wanted, holder: str) -> Outcome:
        """Under the lease: spend the refresh token, and store what comes for it."""
        credential = wanted.credential
        try:
            async with self._database.read(wanted.workspace_id) as tx:
                current = await CredentialStore(tx).load(credential.vault_id, credential.id)
                found = await CredentialStore(tx).sealed(credential.id)
            renewal = current.renewal()
            if found is None or renewal is None:
                await self._drop(wanted, holder)
                return Outcome(FAILED, "the credential is gone")
            secrets = Secrets.decode(await self._sealer.open(found[0], associated=_row(wanted)))
        except DomainError:
            await self._drop(wanted, holder)
            raise
        if secrets.refresh_token is None:
            await self._drop(wanted, holder)
            return Outcome(NO_REFRESH_TOKEN, "no refresh token is stored")
        return await self._trade(wanted, holder, renewal, secrets)

    async def _trade(self, wanted: Wanted, holder: str, renewal: Refresh, secrets: Secrets) -> Outcome:
        assert secrets.refresh_token is not None
        request = oauth.token_request(renewal, secrets.refresh_token, secrets.client_secret)
        await failpoints.point("vault.refresh.leased")
        try:
            reply = await self._outward.post(request.url, form=request.form, headers=request.headers)
        except Unreachable as unreachable:
            return await self._fail(wanted, holder, Outcome(CONNECT_ERROR, str(unreachable)))
        await failpoints.point("vault.refresh.answered")
        if reply.is_success:
            try:
                tokens = oauth.read_tokens(reply.body, self._clock.now())
            except UnusableAnswer as unusable:
                # Such an answer may hold half of what it should: its body is told to nobody.
                return await self._fail(wanted, holder, Outcome(FAILED, str(unusable)))
            return await self._store(wanted, secrets, tokens)
        why = oauth.error_word(reply.body) or f"status {reply.status}"
        return await self._fail(wanted, holder, Outcome(FAILED, why, reply, secrets.all()))

    async def _store(self, wanted: Wanted, spent: Secrets, tokens: Tokens) -> Outcome:
        deadline = time.monotonic() + STORE_SECONDS
        while True:
            try:
                return await self._store_once(wanted, spent, tokens)
            except (Unavailable, Aborted) as error:
                # The former refresh token may be worth nothing by now: try as long as the lease allows.
                if time.monotonic() > deadline:
                    log.error("a renewed token could not be stored", resource_id=wanted.credential.id)
                    raise
                log.warning("a renewed token is not stored yet", reason=error.reason)
                await asyncio.sleep(0.2)

    async def _store_once(self, wanted: Wanted, spent: Secrets, tokens: Tokens) -> Outcome:
        credential, now = wanted.credential, self._clock.now()
        async with self._database.transaction(wanted.workspace_id) as tx:
            store = CredentialStore(tx)
            current = await store.lock(credential.vault_id, credential.id)
            found = await store.sealed(credential.id)
            if current.archived_at is not None or found is None:
                return Outcome(FAILED, "the credential is gone")
            present = Secrets.decode(await self._sealer.open(found[0], associated=_row(wanted)))
            if present.refresh_token != spent.refresh_token:
                return Outcome(SUCCEEDED, "somebody else brought new tokens")
            changes = {"value": tokens.access_token}
            if tokens.refresh_token:
                changes["refresh_token"] = tokens.refresh_token
            renewed = present.with_changes(changes)
            sealed = await self._sealer.seal(renewed.encode(), associated=_row(wanted))
            await store.replace_secret(credential.id, sealed, hint(renewed.value), rotated_at=None, now=now)
            await store.set_expiry(credential.id, tokens.expires_at)
            await AuditStore(tx).add(
                "refreshed",
                credential.vault_id,
                credential.id,
                actor=wanted.actor,
                session_id=wanted.session_id,
                now=now,
                metadata={"refresh_token_rotated": tokens.refresh_token is not None},
            )
        return Outcome(SUCCEEDED)

    async def _fail(self, wanted: Wanted, holder: str, outcome: Outcome) -> Outcome:
        credential, now = wanted.credential, self._clock.now()
        async with self._database.transaction(wanted.workspace_id) as tx:
            is_first = await CredentialStore(tx).fail_refresh(credential.id, holder, now)
            if is_first is None:
                # Archived, or given new tokens, while the server was asked: nothing that anyone misses has failed.
                return outcome
            await AuditStore(tx).add(
                "refresh_failed",
                credential.vault_id,
                credential.id,
                actor=wanted.actor,
                session_id=wanted.session_id,
                now=now,
                metadata={"status": outcome.status, "why": outcome.why},
            )
            if is_first:
                await self._announcements.event(
                    tx, "vault_credential.refresh_failed", credential.id, now, vault_id=credential.vault_id
                )
        if is_first:
            self._announcements.sent()
        log.warning("a token could not be renewed", resource_id=credential.id, status=outcome.status)
        return outcome

    async def _drop(self, wanted: Wanted, holder: str) -> None:
        async with self._database.statements(wanted.workspace_id) as tx:
            await CredentialStore(tx).drop_refresh(wanted.credential.id, holder)


def refused(outcome: Outcome) -> CredentialRefreshFailed:
    """The refusal that a renewal without success is."""
    return CredentialRefreshFailed(f"The token could not be renewed: {outcome.why}.", status=outcome.status)


def _row(wanted: Wanted) -> str:
    credential = wanted.credential
    return identity(wanted.workspace_id, credential.vault_id, credential.id, credential.type, credential.key)
