"""The rpcs of VaultsService on credentials. Secrets come in and never go out."""

from __future__ import annotations

from typing import Any

from kit.clock import rfc3339
from kit.idempotency import once
from kit.ids import new_id
from kit.postgres import Tx
from kit.rpc.server import current_context
from managed_agents.vault.v1 import vaults_pb2 as pb
from services.vault.domain import credential as rules
from services.vault.domain import fields
from services.vault.domain.credential import OAUTH, Change, Credential, Secrets, hint, identity
from services.vault.domain.errors import CredentialArchived, CredentialKeyTaken, InvalidField, VaultFull
from services.vault.domain.vault import MAX_CREDENTIALS
from services.vault.handlers.edge import actor_of, known_id, page_limit
from services.vault.handlers.messages import answer_message, audit_message, credential_message
from services.vault.operations.parts import Parts
from services.vault.operations.probing import INVALID, UNKNOWN, VALID, Probe, probe
from services.vault.operations.refreshing import CONNECT_ERROR, SUCCEEDED, Outcome, Wanted
from services.vault.store.audit import AuditStore
from services.vault.store.credentials import CredentialStore, not_found
from services.vault.store.paging import page_of, read_position
from services.vault.store.vaults import VaultStore
from services.vault.store.vaults import not_found as vault_not_found

ROTATION_FIELDS = ("value", "actor", "metadata", "expires_at")
USE_FIELDS = ("actor", "metadata")


class CredentialRpcs:
    """Everything that may be done with the credentials of a vault."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._database, self._clock, self._announcements = parts.database, parts.clock, parts.announcements

    async def CreateCredential(self, request: Any, context: Any) -> pb.CreateCredentialResponse:
        """Seals a secret."""
        caller, vault_id = current_context(), known_id(request.vault_id, vault_not_found)
        now = self._clock.now()
        definition = rules.define(fields.body_of(request.definition_json), now)
        credential_id = new_id("vcrd")
        row = identity(caller.workspace_id, vault_id, credential_id, definition.type, definition.key)
        sealed = await self._parts.sealer.seal(definition.secrets.encode(), associated=row)
        async with self._database.transaction(caller.workspace_id) as tx:

            async def create() -> pb.CreateCredentialResponse:
                # The vault's lock puts creations in a row, so that its limits hold.
                await VaultStore(tx).lock_live(vault_id)
                store = CredentialStore(tx)
                await _check_room(store, vault_id, definition.key)
                saved = await store.insert(
                    credential_id, vault_id, definition, sealed, hint(definition.secrets.value), now
                )
                await self._note(tx, "created", saved)
                await self._announcements.event(tx, "vault_credential.created", credential_id, now, vault_id=vault_id)
                return pb.CreateCredentialResponse(credential=self._message(saved))

            repeat = self._parts.repeats.hidden(request.idempotency)
            answer = await once(tx, repeat, pb.CreateCredentialResponse, create)
        self._announcements.sent()
        return answer

    async def GetCredential(self, request: Any, context: Any) -> pb.GetCredentialResponse:
        """Reads one, archived or not."""
        vault_id, credential_id = _ids(request)
        async with self._database.read(current_context().workspace_id) as tx:
            await VaultStore(tx).live(vault_id)
            found = await CredentialStore(tx).load(vault_id, credential_id)
        return pb.GetCredentialResponse(credential=self._message(found))

    async def UpdateCredential(self, request: Any, context: Any) -> pb.UpdateCredentialResponse:
        """Changes what may change, perhaps with new secrets."""
        caller, (vault_id, credential_id) = current_context(), _ids(request)
        body, now = fields.body_of(request.patch_json), self._clock.now()
        async with self._database.transaction(caller.workspace_id) as tx:
            stored = await _lock_live(tx, vault_id, credential_id)
            change = rules.patch(stored, body, now)
            store = CredentialStore(tx)
            await store.save(stored, change.content, now)
            if change.secrets:
                await self._replace(tx, stored, change)
            told = {"changed": ", ".join(names)} if (names := rules.changed(stored, change.content)) else None
            await self._note(tx, "rotated" if "value" in change.secrets else "updated", stored, metadata=told)
            saved = await store.load(vault_id, credential_id)
        if change.secrets:
            await self._announcements.rotated(caller.workspace_id, vault_id, credential_id)
        return pb.UpdateCredentialResponse(credential=self._message(saved))

    async def ListCredentials(self, request: Any, context: Any) -> pb.ListCredentialsResponse:
        """Pages newest first."""
        vault_id, limit = known_id(request.vault_id, vault_not_found), page_limit(request.limit)
        scope = f"credentials?vault={vault_id}&archived={request.include_archived}&order=desc"
        position = read_position(request.cursor, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            await VaultStore(tx).live(vault_id)
            found = await CredentialStore(tx).page(
                vault_id, position, limit=limit + 1, include_archived=request.include_archived
            )
        page = page_of(found, position, limit, scope)
        return pb.ListCredentialsResponse(
            credentials=[self._message(credential) for credential in page.entries],
            next_cursor=page.next_cursor,
            previous_cursor=page.previous_cursor,
        )

    async def RotateCredential(self, request: Any, context: Any) -> pb.RotateCredentialResponse:
        """Replaces the secret, and has whoever uses it connect anew."""
        caller, (vault_id, credential_id) = current_context(), _ids(request)
        body, now = fields.body_of(request.rotation_json), self._clock.now()
        fields.known_only(body, "", ROTATION_FIELDS)
        actor, metadata = actor_of(body), fields.metadata(body.get("metadata"))
        async with self._database.transaction(caller.workspace_id) as tx:

            async def rotate() -> pb.RotateCredentialResponse:
                stored = await _lock_live(tx, vault_id, credential_id)
                value, expires_at = rules.rotation(stored, body, now)
                store = CredentialStore(tx)
                await self._replace(tx, stored, {"value": value})
                if stored.type == OAUTH:
                    await store.set_expiry(credential_id, expires_at)
                await self._note(tx, "rotated", stored, actor, metadata)
                return pb.RotateCredentialResponse(credential=self._message(await store.load(vault_id, credential_id)))

            repeat = self._parts.repeats.hidden(request.idempotency)
            answer = await once(tx, repeat, pb.RotateCredentialResponse, rotate)
        # Whatever did not come back is told, and undoes nothing.
        lost = await self._announcements.reconnected(caller.workspace_id, vault_id, credential_id)
        answer.credential.warnings.extend(lost)
        return answer

    async def MarkCredentialUsed(self, request: Any, context: Any) -> pb.MarkCredentialUsedResponse:
        """Notes a use that somebody else made."""
        vault_id, credential_id = _ids(request)
        body = fields.body_of(request.use_json)
        fields.known_only(body, "", USE_FIELDS)
        actor, metadata = actor_of(body), fields.metadata(body.get("metadata"))
        async with self._database.transaction(current_context().workspace_id) as tx:
            stored = await _lock_live(tx, vault_id, credential_id)
            store = CredentialStore(tx)
            await store.mark_used([credential_id], self._clock.now())
            await self._note(tx, "used", stored, actor, metadata)
            saved = await store.load(vault_id, credential_id)
        return pb.MarkCredentialUsedResponse(credential=self._message(saved))

    async def ListAuditEvents(self, request: Any, context: Any) -> pb.ListAuditEventsResponse:
        """Pages newest first. What happened to a deleted credential is among what happened in the vault."""
        vault_id, limit = known_id(request.vault_id, vault_not_found), page_limit(request.limit)
        credential_id = known_id(request.credential_id, not_found) if request.credential_id else ""
        scope = f"audit?vault={vault_id}&credential={credential_id}&order=desc"
        position = read_position(request.cursor, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            await VaultStore(tx).live(vault_id)
            if credential_id:
                await CredentialStore(tx).load(vault_id, credential_id)
            found = await AuditStore(tx).page(vault_id, credential_id, position, limit=limit + 1)
        page = page_of(found, position, limit, scope)
        return pb.ListAuditEventsResponse(
            events=[audit_message(event) for event in page.entries],
            next_cursor=page.next_cursor,
            previous_cursor=page.previous_cursor,
        )

    async def ArchiveCredential(self, request: Any, context: Any) -> pb.ArchiveCredentialResponse:
        """Ends a credential and erases its secrets."""
        caller, (vault_id, credential_id) = current_context(), _ids(request)
        async with self._database.transaction(caller.workspace_id) as tx:
            await VaultStore(tx).live(vault_id)
            store, now = CredentialStore(tx), self._clock.now()
            stored = await store.lock(vault_id, credential_id)
            if stored.archived_at is None:
                await store.archive(credential_id, now)
                await self._note(tx, "archived", stored)
                await self._announcements.event(tx, "vault_credential.archived", credential_id, now, vault_id=vault_id)
            saved = await store.load(vault_id, credential_id)
        self._announcements.sent()
        await self._announcements.rotated(caller.workspace_id, vault_id, credential_id)
        return pb.ArchiveCredentialResponse(credential=self._message(saved))

    async def DeleteCredential(self, request: Any, context: Any) -> pb.DeleteCredentialResponse:
        """Removes a credential."""
        caller, (vault_id, credential_id) = current_context(), _ids(request)
        async with self._database.transaction(caller.workspace_id) as tx:
            await VaultStore(tx).live(vault_id)
            store = CredentialStore(tx)
            stored = await store.lock(vault_id, credential_id)
            await store.delete(credential_id)
            await self._note(tx, "deleted", stored)
            await self._announcements.event(
                tx, "vault_credential.deleted", credential_id, self._clock.now(), vault_id=vault_id
            )
        self._announcements.sent()
        await self._announcements.rotated(caller.workspace_id, vault_id, credential_id)
        return pb.DeleteCredentialResponse()

    async def ValidateCredential(self, request: Any, context: Any) -> pb.ValidateCredentialResponse:
        """Tries an OAuth credential at its server, and a renewal where the server answers 401."""
        caller, (vault_id, credential_id) = current_context(), _ids(request)
        stored, secrets = await self._open_live(caller.workspace_id, vault_id, credential_id)
        tried, outcome = await probe(self._parts.outward, stored.key, secrets.value), None
        known = secrets.all()
        if tried.is_unauthorized and self._parts.refresher.enabled:
            wanted = Wanted(caller.workspace_id, stored, caller.principal_id)
            outcome = await self._parts.refresher.refresh(wanted)
            if outcome.status == SUCCEEDED:
                stored, secrets = await self._open_live(caller.workspace_id, vault_id, credential_id)
                known += secrets.all()
                tried = await probe(self._parts.outward, stored.key, secrets.value)
        status = _verdict(tried, outcome)
        async with self._database.transaction(caller.workspace_id) as tx:
            await self._note(tx, "validated", stored, metadata={"status": status})
        return pb.ValidateCredentialResponse(
            status=status,
            has_refresh_token=secrets.refresh_token is not None,
            failed_method=tried.failed_method,
            mcp_answer=answer_message(tried.reply, known),
            refresh_status=outcome.status if outcome else "",
            refresh_answer=answer_message(outcome.reply, (*known, *outcome.secrets)) if outcome else None,
            validated_at=rfc3339(self._clock.now()),
        )

    async def _open_live(self, workspace_id: str, vault_id: str, credential_id: str) -> tuple[Credential, Secrets]:
        async with self._database.read(workspace_id) as tx:
            await VaultStore(tx).live(vault_id)
            store = CredentialStore(tx)
            stored = await store.load(vault_id, credential_id)
            if stored.type != OAUTH:
                raise InvalidField(f"Only credentials of type {OAUTH} can be validated.", field="credential_id")
            found = await store.sealed(credential_id)
        if found is None:
            raise _archived(credential_id)
        return stored, await self._parts.open(workspace_id, stored, found[0])

    async def _replace(self, tx: Tx, stored: Credential, change: Change | dict[str, str]) -> None:
        """Seals what is new together with what stays."""
        new = change.secrets if isinstance(change, Change) else change
        store, now = CredentialStore(tx), self._clock.now()
        found = await store.sealed(stored.id)
        assert found is not None
        secrets = (await self._parts.open(tx.workspace_id, stored, found[0])).with_changes(new)
        sealed = await self._parts.seal(tx.workspace_id, stored, secrets)
        rotated_at = now if "value" in new else None
        await store.replace_secret(stored.id, sealed, hint(secrets.value), rotated_at=rotated_at, now=now)

    async def _note(
        self, tx: Tx, action: str, stored: Credential, actor: str = "", metadata: dict[str, str] | None = None
    ) -> None:
        await AuditStore(tx).add(
            action,
            stored.vault_id,
            stored.id,
            actor=actor or current_context().principal_id,
            now=self._clock.now(),
            metadata=metadata,
        )

    def _message(self, credential: Credential) -> pb.Credential:
        return credential_message(credential, refreshes=self._parts.refresher.enabled)


def _ids(request: Any) -> tuple[str, str]:
    return known_id(request.vault_id, vault_not_found), known_id(request.credential_id, not_found)


async def _lock_live(tx: Tx, vault_id: str, credential_id: str) -> Credential:
    await VaultStore(tx).live(vault_id)
    stored = await CredentialStore(tx).lock(vault_id, credential_id)
    if stored.archived_at is not None:
        raise _archived(credential_id)
    return stored


def _archived(credential_id: str) -> CredentialArchived:
    return CredentialArchived(
        f"The credential {credential_id} is archived and its secret is erased. Add another one.",
        credential_id=credential_id,
    )


async def _check_room(store: CredentialStore, vault_id: str, key: str) -> None:
    if await store.has_live_key(vault_id, key):
        raise CredentialKeyTaken(
            "A live credential of this vault is found by the same URL or name. Rotate it, or archive it first.",
            vault_id=vault_id,
        )
    if await store.count_live(vault_id) >= MAX_CREDENTIALS:
        raise VaultFull(
            f"The vault holds {MAX_CREDENTIALS} credentials, which is as many as it may. Archive one, or use another.",
            vault_id=vault_id,
        )


def _verdict(tried: Probe, outcome: Outcome | None) -> str:
    """What the tries say of the credential. A renewal that could not be asked for says nothing."""
    if tried.status != INVALID:
        return VALID if tried.status == VALID else UNKNOWN
    return UNKNOWN if outcome is not None and outcome.status == CONNECT_ERROR else INVALID
