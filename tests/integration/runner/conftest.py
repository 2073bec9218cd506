"""The world that tests of the runner start in."""

from collections.abc import AsyncIterator, Iterator

import pytest

from services.sessions.app import MIGRATIONS
from tests.integration.runner.harness import World, world
from tests.support.sandboxes import known_host


@pytest.fixture(scope="package", autouse=True)
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This one, looked at once."""
    with known_host(tmp_path_factory.mktemp("host")):
        yield


@pytest.fixture
def sessions_settings(request: pytest.FixtureRequest) -> dict:
    """What a module, or a test by its parameter, wants to be other than the default in the sessions service."""
    return getattr(request, "param", {})


@pytest.fixture
async def platform(make_database, nats_url, sessions_settings) -> AsyncIterator[World]:
    """Sessions and vault, and no runner yet."""
    async with world(await make_database("sessions", MIGRATIONS), nats_url, **sessions_settings) as made:
        yield made
