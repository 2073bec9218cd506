"""The pytest fixtures; see the list in `kit.testing`."""

import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kit.embedded.nats import EmbeddedNats
from kit.embedded.postgres import EmbeddedPostgres
from kit.nats import Nats, connect
from kit.testing.clock import FixedClock
from kit.testing.database import database
from kit.testing.swept import SweptDatabases

MakeDatabase = Callable[..., Awaitable[str]]


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for the run: the processes of pytest-xdist share its servers."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        with tempfile.TemporaryDirectory(prefix="ma-test-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    else:
        yield tmp_path_factory.getbasetemp().parent / "servers"


@pytest.fixture(scope="session")
def postgres(server_folder: Path) -> Iterator[str]:
    """The superuser's DSN of a real server. It skips fsync: no test here cuts the power."""
    server = EmbeddedPostgres(server_folder / "postgres", settings={"fsync": "off"})
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def nats_url(server_folder: Path) -> Iterator[str]:
    """The URL of a real server with JetStream."""
    server = EmbeddedNats(server_folder / "nats")
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
async def nats(nats_url: str) -> AsyncIterator[Nats]:
    """A connection for one test."""
    connection = await connect(nats_url, "test")
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def make_database(postgres: str) -> AsyncIterator[MakeDatabase]:
    """Makes fresh databases, and drops them after the test."""
    async with AsyncExitStack() as stack:

        async def make(schema: str, folder: Path | None = None) -> str:
            return await stack.enter_async_context(database(postgres, schema, folder))

        yield make


@pytest.fixture(scope="session")
def swept_databases(postgres: str) -> Iterator[SweptDatabases]:
    """Databases that the tests of this process have one after the other."""
    databases = SweptDatabases(postgres)
    try:
        yield databases
    finally:
        databases.close()


@pytest.fixture
def clock() -> FixedClock:
    """A clock that the test moves."""
    return FixedClock()
