"""What the vault drops by the clock: answers that were kept for repeats, when their day is over."""

from __future__ import annotations

import asyncio

from kit.errors import DomainError
from kit.idempotency import IdempotencyStore
from kit.postgres import Database
from kit.telemetry import log

PAUSE_SECONDS = 600.0


class Sweeper:
    """The sweep of one replica; several at once do no harm."""

    def __init__(self, database: Database, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._database = database
        self._pause_seconds = pause_seconds

    async def run(self) -> None:
        """Sweeps until cancelled; what fails now is tried again at the next look."""
        while True:
            await asyncio.sleep(self._pause_seconds)
            try:
                await self.sweep()
            except DomainError as error:
                log.warning("the sweep failed", reason=error.reason, error=error.message)

    async def sweep(self) -> int:
        """One look; how many were dropped."""
        async with self._database.platform_transaction() as tx:
            return await IdempotencyStore(tx).forget_expired()
