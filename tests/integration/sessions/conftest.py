"""What several files of this folder start from; a file that needs another kind of replica makes its own."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.nats import Nats
from kit.testing.fixtures import MakeDatabase
from tests.integration.sessions.harness import MIGRATIONS, Harness, harness
from tests.integration.sessions.thread_driver import Coordinator, coordinator
from tests.integration.sessions.turn_driver import Replica, replica


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for sockets, short enough for their names."""
    with tempfile.TemporaryDirectory(prefix="ma-") as name:
        yield Path(name)


@pytest.fixture
async def dsn(make_database: Any) -> str:
    """A fresh database."""
    return await make_database("sessions", MIGRATIONS)


@pytest.fixture
async def one(dsn: str, nats_url: str, folder: Path) -> AsyncIterator[Replica]:
    """A replica that sweeps often."""
    async with replica(dsn, nats_url, folder, sweep_seconds=0.1) as clients:
        yield clients


@pytest.fixture
async def lead(one: Replica) -> AsyncIterator[Coordinator]:
    """A coordinator of a writer, a critic and itself."""
    async with coordinator(one) as made:
        yield made


@pytest.fixture
async def h(make_database: MakeDatabase, nats: Nats) -> AsyncIterator[Harness]:
    """The handlers without a process around them."""
    async with harness(await make_database("sessions", MIGRATIONS), nats) as started:
        yield started
