"""The vault over real gRPC and Postgres: settings are sealed, masked, versioned, and opened for runners only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from kit.config import ConfigError
from kit.errors import Aborted, Internal, InvalidArgument, PermissionDenied
from kit.rpc.client import channel
from kit.rpc.context import CallContext
from managed_agents.vault.v1 import vault_pb2 as pb
from managed_agents.vault.v1.vault_pb2_grpc import SettingsServiceStub
from services.vault.app import MIGRATIONS, SCHEMA, compose
from services.vault.config import VaultSettings

KEY = "sk-canary-of-this-test"
DOCUMENT = {"schema_version": 1, "model": {"vendor": "openai", "api_key": KEY, "default_model": "m"}}
PERSON, RUNNER = CallContext("wrkspc_default", "req_1", "anonymous"), CallContext("wrkspc_default", "req_1", "runner_1")
STRANGER = CallContext("wrkspc_other", "req_1", "anonymous")


@asynccontextmanager
async def vault(dsn: str, folder: Path, *, secret: str = "a secret of enough length", environ: dict | None = None):
    listen = f"unix:{folder}/vault.sock"
    service = compose(VaultSettings(database_url=dsn, listen=listen, secret_key=secret), environ or {})
    await service.start()
    client = channel(listen)
    try:
        yield client.stub(SettingsServiceStub)
    finally:
        await client.close()
        await service.stop()


@pytest.fixture
async def dsn(make_database) -> str:
    return await make_database(SCHEMA, MIGRATIONS)


@pytest.fixture
async def stub(dsn: str, tmp_path: Path) -> AsyncIterator:
    async with vault(dsn, tmp_path) as client:
        yield client


def save(document: dict, revision: int = 0) -> pb.SaveSettingsRequest:
    return pb.SaveSettingsRequest(revision=revision, document_json=json.dumps(document).encode())


async def test_without_a_key_the_demo_model_speaks(stub) -> None:
    access = await stub.GetModelAccess(pb.GetModelAccessRequest(), context=RUNNER)
    assert (access.vendor, access.api_key, access.default_model) == ("demo", "", "demo")


async def test_the_environment_speaks_until_a_document_is_saved(dsn: str, tmp_path: Path) -> None:
    async with vault(dsn, tmp_path, environ={"ANTHROPIC_API_KEY": "from the environment"}) as stub:
        before = await stub.GetModelAccess(pb.GetModelAccessRequest(), context=RUNNER)
        await stub.SaveSettings(save(DOCUMENT), context=PERSON)
        after = await stub.GetModelAccess(pb.GetModelAccessRequest(), context=RUNNER)

    assert (before.vendor, before.api_key) == ("anthropic", "from the environment")
    assert (after.vendor, after.api_key, after.default_model) == ("openai", KEY, "m")
    assert before.revision != after.revision


async def test_what_the_operator_saved_holds_for_workspaces_that_have_nothing_of_their_own(stub) -> None:
    elsewhere = RUNNER.for_workspace("wrkspc_other")
    before = await stub.GetModelAccess(pb.GetModelAccessRequest(), context=elsewhere)
    await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    shared = await stub.GetModelAccess(pb.GetModelAccessRequest(), context=elsewhere)
    own = json.loads(json.dumps(DOCUMENT))
    own["model"]["default_model"] = "of the other"
    await stub.SaveSettings(save(own), context=STRANGER)
    after = await stub.GetModelAccess(pb.GetModelAccessRequest(), context=elsewhere)
    here = await stub.GetModelAccess(pb.GetModelAccessRequest(), context=RUNNER)

    assert before.vendor == "demo"
    assert (shared.api_key, shared.default_model) == (KEY, "m")
    assert (after.default_model, here.default_model) == ("of the other", "m")


async def test_a_saved_secret_is_masked_in_answers_and_sealed_in_the_database(dsn: str, stub) -> None:
    saved = await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    read = await stub.GetSettings(pb.GetSettingsRequest(), context=PERSON)

    assert saved.revision == read.revision == 1
    assert KEY.encode() not in saved.SerializeToString() + read.SerializeToString()
    assert json.loads(read.secret_states_json) == {"model": {"api_key": "configured"}}
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        cursor = await connection.execute("SELECT document::text, encode(secrets, 'escape') FROM settings")
        assert KEY not in str(await cursor.fetchall())


async def test_a_masked_secret_survives_another_save(stub) -> None:
    await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    shown = json.loads((await stub.GetSettings(pb.GetSettingsRequest(), context=PERSON)).document_json)
    shown["model"]["default_model"] = "other"
    await stub.SaveSettings(save(shown, 1), context=PERSON)

    access = await stub.GetModelAccess(pb.GetModelAccessRequest(), context=RUNNER)
    assert (access.api_key, access.default_model) == (KEY, "other")


@pytest.mark.parametrize("revision", [0, 2, 7])
async def test_a_save_at_another_revision_is_refused(stub, revision: int) -> None:
    await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    with pytest.raises(Aborted) as refusal:
        await stub.SaveSettings(save(DOCUMENT, revision), context=PERSON)
    assert refusal.value.reason == "SETTINGS_REVISION_CONFLICT"


@pytest.mark.parametrize("document", [b"{", b"[]", b'{"schema_version": 1}', b"\xff"])
async def test_a_faulty_document_is_refused_and_nothing_is_saved(stub, document: bytes) -> None:
    with pytest.raises(InvalidArgument):
        await stub.SaveSettings(pb.SaveSettingsRequest(document_json=document), context=PERSON)
    assert (await stub.GetSettings(pb.GetSettingsRequest(), context=PERSON)).revision == 0


@pytest.mark.parametrize("caller", [PERSON, STRANGER])
async def test_only_runners_open_model_access(stub, caller: CallContext) -> None:
    with pytest.raises(PermissionDenied):
        await stub.GetModelAccess(pb.GetModelAccessRequest(), context=caller)


async def test_a_ciphertext_moved_to_another_workspace_does_not_open(dsn: str, stub) -> None:
    await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("UPDATE settings SET workspace_id = 'wrkspc_other'")
    with pytest.raises(Internal) as refusal:
        await stub.GetModelAccess(pb.GetModelAccessRequest(), context=RUNNER.for_workspace("wrkspc_other"))
    assert refusal.value.reason == "SEAL_BROKEN"


async def test_a_wrong_master_key_stops_the_vault_and_changes_nothing(dsn: str, tmp_path: Path) -> None:
    async with vault(dsn, tmp_path) as stub:
        await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    with pytest.raises(ConfigError, match="not the one"):
        async with vault(dsn, tmp_path, secret="another secret of enough length"):
            pass
    async with vault(dsn, tmp_path) as stub:
        assert (await stub.GetModelAccess(pb.GetModelAccessRequest(), context=RUNNER)).api_key == KEY


def test_a_missing_or_short_key_is_told_before_anything_starts() -> None:
    for secret in (None, "short"):
        with pytest.raises(ConfigError):
            compose(VaultSettings(database_url="postgres://x", listen="unix:/x", secret_key=secret), {})
