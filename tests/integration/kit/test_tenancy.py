"""Workspaces are kept apart by the server itself, in every table of every schema, whatever a statement forgets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import services.scheduler.app
import services.sessions.app
import services.vault.app
import services.worker.queue.app
from kit import postgres as kit_postgres
from kit.errors import Internal
from kit.postgres import Database
from kit.tenancy import EVERY_WORKSPACE, SETTING, unprotected
from tests.architecture.test_contracts import PLATFORM_TABLES

SCHEMAS = {
    "sessions": services.sessions.app.MIGRATIONS,
    "vault": services.vault.app.MIGRATIONS,
    "scheduler": services.scheduler.app.MIGRATIONS,
    "worker": services.worker.queue.app.MIGRATIONS,
}
OURS, THEIRS = "wrkspc_a", "wrkspc_b"
# A value of each type that any column takes once its checks are gone.
VALUES = {
    "text": "'x'",
    "int2": "1",
    "int4": "1",
    "int8": "1",
    "float8": "1",
    "numeric": "1",
    "bool": "false",
    "bytea": "'x'::bytea",
    "json": "'{}'",
    "jsonb": "'{}'",
    "timestamptz": "now()",
    "_text": "'{}'",
}
SHOW = f"SELECT current_setting('{SETTING}', true)"


async def tenants(connection: Any, schema: str) -> dict[str, dict[str, str]]:
    """Tables with a workspace, and of each the columns that an insert must name, with their types."""
    cursor = await connection.execute(
        """
        SELECT c.relname, a.attname, t.typname
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
        WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind IN ('r', 'p')
          AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = '' AND a.attgenerated = ''
          AND (a.attnotnull AND NOT a.atthasdef OR a.attname = 'workspace_id')
        """,
        {"schema": schema},
    )
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in await cursor.fetchall():
        found.setdefault(table, {})[column] = kind
    return {table: columns for table, columns in found.items() if "workspace_id" in columns}


def insert(table: str, columns: dict[str, str], workspace: str) -> Any:
    values = [f"'{workspace}'" if name == "workspace_id" else VALUES[kind] for name, kind in columns.items()]
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        names,
        sql.SQL(", ").join(map(sql.SQL, values)),  # type: ignore[arg-type]
    )


async def loosen(admin: Any, schema: str) -> None:
    """Take away what says more about a row than whose it is."""
    cursor = await admin.execute(
        "SELECT conrelid::regclass::text, conname FROM pg_constraint "
        "WHERE connamespace = %s::regnamespace AND contype IN ('c', 'f') ORDER BY contype DESC",
        [schema],
    )
    for table, name in await cursor.fetchall():
        drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {} CASCADE")
        await admin.execute(drop.format(sql.SQL(table), sql.Identifier(name)))


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_no_row_of_another_workspace_is_seen_or_written(make_database: Any, postgres: str, schema: str) -> None:
    dsn = await make_database(schema, SCHEMAS[schema])
    place = conninfo_to_dict(dsn)
    bare = make_conninfo(dsn, options="")
    as_admin = make_conninfo(postgres, dbname=place["dbname"], options=f"-c search_path={schema}")
    async with await psycopg.AsyncConnection.connect(as_admin, autocommit=True) as admin:
        await loosen(admin, schema)
        tables = await tenants(admin, schema)
        await admin.execute("SET session_replication_role TO replica")
        for table, columns in tables.items():
            await admin.execute(insert(table, columns, THEIRS))
    for workspace in (OURS, "", None, f"{THEIRS}x"):
        async with await psycopg.AsyncConnection.connect(bare, autocommit=True) as connection:
            if workspace is not None:
                await connection.execute("SELECT set_config(%s, %s, false)", [SETTING, workspace])
            for table, columns in tables.items():
                name = sql.Identifier(table)
                seen = await connection.execute(sql.SQL("SELECT count(*) FROM {}").format(name))
                assert await seen.fetchone() == (0,), table
                changed = await connection.execute(sql.SQL("UPDATE {} SET workspace_id = 'mine'").format(name))
                removed = await connection.execute(sql.SQL("DELETE FROM {}").format(name))
                assert (changed.rowcount, removed.rowcount) == (0, 0), table
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await connection.execute(insert(table, columns, THEIRS))
    for workspace in (THEIRS, EVERY_WORKSPACE):
        async with await psycopg.AsyncConnection.connect(bare, autocommit=True) as connection:
            await connection.execute("SELECT set_config(%s, %s, false)", [SETTING, workspace])
            for table in tables:
                seen = await connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table)))
                assert await seen.fetchone() == (1,), table
                if workspace == THEIRS:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        give = sql.SQL("UPDATE {} SET workspace_id = 'wrkspc_a'")
                        await connection.execute(give.format(sql.Identifier(table)))


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_no_table_is_left_out(make_database: Any, schema: str) -> None:
    dsn = await make_database(schema, SCHEMAS[schema])
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        assert await unprotected(connection, schema) == []
        cursor = await connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p')", [schema]
        )
        tables = {name for (name,) in await cursor.fetchall()}
        apart = set(await tenants(connection, schema))
    assert tables - apart <= PLATFORM_TABLES.keys(), "a table without workspace_id has to say why it needs none"


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_the_roles_of_services_are_subject_to_it(make_database: Any, schema: str) -> None:
    async with await psycopg.AsyncConnection.connect(await make_database(schema, SCHEMAS[schema])) as connection:
        cursor = await connection.execute("SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user")
        assert await cursor.fetchone() == (False, False)


@pytest.fixture
async def dsn(make_database: Any, tmp_path: Path) -> str:
    (tmp_path / "0001_initial.sql").write_text("CREATE TABLE notes (id serial PRIMARY KEY, workspace_id text NOT NULL)")
    return await make_database("notes", tmp_path)


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    database = Database(dsn, "notes", max_connections=2)
    await database.open()
    yield database
    await database.close()


class _Upset(Exception):
    pass


async def one_step(database: Database, kind: str, workspace: str | None, ending: str) -> None:
    """Some work, and that it saw its own workspace whatever went before on the connection."""
    ways = {
        "read": database.platform_read() if workspace is None else database.read(workspace),
        "statements": database.platform_statements() if workspace is None else database.statements(workspace),
        "transaction": database.platform_transaction() if workspace is None else database.transaction(workspace),
        "relaxed": database.platform_transaction(relaxed=True)
        if workspace is None
        else database.transaction(workspace, relaxed=True),
    }
    used = ways.pop(kind)
    try:
        async with used as tx:
            assert await tx.one(SHOW) == (workspace or EVERY_WORKSPACE,)
            if ending == "fails":
                await tx.execute("SELECT 1 / 0")
            if ending == "raises":
                raise _Upset
            assert await tx.one(SHOW) == (workspace or EVERY_WORKSPACE,)
    except (_Upset, psycopg.errors.DivisionByZero):
        assert ending != "ends"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "statements", "transaction", "relaxed"]),
        st.sampled_from([None, "wrkspc_a", "wrkspc_b", "wrkspc_it's"]),
        st.sampled_from(["ends", "fails", "raises"]),
    ),
    max_size=25,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_whatever_went_before_work_sees_its_own_workspace(database: Database, steps: Any) -> None:
    for kind, workspace, ending in steps:
        await one_step(database, kind, workspace, ending)


async def test_work_of_many_tenants_at_once_stays_apart(database: Database) -> None:
    chance = random.Random(7)
    kinds, endings = ("read", "statements", "transaction", "relaxed"), ("ends", "fails", "raises")
    steps = [
        (chance.choice(kinds), chance.choice([None, *(f"wrkspc_{n}" for n in range(5))]), chance.choice(endings))
        for _ in range(200)
    ]
    await asyncio.gather(*(one_step(database, *step) for step in steps))


async def test_the_work_of_one_tenant_beside_the_platforms_sends_nothing_more(
    dsn: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    setting = kit_postgres._setting
    monkeypatch.setattr(kit_postgres, "_setting", lambda workspace: told.append(workspace) or setting(workspace))
    for _ in range(50):
        for workspace in ("wrkspc_a", None):
            await one_step(database, "transaction", workspace, "ends")
            await one_step(database, "read", workspace, "ends")
    assert told == ["wrkspc_a"]


async def test_platform_work_that_stays_in_one_workspace_is_kept_there(database: Database) -> None:
    for within, shown in ((("wrkspc_a",), "wrkspc_a"), (("wrkspc_a", "wrkspc_b"), "*"), ((), "*"), (None, "*")):
        async with database.platform_transaction(within=within) as tx:
            assert await tx.one(SHOW) == (shown,)
        async with database.platform_statements(within=within) as tx:
            assert await tx.one(SHOW) == (shown,)


async def test_a_tenant_can_not_be_everybody(database: Database) -> None:
    for way in (database.read, database.statements, database.transaction):
        with pytest.raises(Internal):
            async with way(EVERY_WORKSPACE):
                pass
