"""InjectionService: what a session may use where; only that is opened, and only for runners.

Everything is decided by what is not secret. What is refused is never decrypted: it is
answered as denied, audited once a minute for the same target, and counts as no use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kit.errors import InvalidArgument
from kit.postgres import Tx
from kit.rpc.server import current_context
from managed_agents.vault.v1 import injections_pb2 as pb
from managed_agents.vault.v1 import injections_pb2_grpc
from services.vault.domain import injection as rules
from services.vault.domain.credential import OAUTH, VARIABLE, Credential
from services.vault.domain.errors import InvalidField
from services.vault.domain.injection import Decision
from services.vault.domain.oauth import is_due
from services.vault.domain.vault import MAX_VAULTS_OF_SESSION
from services.vault.handlers.callers import require_runner
from services.vault.operations.parts import Parts
from services.vault.operations.refreshing import SUCCEEDED, Wanted, refused
from services.vault.store.audit import AuditStore
from services.vault.store.credentials import CredentialStore, not_found

DENIAL_GRAIN_SECONDS = 60.0
USE_GRAIN_SECONDS = 5.0
MAX_HOST_CHARACTERS = 253
PROCESS, MCP_SERVER, EGRESS = (
    pb.INJECTION_TARGET_KIND_PROCESS,
    pb.INJECTION_TARGET_KIND_MCP_SERVER,
    pb.INJECTION_TARGET_KIND_EGRESS,
)


class InjectionsHandler(injections_pb2_grpc.InjectionServiceServicer):
    """Resolves credentials of sessions."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._database, self._clock = parts.database, parts.clock

    async def ListInjections(self, request: Any, context: Any) -> pb.ListInjectionsResponse:
        """What there is for a session's processes, without any secret."""
        require_runner()
        found = rules.for_listing(await self._live(request.vault_ids))
        return pb.ListInjectionsResponse(injections=[_message(credential, "") for credential in found])

    async def ResolveInjections(self, request: Any, context: Any) -> pb.ResolveInjectionsResponse:
        """Opens what the target may get."""
        runner = require_runner()
        live = await self._live(request.vault_ids)
        if names := set(request.names):
            live = [credential for credential in live if credential.key in names]
        decision = _decide(live, request)
        granted = [await self._renewed(credential, runner, request.session_id) for credential in decision.granted]
        opened = await self._open_all(granted)
        await self._note(request, runner, decision, [injection.credential_id for injection in opened])
        return pb.ResolveInjectionsResponse(
            injections=opened,
            denied=[
                pb.DeniedInjection(
                    credential_id=denied.credential.id, vault_id=denied.credential.vault_id, reason=denied.why
                )
                for denied in decision.denied
            ],
        )

    async def RefreshInjection(self, request: Any, context: Any) -> pb.RefreshInjectionResponse:
        """The token to try again with, after one was refused."""
        runner, workspace_id = require_runner(), current_context().workspace_id
        credential = await self._load(request.vault_id, request.credential_id)
        if credential.secret_version <= request.secret_version:
            outcome = await self._parts.refresher.refresh(Wanted(workspace_id, credential, runner, request.session_id))
            if outcome.status != SUCCEEDED:
                raise refused(outcome)
            credential = await self._load(request.vault_id, request.credential_id)
        opened = await self._open_all([credential])
        if not opened:
            raise not_found(request.credential_id)
        await self._note(request, runner, Decision(), [request.credential_id])
        return pb.RefreshInjectionResponse(injection=opened[0])

    async def _live(self, vault_ids: Iterable[str]) -> list[Credential]:
        named = list(dict.fromkeys(vault_ids))
        if len(named) > MAX_VAULTS_OF_SESSION or any("\x00" in vault_id for vault_id in named):
            raise InvalidField(f"vault_ids must be at most {MAX_VAULTS_OF_SESSION} ids.", field="vault_ids")
        if not named:
            return []
        async with self._database.read(current_context().workspace_id) as tx:
            return await CredentialStore(tx).live_of(named)

    async def _load(self, vault_id: str, credential_id: str) -> Credential:
        async with self._database.read(current_context().workspace_id) as tx:
            found = await CredentialStore(tx).load(vault_id, credential_id)
        if found.archived_at is not None:
            raise not_found(credential_id)
        return found

    async def _renewed(self, credential: Credential, runner: str, session_id: str) -> Credential:
        """The credential, renewed first where its token is about to end; one that can't be renewed serves as it is."""
        refresher = self._parts.refresher
        if not (
            credential.type == OAUTH
            and is_due(credential.expires_at, self._clock.now())
            and refresher.can_refresh(credential)
        ):
            return credential
        outcome = await refresher.refresh(Wanted(current_context().workspace_id, credential, runner, session_id))
        if outcome.status != SUCCEEDED:
            return credential
        return await self._load(credential.vault_id, credential.id)

    async def _open_all(self, credentials: Iterable[Credential]) -> list[pb.Injection]:
        """Their secrets in the clear; what was archived meanwhile has none and is left out."""
        workspace_id = current_context().workspace_id
        sealed: list[tuple[Credential, tuple[bytes, int]]] = []
        async with self._database.read(workspace_id) as tx:
            for credential in credentials:
                found = await CredentialStore(tx).sealed(credential.id)
                if found is not None:
                    sealed.append((credential, found))
        return [
            _message(credential, (await self._parts.open(workspace_id, credential, value)).value, version)
            for credential, (value, version) in sealed
        ]

    async def _note(self, request: Any, runner: str, decision: Decision, used: list[str]) -> None:
        if not (used or decision.denied):
            return
        async with self._database.transaction(current_context().workspace_id) as tx:
            if used:
                await CredentialStore(tx).mark_used(used, self._clock.now(), grain_seconds=USE_GRAIN_SECONDS)
            if decision.denied:
                await self._note_denials(tx, request, runner, decision)

    async def _note_denials(self, tx: Tx, request: Any, runner: str, decision: Decision) -> None:
        told = {"target": pb.InjectionTargetKind.Name(request.target).rpartition("KIND_")[2].lower()}
        if request.host:
            told["host"] = request.host
        for denied in decision.denied:
            await AuditStore(tx).add_denial(
                denied.credential.vault_id,
                denied.credential.id,
                actor=runner,
                now=self._clock.now(),
                session_id=request.session_id,
                metadata={**told, "reason": denied.why},
                grain_seconds=DENIAL_GRAIN_SECONDS,
            )


def _decide(credentials: list[Credential], request: Any) -> Decision:
    if request.target == PROCESS:
        return rules.for_process(credentials)
    if request.target == MCP_SERVER:
        return rules.for_server(credentials, request.url)
    if request.target == EGRESS:
        host = request.host
        if len(host) > MAX_HOST_CHARACTERS or not host.isprintable():
            raise InvalidField("host must be the name of a host.", field="host")
        return rules.for_egress(credentials, host, request.port)
    raise InvalidArgument("target must say what the secret is wanted for.", field="target")


def _message(credential: Credential, value: str, version: int | None = None) -> pb.Injection:
    policy = credential.policy() if credential.type == VARIABLE else None
    return pb.Injection(
        credential_id=credential.id,
        vault_id=credential.vault_id,
        type=credential.type,
        name=credential.key if credential.type == VARIABLE else "",
        value=value,
        secret_version=credential.secret_version if version is None else version,
        in_headers=credential.in_header,
        in_body=credential.in_body,
        unrestricted=policy.unrestricted if policy else False,
        allowed_hosts=policy.allowed_hosts if policy else (),
    )
