"""The world that tests of outside agents start in."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from kit.testing.fixtures import MakeDatabase
from services.sessions.app import MIGRATIONS
from tests.integration.runner.harness import World, world
from tests.support.sandboxes import known_host


@pytest.fixture(scope="package", autouse=True)
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This one, looked at once."""
    with known_host(tmp_path_factory.mktemp("host")):
        yield


@pytest.fixture
def sessions_settings() -> dict[str, Any]:
    """What a module wants to be other than the default in the sessions service."""
    return {}


@pytest.fixture
async def platform(
    make_database: MakeDatabase, nats_url: str, sessions_settings: dict[str, Any]
) -> AsyncIterator[World]:
    """Sessions and vault, and no runner yet."""
    async with world(await make_database("sessions", MIGRATIONS), nats_url, **sessions_settings) as made:
        yield made
