"""A queue for each test."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.testing.fixtures import MakeDatabase
from tests.integration.queue.harness import Queue, queue


@pytest.fixture
async def ground(make_database: MakeDatabase, nats_url: str) -> AsyncIterator[Queue]:
    # Short, since the path of a socket may not be long.
    with tempfile.TemporaryDirectory(prefix="ma-q-") as folder:
        async with queue(make_database, nats_url, Path(folder)) as made:
            yield made
