"""KeysService: API keys and worker keys, and what gateways are told of them."""

from __future__ import annotations

import hashlib
import secrets
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from kit.clock import Clock, SystemClock, rfc3339
from kit.errors import InvalidArgument
from kit.ids import new_id
from kit.postgres import Database, Tx
from kit.rpc.server import current_context
from kit.telemetry import log
from managed_agents.vault.v1 import keys_pb2 as pb
from managed_agents.vault.v1 import keys_pb2_grpc
from services.vault.domain import keys as rules
from services.vault.domain.key_errors import (
    AdministratorsOnly,
    ApiKeyNotFound,
    FirstKeyMustBeAdmin,
    KeyNeeded,
    LastAdminKey,
    TooManyKeys,
    WorkerKeyNotFound,
)
from services.vault.store.keys import ApiKeyRow, ApiKeyStore, KeyRegister, WorkerKeyRow, WorkerKeyStore

ANONYMOUS = "anonymous"
MAX_USES = 1_000
DEFAULT_LIMIT, MAX_LIMIT = 100, 1_000
# 40 of 62 characters: 238 bits, so a digest without salt gives nothing away.
_SECRET_LENGTH = 40
_ALPHABET = string.ascii_letters + string.digits
_DIGEST_BYTES = 32


class KeysHandler(keys_pb2_grpc.KeysServiceServicer):
    """Serves keys; the gateway keeps what it is told only for as long as the generation is the same."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()

    async def ListApiKeys(self, request, context) -> pb.ListApiKeysResponse:
        """A page of the keys of a workspace."""
        workspace_id = rules.managed_workspace(_administrator(), request.workspace_id)
        limit = _limit(request.limit)
        async with self._database.read(workspace_id) as tx:
            found = await ApiKeyStore(tx).list(limit=limit + 1, after_id=request.after_id)
        return pb.ListApiKeysResponse(keys=[_api_key(row) for row in found[:limit]], has_more=len(found) > limit)

    async def CreateApiKey(self, request, context) -> pb.CreateApiKeyResponse:
        """Make a key; its secret is in this answer only."""
        wanted = rules.new_api_key(
            caller=_administrator(),
            workspace_id=request.workspace_id,
            name=request.name,
            role=request.role,
            owner_name=request.owner_name,
        )
        secret = _new_secret(rules.API_PREFIX)
        row = ApiKeyRow(
            id=new_id("key"),
            workspace_id=wanted.workspace_id,
            name=wanted.name,
            role=wanted.role,
            owner_name=wanted.owner_name,
            key_prefix=rules.shown(secret),
            created_at=self._clock.now(),
            last_used_at=None,
        )
        async with self._changing() as tx:
            store = ApiKeyStore(tx.for_workspace(wanted.workspace_id))
            if await store.count() >= rules.MAX_API_KEYS:
                raise TooManyKeys(f"A workspace has at most {rules.MAX_API_KEYS} API keys. Delete one first.")
            await store.insert(row, _digest(secret))
            if not (request.configured_admin or await KeyRegister(tx).has_admin(rules.DEFAULT_WORKSPACE)):
                raise FirstKeyMustBeAdmin(
                    "The first API key turns authentication on, so it must have the role admin and belong to the "
                    "default workspace: with any other nobody could manage keys.",
                    field="role",
                )
        log.info("api_key_created", key_id=row.id, workspace_id=row.workspace_id, role=row.role)
        return pb.CreateApiKeyResponse(key=_api_key(row), secret_key=secret)

    async def DeleteApiKey(self, request, context) -> pb.DeleteApiKeyResponse:
        """Remove a key for good."""
        workspace_id = rules.managed_workspace(_administrator(), request.workspace_id)
        async with self._changing() as tx:
            if not await ApiKeyStore(tx.for_workspace(workspace_id)).delete(request.id):
                raise ApiKeyNotFound(f"API key not found: {request.id}", api_key_id=request.id)
            register = KeyRegister(tx)
            _, any_left = await register.standing()
            if any_left and not request.configured_admin and not await register.has_admin(rules.DEFAULT_WORKSPACE):
                raise LastAdminKey(
                    "This is the last administrator's key of the default workspace, and other keys are left, here or "
                    "in other workspaces, that nobody could manage without it. Delete those first, or make another "
                    "administrator's key."
                )
        log.info("api_key_deleted", key_id=request.id, workspace_id=workspace_id)
        return pb.DeleteApiKeyResponse()

    async def IssueWorkerKey(self, request, context) -> pb.IssueWorkerKeyResponse:
        """Make a key for an environment's workers; its secret is in this answer only."""
        workspace_id, now = _administrator(), self._clock.now()
        ends = rules.check_worker_key(request.name, request.metadata_json, request.expires_at, now)
        secret = _new_secret(rules.WORKER_PREFIX)
        row = WorkerKeyRow(
            id=new_id("wkey"),
            environment_id=request.environment_id,
            name=request.name.strip(),
            metadata=request.metadata_json.decode() or "{}",
            key_prefix=rules.shown(secret),
            created_at=now,
            updated_at=now,
            expires_at=ends,
            last_seen_at=None,
            revoked_at=None,
        )
        async with self._changing() as tx:
            store = WorkerKeyStore(tx.for_workspace(workspace_id), request.environment_id)
            if await store.count() >= rules.MAX_WORKER_KEYS:
                raise TooManyKeys(f"An environment has at most {rules.MAX_WORKER_KEYS} worker keys.")
            await store.insert(row, _digest(secret))
        log.info("worker_key_issued", key_id=row.id, environment_id=row.environment_id)
        return pb.IssueWorkerKeyResponse(key=_worker_key(row, now), secret_key=secret)

    async def ListWorkerKeys(self, request, context) -> pb.ListWorkerKeysResponse:
        """A page of the keys of an environment."""
        limit, now = _limit(request.limit), self._clock.now()
        async with self._database.read(_administrator()) as tx:
            store = WorkerKeyStore(tx, request.environment_id)
            found = await store.list(limit=limit + 1, after_id=request.after_id)
        keys = [_worker_key(row, now) for row in found[:limit]]
        return pb.ListWorkerKeysResponse(keys=keys, has_more=len(found) > limit)

    async def RevokeWorkerKey(self, request, context) -> pb.RevokeWorkerKeyResponse:
        """End a worker key."""
        workspace_id, now = _administrator(), self._clock.now()
        async with self._changing() as tx:
            store = WorkerKeyStore(tx.for_workspace(workspace_id), request.environment_id)
            row = await store.revoke(request.id, now)
            if row is None:
                raise WorkerKeyNotFound(f"Worker key not found: {request.id}", worker_key_id=request.id)
        log.info("worker_key_revoked", key_id=request.id, environment_id=request.environment_id)
        return pb.RevokeWorkerKeyResponse(key=_worker_key(row, now))

    async def SyncKeys(self, request, context) -> pb.SyncKeysResponse:
        """Note uses, and tell the generation."""
        uses = sorted(request.uses, key=lambda use: use.key_id)
        if len(uses) > MAX_USES:
            raise InvalidArgument(f"uses must hold at most {MAX_USES} entries.", field="uses")
        if uses:
            times = [datetime.fromisoformat(use.used_at) for use in uses]
            async with self._database.platform_statements() as tx:
                await KeyRegister(tx).note_uses([use.key_id for use in uses], times)
        async with self._database.platform_read() as tx:
            generation, any_api_key = await KeyRegister(tx).standing()
        return pb.SyncKeysResponse(generation=generation, any_api_key=any_api_key)

    async def CheckKey(self, request, context) -> pb.CheckKeyResponse:
        """Tell whose key has a digest."""
        if len(request.sha256) != _DIGEST_BYTES:
            raise InvalidArgument(f"sha256 must be {_DIGEST_BYTES} bytes long.", field="sha256")
        async with self._database.platform_read() as tx:
            row = await KeyRegister(tx).find(request.sha256)
        response = pb.CheckKeyResponse(generation=row.generation)
        if row.id is not None:
            response.principal.CopyFrom(
                pb.KeyPrincipal(
                    id=row.id,
                    workspace_id=row.workspace_id or "",
                    role=row.role or "",
                    owner_name=row.owner_name or "",
                    environment_id=row.environment_id or "",
                    expires_at=_time(row.expires_at),
                    sha256=row.sha256 or b"",
                )
            )
        return response

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[Tx]:
        """One change of keys at a time. Whoever came without a key must still be allowed to."""
        is_anonymous = current_context().principal_id == ANONYMOUS
        async with self._database.platform_transaction() as tx:
            register = KeyRegister(tx)
            await register.advance()
            if is_anonymous and (await register.standing())[1]:
                raise KeyNeeded("By now there is an API key, and this request came without one. Send it.")
            yield tx


def _administrator() -> str:
    """The workspace of the caller, who may manage its keys."""
    caller = current_context()
    if caller.role != rules.ADMIN or not caller.workspace_id:
        raise AdministratorsOnly("Keys are managed by administrators.")
    return caller.workspace_id


def _limit(asked: int) -> int:
    return min(asked, MAX_LIMIT) if asked > 0 else DEFAULT_LIMIT


def _new_secret(prefix: str) -> str:
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _time(moment: datetime | None) -> str:
    return rfc3339(moment) if moment is not None else ""


def _api_key(row: ApiKeyRow) -> pb.ApiKey:
    return pb.ApiKey(
        id=row.id,
        workspace_id=row.workspace_id,
        name=row.name,
        key_prefix=row.key_prefix,
        role=row.role,
        owner_name=row.owner_name,
        created_at=rfc3339(row.created_at),
        last_used_at=_time(row.last_used_at),
    )


def _worker_key(row: WorkerKeyRow, now: datetime) -> pb.WorkerKey:
    return pb.WorkerKey(
        id=row.id,
        environment_id=row.environment_id,
        name=row.name,
        key_prefix=row.key_prefix,
        status=rules.status(revoked_at=row.revoked_at, expires_at=row.expires_at, now=now),
        metadata_json=row.metadata.encode(),
        created_at=rfc3339(row.created_at),
        updated_at=rfc3339(row.updated_at),
        expires_at=_time(row.expires_at),
        last_seen_at=_time(row.last_seen_at),
        revoked_at=_time(row.revoked_at),
    )
