"""Plain SQL migrations, forward only.

    await migrate(settings.database_dsn(), "sessions", Path(__file__).parent / "migrations")

Files are named `0001_initial.sql` and applied in order, each in one transaction together with its record. Processes
that start together queue at an advisory lock; the later ones find nothing left to do. A file that was applied must not
change: its checksum is kept and compared. A file that waits longer than 4 s for a lock is rolled back and tried again,
so a migration never stalls the traffic behind it. A first line `-- no-transaction` is for statements that refuse to
run in one (CREATE INDEX CONCURRENTLY); such a file holds exactly one statement and must be safe to repeat.

After the files, every table that has a `workspace_id` is put under row-level security; see `kit.tenancy`.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql

from kit.config import SecretStr, reveal
from kit.telemetry import log
from kit.tenancy import EVERY_WORKSPACE, SETTING, protect, unprotected, warn_if_above

_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_NO_TRANSACTION = "-- no-transaction"
_LOCK_SECONDS = 4
_ATTEMPTS = 5
_CONNECT_SECONDS = 30

_RECORDS: LiteralString = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name text PRIMARY KEY,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


class MigrationError(Exception):
    """The schema can't be brought to what this code needs."""


@dataclass(frozen=True, slots=True)
class _Migration:
    name: str
    text: str
    checksum: str


async def migrate(dsn: str | SecretStr, schema: str, folder: Path) -> list[str]:
    """Bring the schema up to date; the names of the files that were applied by this call."""
    migrations = _read(folder)
    async with await _connect(reveal(dsn)) as connection:
        await _lock(connection, schema)
        await _enter_schema(connection, schema)
        await connection.execute(_RECORDS)
        cursor = await connection.execute("SELECT name, checksum FROM schema_migrations ORDER BY name")
        applied: dict[str, str] = dict(await cursor.fetchall())
        _compare(schema, applied, migrations)
        waiting = [migration for migration in migrations if migration.name not in applied]
        for migration in waiting:
            await _apply(connection, schema, migration)
        for table in await unprotected(connection, schema):
            await _patiently(lambda table=table: protect(connection, table), schema, f"security of {table}")
        await warn_if_above(connection)
        return [migration.name for migration in waiting]


async def _connect(dsn: str) -> psycopg.AsyncConnection[Any]:
    """Wait for a server that is just starting, but not for ever."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return await psycopg.AsyncConnection.connect(dsn, autocommit=True, connect_timeout=5)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)


async def _lock(connection: psycopg.AsyncConnection[Any], schema: str) -> None:
    """Asked for again and again, since a session that waits inside a statement would block CONCURRENTLY for ever."""
    while True:
        cursor = await connection.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [f"migrate {schema}"])
        if (await cursor.fetchone()) == (True,):
            return
        await asyncio.sleep(0.1)


def _read(folder: Path) -> list[_Migration]:
    paths = sorted(folder.glob("*.sql"))
    if not paths:
        raise MigrationError(f"{folder} holds no migration.")
    for number, path in enumerate(paths, start=1):
        found = _FILE_NAME.fullmatch(path.name)
        if found is None or int(found[1]) != number:
            raise MigrationError(f"{path} should be named {number:04d}_what_it_does.sql: no gap, no number twice.")
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [
        _Migration(path.name, text, hashlib.sha256(text.encode()).hexdigest())
        for path, text in zip(paths, texts, strict=True)
    ]


def _compare(schema: str, applied: dict[str, str], migrations: list[_Migration]) -> None:
    """Refuse a changed file. Unknown applied ones are of a newer release that runs beside this one: that's allowed."""
    for migration in migrations:
        checksum = applied.get(migration.name, migration.checksum)
        if checksum != migration.checksum:
            raise MigrationError(f"{migration.name} was applied to schema {schema} with another content. Add a file.")


async def _enter_schema(connection: psycopg.AsyncConnection[Any], schema: str) -> None:
    name = sql.Identifier(schema)
    found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema])
    if await found.fetchone() is None:
        await connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
    await connection.execute(sql.SQL("SET search_path TO {}").format(name))
    # Files change rows of every workspace.
    set_workspace = sql.SQL("SELECT set_config({}, {}, false)")
    await connection.execute(set_workspace.format(sql.Literal(SETTING), sql.Literal(EVERY_WORKSPACE)))
    await connection.execute(sql.SQL("SET lock_timeout TO {}").format(sql.Literal(f"{_LOCK_SECONDS * 1000:.0f}ms")))


async def _apply(connection: psycopg.AsyncConnection[Any], schema: str, migration: _Migration) -> None:
    await _patiently(lambda: _run(connection, migration), schema, migration.name)
    log.info("migration applied", schema=schema, migration=migration.name)


async def _patiently(change: Callable[[], Awaitable[None]], schema: str, name: str) -> None:
    """Try a change again that waited too long for a lock."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await change()
        except psycopg.errors.LockNotAvailable:
            if attempt == _ATTEMPTS:
                raise
            log.warning("migration waits for a lock", schema=schema, migration=name, attempt=attempt)
            await asyncio.sleep(attempt)
        else:
            return


async def _run(connection: psycopg.AsyncConnection[Any], migration: _Migration) -> None:
    text = cast(LiteralString, migration.text)
    record: LiteralString = "INSERT INTO schema_migrations (name, checksum) VALUES (%s, %s)"
    if migration.text.startswith(_NO_TRANSACTION):
        await connection.execute(text)
        await connection.execute(record, [migration.name, migration.checksum])
        return
    async with connection.transaction():
        await connection.execute(text)
        await connection.execute(record, [migration.name, migration.checksum])
