"""The vault over real gRPC and Postgres: what a save changes and logs, and what stays in effect over a damaged row."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from kit import telemetry
from kit.errors import Aborted, InvalidArgument
from managed_agents.vault.v1 import vault_pb2 as pb
from services.vault.app import MIGRATIONS, SCHEMA
from tests.integration.vault.test_settings import DOCUMENT, KEY, PERSON, RUNNER, STRANGER, save, vault

MASK = "********"


@pytest.fixture
async def dsn(make_database) -> str:
    return await make_database(SCHEMA, MIGRATIONS)


@pytest.fixture
async def stub(dsn: str, tmp_path: Path) -> AsyncIterator:
    async with vault(dsn, tmp_path, environ={"SOME_API_KEY": "from-the-environment"}) as client:
        yield client


async def read(stub) -> pb.GetSettingsResponse:
    return await stub.GetSettings(pb.GetSettingsRequest(), context=PERSON)


async def access(stub) -> pb.GetModelAccessResponse:
    return await stub.GetModelAccess(pb.GetModelAccessRequest(), context=RUNNER)


async def damage(dsn: str, statement: LiteralString) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(statement)
        await connection.execute("UPDATE settings SET revision = revision + 1")


def with_model(**changes: Any) -> dict[str, Any]:
    return DOCUMENT | {"model": DOCUMENT["model"] | changes}


async def test_a_save_is_in_effect_at_once(stub) -> None:
    before = await read(stub)
    assert (before.revision, before.effective_revision, before.activation_status) == (0, 0, "active")

    saved = (await stub.SaveSettings(save(DOCUMENT), context=PERSON)).settings
    after = await read(stub)

    assert saved == after
    assert (after.revision, after.effective_revision, after.activation_status) == (1, 1, "active")
    assert after.saved_document_json == after.document_json and not after.restart_required
    assert json.loads(after.activation_errors_json) == [] and json.loads(after.adapters_json)["sandbox"]
    assert (await stub.GetSettings(pb.GetSettingsRequest(), context=STRANGER)).revision == 0


async def test_a_save_logs_revisions_and_paths_and_nothing_else(stub, capfd) -> None:
    telemetry.setup("vault")
    await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    await stub.SaveSettings(save(with_model(api_key="sk-another-canary"), 1), context=PERSON)
    with pytest.raises(InvalidArgument):
        await stub.SaveSettings(save(with_model(vendor="acme", api_key="sk-third-canary"), 2), context=PERSON)

    written = capfd.readouterr().err
    first, second = (json.loads(line) for line in written.splitlines() if "runtime_settings_saved" in line)
    assert second.keys() >= {"old_revision", "new_revision", "changed_paths", "restart_required"}
    common = {"event", "level", "timestamp", "service", "request_id"}
    assert second.keys() - common == {"old_revision", "new_revision", "changed_paths", "restart_required"}
    assert (first["old_revision"], first["new_revision"], first["restart_required"]) == (0, 1, False)
    assert first["changed_paths"] == ["model.api_key", "model.default_model", "model.vendor"]
    assert (second["new_revision"], second["changed_paths"]) == (2, ["model.api_key"])
    assert KEY not in written and "canary" not in written


async def test_validation_judges_as_a_save_and_saves_nothing(stub) -> None:
    await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    masked = with_model(api_key=MASK, default_model="other")
    found = await stub.ValidateSettings(
        pb.ValidateSettingsRequest(document_json=json.dumps(masked).encode()), context=PERSON
    )
    assert list(found.changed_paths) == ["model.default_model"] and not found.restart_required
    assert json.loads(found.document_json)["model"] == masked["model"] | {"base_url": None, "options": {}}
    for faulty in ({}, with_model(vendor="anthropic", api_key=MASK), with_model(api_key=None)):
        content = json.dumps(faulty).encode()
        with pytest.raises(InvalidArgument) as judged:
            await stub.ValidateSettings(pb.ValidateSettingsRequest(document_json=content), context=PERSON)
        with pytest.raises(InvalidArgument) as refused:
            await stub.SaveSettings(pb.SaveSettingsRequest(revision=1, document_json=content), context=PERSON)
        assert judged.value.message == refused.value.message
    assert (await read(stub)).revision == 1 and (await access(stub)).api_key == KEY


async def test_many_long_faults_reach_the_caller(stub) -> None:
    document = DOCUMENT | {f"{'n' * 60}{number}": 1 for number in range(300)}
    with pytest.raises(InvalidArgument) as refusal:
        await stub.SaveSettings(save(document), context=PERSON)
    assert len(json.loads(refusal.value.metadata["details"])["errors"]) == 10


async def test_an_area_is_tested_with_the_stored_secret(stub) -> None:
    await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    config = json.dumps({"vendor": "openai", "api_key": MASK}).encode()
    found = await stub.TestSettings(pb.TestSettingsRequest(area="model", config_json=config), context=PERSON)
    assert (found.adapter, found.status) == ("openai", "ok")
    with pytest.raises(InvalidArgument):
        await stub.TestSettings(pb.TestSettingsRequest(area="model", config_json=config), context=STRANGER)


async def test_a_reference_is_opened_for_runners_only(stub) -> None:
    saved = await stub.SaveSettings(save(with_model(api_key="${SOME_API_KEY}")), context=PERSON)
    assert json.loads(saved.document_json)["model"]["api_key"] == MASK
    assert (await access(stub)).api_key == "from-the-environment"


async def test_the_demo_model_gets_no_key_and_costs_none(stub) -> None:
    await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    await stub.SaveSettings(
        save({"schema_version": 1, "model": {"vendor": "demo", "api_key": MASK}}, 1), context=PERSON
    )
    assert ((await access(stub)).vendor, (await access(stub)).api_key) == ("demo", "")
    await stub.SaveSettings(save(with_model(api_key=MASK), 2), context=PERSON)
    assert (await access(stub)).api_key == KEY


async def test_of_two_saves_at_one_revision_one_is_refused(stub) -> None:
    await stub.SaveSettings(save(DOCUMENT), context=PERSON)
    await stub.SaveSettings(save(with_model(default_model="n"), 1), context=PERSON)
    with pytest.raises(Aborted):
        await stub.SaveSettings(save(with_model(default_model="o"), 1), context=PERSON)
    found = await read(stub)
    assert (found.revision, json.loads(found.document_json)["model"]["default_model"]) == (2, "n")


DAMAGES: dict[str, LiteralString] = {
    "an unknown vendor": """UPDATE settings SET document = jsonb_set(document, '{model,vendor}', '"acme"')""",
    "no object": "UPDATE settings SET document = '[1, 1e400, null]'",
    "a secret in the clear": """
        UPDATE settings SET document = document || '{"memory": {"options": {"token": "sk-canary-of-this-test"}}}'
    """,
    "another seal": r"UPDATE settings SET secrets = '\x00'",
}


@pytest.mark.parametrize("statement", DAMAGES.values(), ids=DAMAGES)
async def test_a_damaged_row_leaves_the_former_document_in_effect(
    dsn: str, tmp_path: Path, statement: LiteralString
) -> None:
    async with vault(dsn, tmp_path) as stub:
        await stub.SaveSettings(save(DOCUMENT), context=PERSON)
        before = await access(stub)
    await damage(dsn, statement)
    async with vault(dsn, tmp_path) as stub:
        found = await read(stub)
        assert (found.revision, found.effective_revision, found.activation_status) == (2, 1, "failed")
        errors = json.loads(found.activation_errors_json)
        assert errors and all(error["message"] for error in errors)
        assert KEY.encode() not in found.SerializeToString()
        assert json.loads(found.document_json)["model"]["default_model"] == "m"
        assert await access(stub) == before

        # A sound save repairs it, and a mask still stands for the key in effect.
        with pytest.raises(Aborted):
            await stub.SaveSettings(save(with_model(api_key=MASK), 1), context=PERSON)
        await stub.SaveSettings(save(with_model(api_key=MASK), 2), context=PERSON)
        repaired = await read(stub)
        assert (repaired.effective_revision, repaired.activation_status) == (3, "active")
        assert await access(stub) == before
