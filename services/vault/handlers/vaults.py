"""VaultsService: vaults and what may be said of them; credentials are in `handlers.credentials`."""

from __future__ import annotations

from typing import Any

from kit.idempotency import once
from kit.ids import new_id
from kit.rpc.server import current_context
from managed_agents.vault.v1 import vaults_pb2 as pb
from managed_agents.vault.v1 import vaults_pb2_grpc
from services.vault.domain import fields
from services.vault.domain import vault as rules
from services.vault.domain.errors import InvalidField, VaultArchived, VaultUnknown
from services.vault.handlers.credentials import CredentialRpcs
from services.vault.handlers.edge import known_id, page_limit
from services.vault.handlers.messages import vault_message
from services.vault.operations.parts import Parts
from services.vault.store.audit import AuditStore
from services.vault.store.credentials import CredentialStore
from services.vault.store.paging import page_of, read_position
from services.vault.store.vaults import VaultStore, not_found


class VaultsHandler(CredentialRpcs, vaults_pb2_grpc.VaultsServiceServicer):
    """Serves vaults out of this service's database."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._parts = parts
        self._database, self._clock = parts.database, parts.clock

    async def CreateVault(self, request: Any, context: Any) -> pb.CreateVaultResponse:
        """Stores a vault."""
        content = rules.define(fields.body_of(request.definition_json))
        async with self._database.transaction(current_context().workspace_id) as tx:

            async def create() -> pb.CreateVaultResponse:
                now = self._clock.now()
                saved = await VaultStore(tx).insert(new_id("vlt"), content, now)
                await self._parts.announcements.event(tx, "vault.created", saved.id, now)
                return pb.CreateVaultResponse(vault=vault_message(saved))

            answer = await once(tx, self._parts.repeats.hidden(request.idempotency), pb.CreateVaultResponse, create)
        self._parts.announcements.sent()
        return answer

    async def GetVault(self, request: Any, context: Any) -> pb.GetVaultResponse:
        """Reads one that is not archived."""
        vault_id = known_id(request.vault_id, not_found)
        async with self._database.read(current_context().workspace_id) as tx:
            return pb.GetVaultResponse(vault=vault_message(await VaultStore(tx).live(vault_id)))

    async def UpdateVault(self, request: Any, context: Any) -> pb.UpdateVaultResponse:
        """Merges a partial definition."""
        vault_id = known_id(request.vault_id, not_found)
        body = fields.body_of(request.patch_json)
        async with self._database.transaction(current_context().workspace_id) as tx:
            store = VaultStore(tx)
            content = rules.patch(await store.lock_live(vault_id), body)
            return pb.UpdateVaultResponse(vault=vault_message(await store.save(vault_id, content, self._clock.now())))

    async def ListVaults(self, request: Any, context: Any) -> pb.ListVaultsResponse:
        """Pages newest first."""
        limit = page_limit(request.limit)
        scope = f"vaults?archived={request.include_archived}&order=desc"
        position = read_position(request.cursor, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            found = await VaultStore(tx).page(position, limit=limit + 1, include_archived=request.include_archived)
        page = page_of(found, position, limit, scope)
        return pb.ListVaultsResponse(
            vaults=[vault_message(vault) for vault in page.entries],
            next_cursor=page.next_cursor,
            previous_cursor=page.previous_cursor,
        )

    async def ArchiveVault(self, request: Any, context: Any) -> pb.ArchiveVaultResponse:
        """Ends a vault, and erases all its secrets."""
        caller, vault_id, now = current_context(), known_id(request.vault_id, not_found), self._clock.now()
        async with self._database.transaction(caller.workspace_id) as tx:
            store = VaultStore(tx)
            was_live = (await store.lock(vault_id)).archived_at is None
            archived = await store.archive(vault_id, now)
            for credential_id in await CredentialStore(tx).archive_all(vault_id, now):
                await AuditStore(tx).add("archived", vault_id, credential_id, actor=caller.principal_id, now=now)
                await self._parts.announcements.event(
                    tx, "vault_credential.archived", credential_id, now, vault_id=vault_id
                )
            if was_live:
                await self._parts.announcements.event(tx, "vault.archived", vault_id, now)
        self._parts.announcements.sent()
        await self._parts.announcements.rotated(caller.workspace_id, vault_id)
        return pb.ArchiveVaultResponse(vault=vault_message(archived))

    async def DeleteVault(self, request: Any, context: Any) -> pb.DeleteVaultResponse:
        """Removes a vault with all that is in it."""
        caller, vault_id = current_context(), known_id(request.vault_id, not_found)
        async with self._database.transaction(caller.workspace_id) as tx:
            await VaultStore(tx).delete(vault_id)
            await self._parts.announcements.event(tx, "vault.deleted", vault_id, self._clock.now())
        self._parts.announcements.sent()
        await self._parts.announcements.rotated(caller.workspace_id, vault_id)
        return pb.DeleteVaultResponse()

    async def CheckVaults(self, request: Any, context: Any) -> pb.CheckVaultsResponse:
        """Whether a session may name these vaults."""
        vault_ids = list(request.vault_ids)
        if len(vault_ids) > rules.MAX_VAULTS_OF_SESSION:
            raise InvalidField(f"vault_ids must hold at most {rules.MAX_VAULTS_OF_SESSION} vaults.", field="vault_ids")
        async with self._database.read(current_context().workspace_id) as tx:
            store, known = VaultStore(tx), [vault_id for vault_id in vault_ids if "\x00" not in vault_id]
            states, with_variables = await store.states(known), await store.with_variables(known)
        for number, vault_id in enumerate(vault_ids):
            field = f"vault_ids[{number}]"
            if vault_id not in states:
                raise VaultUnknown(f"Vault not found: {vault_id[:64]}", field=field)
            if states[vault_id]:
                raise VaultArchived(f"The vault {vault_id} is archived.", field=field)
        return pb.CheckVaultsResponse(with_variables=with_variables)
