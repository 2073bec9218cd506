"""Servers for a worker, one for each protocol."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.sandboxes import known_host
from tests.support.session_server import SessionServer
from tests.support.work_server import WorkServer


@pytest.fixture(scope="package", autouse=True)
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This one, looked at once."""
    with known_host(tmp_path_factory.mktemp("host")):
        yield


@pytest.fixture
async def server() -> AsyncIterator[WorkServer]:
    async with WorkServer() as server:
        yield server


@pytest.fixture
async def sessions() -> AsyncIterator[SessionServer]:
    async with SessionServer() as server:
        yield server
