"""What several files of this folder start from; a file that needs another kind of replica makes its own.

One replica serves all tests that only talk to one: `one`. Its database is emptied after each of them. Other databases
are emptied as well and come back to another test. Hence all tests here run in the loop of the package.
"""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import DeadlockDetected

from kit.nats import Nats
from kit.testing import await_until
from kit.testing.fixtures import MakeDatabase, connected
from kit.testing.swept import SweptDatabases
from services.sessions import app
from services.sessions.operations.waiting_room import WaitingRoom
from tests.integration.sessions.harness import MIGRATIONS, Harness, harness
from tests.integration.sessions.thread_driver import Coordinator, coordinator
from tests.integration.sessions.turn_driver import Replica, replica


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for sockets, short enough for their names."""
    with tempfile.TemporaryDirectory(prefix="ma-") as name:
        yield Path(name)


@pytest_asyncio.fixture(loop_scope="package")
async def nats(nats_url: str) -> AsyncIterator[Nats]:
    """A connection for one test."""
    async with connected(nats_url) as connection:
        yield connection


@dataclass
class Standing:
    """A replica that outlives a test."""

    dsn: str
    clients: Replica
    room: WaitingRoom
    # The superuser's.
    sweeper_dsn: str

    async def sweep(self) -> None:
        """As if it had just been started: nobody waits, and nothing is there."""
        # The runners of the test have left, but the replica may not have heard of it: it would still grant them turns.
        await await_until(lambda: not self.room._seats, timeout=30)
        while True:
            try:
                await self._empty()
                return
            except DeadlockDetected:
                # It met the replica's own sweep; one of the two goes first the next time.
                continue

    async def _empty(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.sweeper_dsn) as connection:
            # No order of tables is asked for by foreign keys then.
            await connection.execute("SET session_replication_role = replica")
            found = await connection.execute(
                # Sessions first: who writes to one holds its lock, so nothing is added to what goes next.
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'sessions'::regnamespace"
                " AND relname <> 'schema_migrations' AND pg_relation_size(oid) > 0 ORDER BY relname <> 'sessions'"
            )
            for (table,) in await found.fetchall():
                await connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier("sessions", table)))


@asynccontextmanager
async def standing(
    databases: SweptDatabases, postgres: str, nats_url: str, **settings: float
) -> AsyncIterator[Standing]:
    """A replica for many tests, on a database of its own."""
    room = WaitingRoom()
    with tempfile.TemporaryDirectory(prefix="ma-") as folder:
        async with databases.database("sessions", MIGRATIONS) as dsn, AsyncExitStack() as stack:
            with patch.object(app, "WaitingRoom", lambda: room):
                clients = await stack.enter_async_context(replica(dsn, nats_url, Path(folder), **settings))
            sweeper_dsn = make_conninfo(postgres, dbname=conninfo_to_dict(dsn)["dbname"])
            yield Standing(dsn, clients, room, sweeper_dsn)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def standing_one(swept_databases: SweptDatabases, postgres: str, nats_url: str) -> AsyncIterator[Standing]:
    """It sweeps often, and leases outlast a test: one that loses them lets them `lapse`."""
    async with standing(swept_databases, postgres, nats_url, lease_seconds=120, sweep_seconds=0.1) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="package")
async def swept_one(standing_one: Standing) -> AsyncIterator[Standing]:
    """The same, emptied after the test."""
    yield standing_one
    await standing_one.sweep()


@pytest_asyncio.fixture(loop_scope="package")
async def own_dsn(make_database: MakeDatabase) -> str:
    """A database without a replica."""
    return await make_database("sessions", MIGRATIONS)


@pytest.fixture
def dsn(request: pytest.FixtureRequest) -> str:
    """The database of `one` in a test that uses it, else one without a replica."""
    if "one" in request.fixturenames:
        return request.getfixturevalue("swept_one").dsn
    return request.getfixturevalue("own_dsn")


@pytest.fixture
def one(swept_one: Standing) -> Replica:
    """A replica that sweeps often; a test that needs another one beside it starts it on `dsn`."""
    return swept_one.clients


@pytest_asyncio.fixture(loop_scope="package")
async def lead(one: Replica) -> AsyncIterator[Coordinator]:
    """A coordinator of a writer, a critic and itself."""
    async with coordinator(one) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="package")
async def h(own_dsn: str, nats: Nats) -> AsyncIterator[Harness]:
    """The handlers without a process around them."""
    async with harness(own_dsn, nats) as started:
        yield started
