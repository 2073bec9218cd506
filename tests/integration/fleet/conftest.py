"""A server for a worker of the tool protocol."""

from collections.abc import AsyncIterator

import pytest

from tests.support.work_server import WorkServer


@pytest.fixture
async def server() -> AsyncIterator[WorkServer]:
    async with WorkServer() as server:
        yield server
