"""Keys in a real vault: what is kept of them, who may manage them, and that somebody always can."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit.clock import rfc3339
from kit.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from kit.redaction import mask_text
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from managed_agents.vault.v1 import keys_pb2 as pb
from managed_agents.vault.v1.keys_pb2_grpc import KeysServiceStub
from services.vault.app import MIGRATIONS, SCHEMA, compose
from services.vault.config import VaultSettings

DEFAULT, OTHER = "wrkspc_default", "wrkspc_other"
ANYBODY = CallContext(DEFAULT, "req_1", "anonymous", role="admin")
ADMIN = CallContext(DEFAULT, "req_1", "key_1", role="admin")
OTHER_ADMIN = CallContext(OTHER, "req_1", "key_2", role="admin")
GATEWAY = CallContext(principal_id="gateway")
ENVIRONMENT = "env_1"


@pytest.fixture
async def dsn(make_database: Any) -> str:
    return await make_database(SCHEMA, MIGRATIONS)


@pytest.fixture
async def stub(dsn: str, tmp_path: Path) -> AsyncIterator[Any]:
    listen = f"unix:{tmp_path}/vault.sock"
    service = compose(VaultSettings(listen=listen, database_url=dsn, secret_key="a secret of enough length"), {})
    await service.start()
    channel = Channel(listen, token=None)
    try:
        yield channel.stub(KeysServiceStub)
    finally:
        await channel.close()
        await service.stop()


async def create(stub: Any, context: CallContext = ADMIN, **fields: Any) -> pb.CreateApiKeyResponse:
    return await stub.CreateApiKey(pb.CreateApiKeyRequest(**({"name": "a key"} | fields)), context=context)


async def check(stub: Any, secret: str) -> pb.CheckKeyResponse:
    digest = hashlib.sha256(secret.encode()).digest()
    return await stub.CheckKey(pb.CheckKeyRequest(sha256=digest), context=GATEWAY)


async def sync(stub: Any, *uses: pb.KeyUse) -> pb.SyncKeysResponse:
    return await stub.SyncKeys(pb.SyncKeysRequest(uses=uses), context=GATEWAY)


async def listed(stub: Any, context: CallContext = ADMIN, **fields: Any) -> list[pb.ApiKey]:
    return list((await stub.ListApiKeys(pb.ListApiKeysRequest(**fields), context=context)).keys)


async def test_a_secret_is_told_once_and_kept_as_its_digest(dsn: str, stub: Any) -> None:
    made = await create(stub, ANYBODY)
    assert re.fullmatch(r"ma_[A-Za-z0-9]{40}", made.secret_key)
    assert made.key.key_prefix == f"{made.secret_key[:9]}...{made.secret_key[-4:]}"
    assert (made.key.role, made.key.workspace_id) == ("admin", DEFAULT)
    assert made.secret_key not in str(await listed(stub))
    # Should it ever get into a log line, its form alone has it masked there.
    assert made.secret_key not in mask_text(f"key {made.secret_key}, {{'k': '{made.secret_key}'}}")
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("SET managed_agents.workspace TO '*'")
        rows = await (await connection.execute("SELECT api_keys::text, sha256 FROM api_keys")).fetchall()
    assert made.secret_key not in str(rows)
    assert [row[1] for row in rows] == [hashlib.sha256(made.secret_key.encode()).digest()]


async def test_a_digest_names_its_principal_until_the_key_is_deleted(stub: Any) -> None:
    made = await create(stub, ANYBODY, owner_name="Ada")
    found = (await check(stub, made.secret_key)).principal
    assert (found.id, found.workspace_id, found.role, found.owner_name) == (made.key.id, DEFAULT, "admin", "Ada")
    assert found.sha256 == hashlib.sha256(made.secret_key.encode()).digest()
    await stub.DeleteApiKey(pb.DeleteApiKeyRequest(id=made.key.id), context=ADMIN)
    assert not (await check(stub, made.secret_key)).HasField("principal")


async def test_every_change_is_another_generation(stub: Any) -> None:
    seen = [await sync(stub)]
    made = await create(stub, ANYBODY)
    seen.append(await sync(stub))
    issued = await stub.IssueWorkerKey(pb.IssueWorkerKeyRequest(environment_id=ENVIRONMENT, name="w"), context=ADMIN)
    seen.append(await sync(stub))
    await stub.RevokeWorkerKey(pb.RevokeWorkerKeyRequest(environment_id=ENVIRONMENT, id=issued.key.id), context=ADMIN)
    seen.append(await sync(stub))
    await stub.DeleteApiKey(pb.DeleteApiKeyRequest(id=made.key.id), context=ADMIN)
    seen.append(await sync(stub))
    assert [one.any_api_key for one in seen] == [False, True, True, True, False]
    assert sorted({one.generation for one in seen}) == [one.generation for one in seen]


@pytest.mark.parametrize("fields", [{"role": "member"}, {"role": "read_only"}, {"workspace_id": OTHER}])
async def test_the_first_key_locks_nobody_out(stub: Any, fields: dict[str, str]) -> None:
    with pytest.raises(FailedPrecondition) as refusal:
        await create(stub, ANYBODY, **fields)
    assert refusal.value.reason == "FIRST_KEY_MUST_BE_ADMIN"
    assert not (await sync(stub)).any_api_key
    await create(stub, ANYBODY, configured_admin=True, **fields)


async def test_the_last_administrator_stays_while_others_are_left(stub: Any) -> None:
    first = (await create(stub, ANYBODY)).key
    member = (await create(stub, role="member")).key
    with pytest.raises(FailedPrecondition) as refusal:
        await stub.DeleteApiKey(pb.DeleteApiKeyRequest(id=first.id), context=ADMIN)
    assert refusal.value.reason == "LAST_ADMIN_KEY"
    second = (await create(stub)).key
    for key in (first, member, second):
        await stub.DeleteApiKey(pb.DeleteApiKeyRequest(id=key.id), context=ADMIN)
    assert not (await sync(stub)).any_api_key


async def test_of_many_who_make_the_first_key_without_one_a_single_one_does(stub: Any) -> None:
    made = await asyncio.gather(*(create(stub, ANYBODY) for _ in range(8)), return_exceptions=True)
    assert len([one for one in made if isinstance(one, pb.CreateApiKeyResponse)]) == 1
    assert {type(one) for one in made} == {pb.CreateApiKeyResponse, Unauthenticated}
    assert len(await listed(stub)) == 1


@pytest.mark.parametrize("role", ["member", "read_only", "worker", ""])
async def test_only_administrators_manage_keys(stub: Any, role: str) -> None:
    caller = CallContext(DEFAULT, "req_1", "key_9", role=role)
    calls = [
        create(stub, caller),
        listed(stub, caller),
        stub.DeleteApiKey(pb.DeleteApiKeyRequest(id="key_1"), context=caller),
        stub.IssueWorkerKey(pb.IssueWorkerKeyRequest(environment_id=ENVIRONMENT, name="w"), context=caller),
        stub.ListWorkerKeys(pb.ListWorkerKeysRequest(environment_id=ENVIRONMENT), context=caller),
        stub.RevokeWorkerKey(pb.RevokeWorkerKeyRequest(environment_id=ENVIRONMENT, id="wkey_1"), context=caller),
    ]
    for call in calls:
        with pytest.raises(PermissionDenied):
            await call


async def test_a_workspace_begins_with_a_key_and_sees_its_own_only(stub: Any) -> None:
    ours = (await create(stub, ANYBODY)).key
    theirs = (await create(stub, workspace_id=OTHER)).key
    assert [key.id for key in await listed(stub, OTHER_ADMIN)] == [theirs.id]
    assert [key.id for key in await listed(stub)] == [ours.id]
    assert [key.id for key in await listed(stub, workspace_id=OTHER)] == [theirs.id]
    with pytest.raises(PermissionDenied):
        await listed(stub, OTHER_ADMIN, workspace_id=DEFAULT)
    with pytest.raises(PermissionDenied):
        await create(stub, OTHER_ADMIN, workspace_id="wrkspc_third")
    for context, request in (
        (OTHER_ADMIN, pb.DeleteApiKeyRequest(id=ours.id)),
        (ADMIN, pb.DeleteApiKeyRequest(id=theirs.id)),
    ):
        with pytest.raises(NotFound) as refusal:
            await stub.DeleteApiKey(request, context=context)
        assert refusal.value.reason == "API_KEY_NOT_FOUND"
    await stub.DeleteApiKey(pb.DeleteApiKeyRequest(id=theirs.id, workspace_id=OTHER), context=ADMIN)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "  "},
        {"name": "x" * 129},
        {"role": "owner"},
        {"role": "worker"},
        {"owner_name": "x" * 129},
        *({"workspace_id": name} for name in ("other", "wrkspc_", "wrkspc_*", "*", "wrkspc_a b", "wrkspc_" + "x" * 65)),
    ],
)
async def test_a_malformed_key_is_refused(stub: Any, fields: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        await create(stub, **fields)
    assert refusal.value.reason == "INVALID_API_KEY" and refusal.value.field in fields


async def test_uses_are_noted_and_never_go_back(stub: Any) -> None:
    key = (await create(stub, ANYBODY)).key
    issued = await stub.IssueWorkerKey(pb.IssueWorkerKeyRequest(environment_id=ENVIRONMENT, name="w"), context=ADMIN)
    newer, older = (rfc3339(datetime(2026, 11, day, 12, tzinfo=UTC)) for day in (2, 1))
    for moment in (newer, older):
        await sync(stub, *(pb.KeyUse(key_id=each, used_at=moment) for each in (key.id, issued.key.id, "key_unknown")))
    assert (await listed(stub))[0].last_used_at == newer
    request = pb.ListWorkerKeysRequest(environment_id=ENVIRONMENT)
    assert (await stub.ListWorkerKeys(request, context=ADMIN)).keys[0].last_seen_at == newer


async def test_a_worker_key_reaches_one_environment_until_it_is_revoked(stub: Any) -> None:
    request = pb.IssueWorkerKeyRequest(environment_id=ENVIRONMENT, name="laptop", metadata_json=b'{"a":1}')
    issued = await stub.IssueWorkerKey(request, context=ADMIN)
    assert re.fullmatch(r"mawk_[A-Za-z0-9]{40}", issued.secret_key)
    found = (await check(stub, issued.secret_key)).principal
    assert (found.role, found.environment_id, found.workspace_id) == ("worker", ENVIRONMENT, DEFAULT)
    for wrong in (
        (ADMIN, pb.RevokeWorkerKeyRequest(environment_id="env_2", id=issued.key.id)),
        (OTHER_ADMIN, pb.RevokeWorkerKeyRequest(environment_id=ENVIRONMENT, id=issued.key.id)),
    ):
        with pytest.raises(NotFound):
            await stub.RevokeWorkerKey(wrong[1], context=wrong[0])
    request = pb.RevokeWorkerKeyRequest(environment_id=ENVIRONMENT, id=issued.key.id)
    revoked = (await stub.RevokeWorkerKey(request, context=ADMIN)).key
    again = (await stub.RevokeWorkerKey(request, context=ADMIN)).key
    assert revoked.status == again.status == "revoked" and revoked.revoked_at == again.revoked_at
    assert not (await check(stub, issued.secret_key)).HasField("principal")


async def test_a_worker_key_ends_by_itself(stub: Any) -> None:
    # Long enough to be checked before, also on a busy machine.
    ends = datetime.now(UTC) + timedelta(seconds=2)
    request = pb.IssueWorkerKeyRequest(environment_id=ENVIRONMENT, name="w", expires_at=rfc3339(ends))
    issued = await stub.IssueWorkerKey(request, context=ADMIN)
    assert (await check(stub, issued.secret_key)).principal.expires_at == rfc3339(ends)
    await asyncio.sleep(max(0.0, (ends - datetime.now(UTC)).total_seconds()) + 0.05)
    assert not (await check(stub, issued.secret_key)).HasField("principal")
    request = pb.ListWorkerKeysRequest(environment_id=ENVIRONMENT)
    assert (await stub.ListWorkerKeys(request, context=ADMIN)).keys[0].status == "expired"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": "2099-01-01T00:00:00"}, "expires_at"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-23:59"}, "expires_at"),
        ({"expires_at": "0001-01-01T00:00:00+23:59"}, "expires_at"),
        ({"metadata_json": b"[]"}, "metadata"),
        ({"metadata_json": b"{"}, "metadata"),
        ({"metadata_json": b'{"a":"' + b"x" * 16_384 + b'"}'}, "metadata"),
    ],
)
async def test_a_malformed_worker_key_is_refused(stub: Any, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        request = pb.IssueWorkerKeyRequest(**({"environment_id": ENVIRONMENT, "name": "w"} | fields))
        await stub.IssueWorkerKey(request, context=ADMIN)
    assert refusal.value.reason == "INVALID_WORKER_KEY" and refusal.value.field == field


async def test_lists_go_on_after_a_key(stub: Any) -> None:
    made = [(await create(stub, ADMIN if n else ANYBODY, name=f"key {n}")).key.id for n in range(5)]
    first = await stub.ListApiKeys(pb.ListApiKeysRequest(limit=2), context=ADMIN)
    rest = await stub.ListApiKeys(pb.ListApiKeysRequest(limit=3, after_id=first.keys[-1].id), context=ADMIN)
    assert first.has_more and not rest.has_more
    assert [key.id for key in (*first.keys, *rest.keys)] == made[::-1]
