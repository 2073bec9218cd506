"""The master key: a wrong or lost one stops the vault and touches nothing; new versions replace it without a pause."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from kit.config import ConfigError
from kit.errors import FailedPrecondition, PermissionDenied
from kit.testing import await_until
from managed_agents.vault.v1 import injections_pb2 as injections
from managed_agents.vault.v1 import vaults_pb2 as pb
from services.vault.app import MIGRATIONS, SCHEMA
from services.vault.store.sealed import COLUMNS
from tests.integration.vault.driver import OPERATOR, PERSON, RUNNER, SECRET, Vault, variable, vault, vault_process

PROCESS = injections.INJECTION_TARGET_KIND_PROCESS
# Digests, and answers without any secret: nothing in them is sealed.
PLAIN = {("idempotency", "fingerprint"), ("idempotency", "response"), ("outbox", "payload")}
PLAIN |= {("api_keys", "sha256"), ("worker_keys", "sha256")}


@pytest.fixture
async def dsn(make_database) -> str:
    return await make_database(SCHEMA, MIGRATIONS)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret.key"
    path.write_text(SECRET + "\n")
    return path


async def dump(dsn: str) -> list[str]:
    """Every row of every table, and where it lies: whatever was written anew is another."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        found = await connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'vault' ORDER BY 1"
        )
        rows: list[str] = []
        for (table,) in await found.fetchall():
            text = sql.SQL("SELECT {}, ctid::text, to_jsonb(t)::text FROM {} t ORDER BY 2")
            answer = await connection.execute(text.format(sql.Literal(table), sql.Identifier(table)))
            rows += [str(row) for row in await answer.fetchall()]
    return rows


async def filled(service: Vault, count: int = 4) -> tuple[str, dict[str, str]]:
    """A vault with secrets, and what they are."""
    held = await service.create()
    wanted = {f"KEY_{number}": f"the value number {number}" for number in range(count)}
    for name, value in wanted.items():
        await service.add(held.id, variable(name, value, unrestricted=True))
    return held.id, wanted


async def opened(service: Vault, vault_id: str) -> dict[str, str]:
    found = await service.resolve(vault_id, target=PROCESS)
    return {each.name: each.value for each in found.injections}


async def state(service: Vault) -> pb.SealingState:
    return (await service.sealing.GetSealingState(pb.GetSealingStateRequest(), context=OPERATOR)).state


async def is_done(service: Vault) -> bool:
    return (await state(service)).rows_to_rewrap == 0


async def rotate(service: Vault) -> pb.SealingState:
    return (await service.sealing.RotateMasterKey(pb.RotateMasterKeyRequest(), context=OPERATOR)).state


@pytest.mark.parametrize("secret", ["another secret of enough length", SECRET[:-1], SECRET + "x"])
async def test_a_wrong_key_stops_the_vault_and_touches_nothing(dsn: str, tmp_path: Path, secret: str) -> None:
    async with vault(dsn, tmp_path) as service:
        await filled(service)
    before = await dump(dsn)
    with pytest.raises(ConfigError, match="The secret key is not the one") as refusal:
        async with vault(dsn, tmp_path, secret_key=secret):
            pass
    assert secret not in str(refusal.value) and len(str(refusal.value).splitlines()) == 1
    assert "key file" in str(refusal.value) and "MANAGED_AGENTS_SECRET_KEY" in str(refusal.value)
    assert await dump(dsn) == before
    async with vault(dsn, tmp_path) as service:
        assert await is_done(service)


async def test_a_wrong_key_stops_the_vault_before_it_migrates_anything(make_database: Any, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for path in sorted(MIGRATIONS.glob("*.sql"))[:1]:
        (old / path.name).write_text(path.read_text())
    dsn = await make_database(SCHEMA, old)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("INSERT INTO master_key_checks (id, sealed) VALUES (1, 'of another key')")
    before = await dump(dsn)
    with pytest.raises(ConfigError, match="The secret key is not the one"):
        async with vault(dsn, tmp_path):
            pass
    assert await dump(dsn) == before


async def test_a_lost_key_stops_the_vault_by_name(dsn: str, tmp_path: Path, key_file: Path) -> None:
    async with vault(dsn, tmp_path, secret_key_file=key_file) as service:
        await filled(service)
    before = await dump(dsn)
    lose(key_file)
    with pytest.raises(ConfigError, match=r"secret\.key.*can't be read"):
        async with vault(dsn, tmp_path, secret_key_file=key_file):
            pass
    assert await dump(dsn) == before


async def test_a_new_version_seals_everything_while_two_replicas_serve(
    dsn: str, tmp_path: Path, key_file: Path
) -> None:
    async with (
        vault(dsn, tmp_path, secret_key_file=key_file) as one,
        vault(dsn, tmp_path, name="b", secret_key_file=key_file) as other,
    ):
        vault_id, wanted = await filled(one)
        first = await state(one)
        assert (first.provider, first.versions, first.rows_to_rewrap, first.sealed_rows) == ("keyfile", 1, 0, 6)

        stopped = asyncio.Event()

        async def work(service: Vault) -> int:
            """What goes on meanwhile: each answer is whole, whichever version a row is under."""
            answers = 0
            while not stopped.is_set():
                assert await opened(service, vault_id) == wanted
                await service.add((await service.create()).id, variable("MORE", unrestricted=True))
                answers += 1
            return answers

        working = [asyncio.create_task(work(service)) for service in (one, other)]
        for versions in (2, 3):
            begun = await rotate(one if versions == 2 else other)
            assert begun.versions == versions and begun.key_id != first.key_id
            for service in (one, other):
                await await_until(lambda service=service: is_done(service))
        stopped.set()
        assert all(count > 0 for count in await asyncio.gather(*working))
        assert await opened(one, vault_id) == await opened(other, vault_id) == wanted

    newest = secrets_of(key_file)[-1]
    async with vault(dsn, tmp_path, secret_key=newest) as service:
        assert await opened(service, vault_id) == wanted, "nothing is left that needs a former version"
    with pytest.raises(ConfigError):
        async with vault(dsn, tmp_path):
            pass


def lose(path: Path) -> None:
    path.unlink()


def secrets_of(path: Path) -> list[str]:
    return [version["secret"] for version in json.loads(path.read_text())["versions"]]


def put_secrets(path: Path, found: list[str]) -> None:
    versions = [{"secret": secret} for secret in found]
    path.write_text(json.dumps({"format": "managed-agents keyfile 1", "versions": versions}))


@pytest.mark.parametrize("passes", [1, 5])
async def test_a_rotation_goes_on_after_a_kill(dsn: str, tmp_path: Path, key_file: Path, passes: int) -> None:
    async with vault(dsn, tmp_path, secret_key_file=key_file) as service:
        vault_id, wanted = await filled(service)
    # A version that came while nobody looked: what a start finds after a kill in the middle.
    fresh = "a newer secret of enough length"
    put_secrets(key_file, [SECRET, fresh])
    async with vault_process(
        dsn, tmp_path, failpoints=f"vault.rewrap.batch=kill@{passes}", secret_key_file=str(key_file)
    ) as process:
        await await_until(lambda: process.poll() is not None, timeout=30)
    assert process.returncode == -signal.SIGKILL
    async with vault(dsn, tmp_path, secret_key_file=key_file) as service:
        assert await opened(service, vault_id) == wanted
        await await_until(lambda: is_done(service))
        assert await opened(service, vault_id) == wanted
    async with vault(dsn, tmp_path, secret_key=fresh) as service:
        assert await opened(service, vault_id) == wanted


async def test_a_secret_of_the_environment_is_replaced_by_naming_the_former_one(dsn: str, tmp_path: Path) -> None:
    async with vault(dsn, tmp_path) as service:
        vault_id, wanted = await filled(service)
        with pytest.raises(FailedPrecondition, match="MANAGED_AGENTS_FORMER_SECRET_KEY"):
            await rotate(service)
    newer = "a newer secret of enough length"
    async with vault(dsn, tmp_path, secret_key=newer, former_secret_key=SECRET) as service:
        assert await opened(service, vault_id) == wanted
        await await_until(lambda: is_done(service))
        assert (await state(service)).provider == "secret"
    async with vault(dsn, tmp_path, secret_key=newer) as service:
        assert await opened(service, vault_id) == wanted


async def test_a_value_that_does_not_open_is_left_and_the_rest_goes_on(
    dsn: str, tmp_path: Path, key_file: Path
) -> None:
    async with vault(dsn, tmp_path, secret_key_file=key_file) as service:
        vault_id, wanted = await filled(service)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute("UPDATE credentials SET sealed = sealed || 'x' WHERE key = 'KEY_0'")
            await connection.execute("UPDATE credentials SET sealed = 'broken' WHERE key = 'KEY_1'")
        await rotate(service)

        async def left() -> bool:
            return (await state(service)).rows_to_rewrap == 1

        await await_until(left)
        request = injections.ListInjectionsRequest(vault_ids=[vault_id])
        listed = await service.injections.ListInjections(request, context=RUNNER)
        assert {each.name for each in listed.injections} == set(wanted)


async def test_only_the_operator_looks_after_the_key(dsn: str, tmp_path: Path) -> None:
    async with vault(dsn, tmp_path) as service:
        for caller in (PERSON, RUNNER):
            with pytest.raises(PermissionDenied):
                await service.sealing.GetSealingState(pb.GetSealingStateRequest(), context=caller)
            with pytest.raises(PermissionDenied):
                await service.sealing.RotateMasterKey(pb.RotateMasterKeyRequest(), context=caller)


async def test_every_sealed_column_is_known(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        found = await connection.execute(
            """
            SELECT table_name, column_name FROM information_schema.columns
            WHERE table_schema = 'vault' AND data_type = 'bytea'
            """
        )
        columns = set(await found.fetchall())
    assert columns - PLAIN == {(column.table, column.column) for column in COLUMNS}
