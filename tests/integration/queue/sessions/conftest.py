"""Two replicas on one database for all files here; each test has an environment of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest.mock import patch

import pytest
import pytest_asyncio

from kit.testing.swept import SweptDatabases
from tests.integration.queue.sessions.ground import Ground, Replica, session_ground


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[tuple[Ground, Replica, Replica]]:
    """Two replicas on one database; at the second, workers may be silent for a second only."""
    with patch("services.worker.queue.operations.session_duties.RETRY_SECONDS", 0.1):
        async with (
            session_ground(swept_databases, nats_url) as made,
            made.replica() as patient,
            made.replica(ttl_seconds=1) as strict,
        ):
            yield made, patient, strict


@pytest.fixture
def ground(shared: tuple[Ground, Replica, Replica]) -> Ground:
    shared[0].anew()
    return shared[0]


@pytest.fixture
def queue(shared: tuple[Ground, Replica, Replica], ground: Ground) -> Replica:
    return shared[1].of(ground.environment_id)


@pytest.fixture
def strict(shared: tuple[Ground, Replica, Replica], ground: Ground) -> Replica:
    return shared[2].of(ground.environment_id)
