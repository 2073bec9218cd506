"""What a running platform has in its database, read past its services."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from kit.embedded.postgres import EmbeddedPostgres
from kit.postgres import Database
from tests.support.platform import Platform

SCHEMAS = ["sessions", "vault", "scheduler", "worker"]
# Rows that come and go by themselves.
_MOVING = ("outbox", "processed_messages", "ticker_leases", "ended_sessions", "polling_workers")


@contextmanager
def database_of(platform: Platform) -> Iterator[psycopg.Connection]:
    """The superuser's connection to the embedded database."""
    address = EmbeddedPostgres(platform.data_dir / "postgres").address()
    with psycopg.connect(make_conninfo(address, dbname="managed_agents"), autocommit=True) as connection:
        yield connection


def snapshot(connection: psycopg.Connection) -> dict[str, tuple[Any, ...] | None]:
    """Number and digest of the rows of each table that only requests change."""
    tables = connection.execute(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY(%s) ORDER BY 1, 2", [SCHEMAS]
    ).fetchall()
    found = {}
    for schema, table in tables:
        if table in _MOVING:
            continue
        read = sql.SQL(
            "SELECT count(*), coalesce(md5(string_agg(md5(t::text), '' ORDER BY md5(t::text))), '') FROM {} t"
        )
        found[f"{schema}.{table}"] = connection.execute(read.format(sql.Identifier(schema, table))).fetchone()
    return found


async def cut_connections(postgres: str, database: Database) -> None:
    """End every connection of one test's database; the server is shared with other tests."""
    async with database.platform_read() as tx:
        (name,) = await tx.one("SELECT current_database()")
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as admin:
        await admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [name])


def turns_under_way(connection: psycopg.Connection) -> int:
    """How many sessions have a turn that waits or runs."""
    return connection.execute("SELECT count(*) FROM sessions.turns").fetchone()[0]
