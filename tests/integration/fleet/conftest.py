"""Servers for a worker, one for each protocol."""

from collections.abc import AsyncIterator

import pytest

from tests.support.session_server import SessionServer
from tests.support.work_server import WorkServer


@pytest.fixture
async def server() -> AsyncIterator[WorkServer]:
    async with WorkServer() as server:
        yield server


@pytest.fixture
async def sessions() -> AsyncIterator[SessionServer]:
    async with SessionServer() as server:
        yield server
