"""The pytest fixtures; see the list in `kit.testing`."""

import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kit.embedded.nats import EmbeddedNats
from kit.embedded.postgres import EmbeddedPostgres
from kit.nats import Nats, connect
from kit.testing.clock import FixedClock
from kit.testing.swept import SweptDatabases

MakeDatabase = Callable[..., Awaitable[str]]


# Thousands of databases are made and dropped in a run. In memory that costs little, and does not stall the disk, whose
# syncs the tests of whole platforms wait for.
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30
_FOLDER = "MA_TEST_SERVERS"
_PREFIX = "ma-test-"


def pytest_configure(config: pytest.Config) -> None:
    """The process that leads the run chooses the folder; those of pytest-xdist inherit it."""
    if hasattr(config, "workerinput"):
        return
    base = Path(tempfile.gettempdir())
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES:
        base = _MEMORY
        _sweep(base)
    os.environ[_FOLDER] = str(base / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Whoever leads the run is the last to go."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(_FOLDER, ""), ignore_errors=True)


def _sweep(base: Path) -> None:
    """What killed runs left behind would take memory for ever."""
    for left in base.glob(f"{_PREFIX}*"):
        if not Path(f"/proc/{left.name.removeprefix(_PREFIX).partition('-')[0]}").exists():
            shutil.rmtree(left, ignore_errors=True)


@pytest.fixture(scope="session")
def server_folder() -> Path:
    """One folder for the run: the processes of pytest-xdist share its servers."""
    folder = Path(os.environ[_FOLDER])
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def postgres(server_folder: Path) -> Iterator[str]:
    """The superuser's DSN of a real server. It skips fsync: no test here cuts the power."""
    server = EmbeddedPostgres(server_folder / "postgres", settings={"fsync": "off", "max_wal_size": "256MB"})
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


@asynccontextmanager
async def connected(nats_url: str) -> AsyncIterator[Nats]:
    """A connection of a test's own."""
    connection = await connect(nats_url, "test")
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def nats(nats_url: str) -> AsyncIterator[Nats]:
    """A connection for one test."""
    async with connected(nats_url) as connection:
        yield connection


@pytest.fixture(scope="session")
def swept_databases(postgres: str) -> Iterator[SweptDatabases]:
    """Databases that the tests of this process have one after the other."""
    databases = SweptDatabases(postgres)
    try:
        yield databases
    finally:
        databases.close()


@pytest.fixture
async def make_database(swept_databases: SweptDatabases) -> AsyncIterator[MakeDatabase]:
    """Makes databases without a row, as many as are asked for."""
    async with swept_databases.maker() as make:
        yield make


@pytest.fixture
def clock() -> FixedClock:
    """A clock that the test moves."""
    return FixedClock()
