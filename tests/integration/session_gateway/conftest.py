"""One platform for all files here; each test has an agent of its own.

A real gateway and a real sessions service; the runner does what each test says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from kit.testing.swept import SweptDatabases
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.gate import Gate, ground_of


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def ground(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[tuple[Gateway, Gate]]:
    async with ground_of(swept_databases, nats_url) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="package")
async def here(ground: tuple[Gateway, Gate]) -> Gate:
    return await ground[1].fresh()
