"""The world that tests of outside agents start in."""

from collections.abc import AsyncIterator

import pytest

from kit.testing.fixtures import MakeDatabase
from services.sessions.app import MIGRATIONS
from tests.integration.runner.harness import World, world


@pytest.fixture
async def platform(make_database: MakeDatabase, nats_url: str) -> AsyncIterator[World]:
    """Sessions and vault, and no runner yet."""
    async with world(await make_database("sessions", MIGRATIONS), nats_url) as made:
        yield made
