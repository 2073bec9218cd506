"""Sealing every stored value under the newest version of the master key, while everything goes on.

Only the wrapped data key of a value is replaced, and only if the value is still the one
that was read, so a save in between wins. Nothing is locked meanwhile and no order matters:
a run that is killed leaves values under both versions, all of which open, and the next run
of any replica goes on with those that are left.
"""

from __future__ import annotations

import asyncio

from kit import failpoints
from kit.errors import DomainError
from kit.postgres import Database
from kit.telemetry import log
from services.vault.domain.errors import SealBroken
from services.vault.domain.sealing import Sealer
from services.vault.store.sealed import COLUMNS, SealedColumn, SealedRow, SealedStore

BATCH = 100
LOOK_SECONDS = 1.0


class Rewrapper:
    """The run of one replica, whenever the version that seals has changed, and once at the start."""

    def __init__(self, database: Database, sealer: Sealer, *, batch: int = BATCH, look_seconds: float = LOOK_SECONDS):
        self._database = database
        self._sealer = sealer
        self._batch = batch
        self._look_seconds = look_seconds
        self._woken = asyncio.Event()
        self._done: bytes | None = None

    def wake(self) -> None:
        """There may be a new version."""
        self._woken.set()

    async def run(self) -> None:
        """Looks until cancelled; what fails now is tried again at the next look."""
        while True:
            self._woken.clear()
            try:
                await self.rewrap_if_changed()
            except DomainError as error:
                log.warning("values could not be sealed anew", reason=error.reason, error=str(error.message))
            try:
                async with asyncio.timeout(self._look_seconds):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def rewrap_if_changed(self) -> None:
        """One look."""
        current = await self._sealer.keys.current_key_id()
        if current == self._done:
            return
        changed, broken = 0, 0
        for column in COLUMNS:
            done, failed = await self._rewrap(column)
            changed, broken = changed + done, broken + failed
        self._done = current
        if changed or broken:
            log.info("values are sealed anew", count=changed, broken=broken)

    async def _rewrap(self, column: SealedColumn) -> tuple[int, int]:
        prefix = await self._sealer.current_prefix()
        after, changed, broken = None, 0, 0
        while True:
            async with self._database.platform_read() as tx:
                waiting = await SealedStore(tx).waiting(column, prefix, after, self._batch)
            fresh: list[tuple[SealedRow, bytes]] = []
            for row in waiting:
                try:
                    fresh.append((row, await self._sealer.rewrap(row.sealed, associated=row.row)))
                except SealBroken as error:
                    broken += 1
                    log.error("a value does not open and stays as it is", table=column.table, error=str(error.message))
            async with self._database.platform_transaction() as tx:
                for row, sealed in fresh:
                    changed += await SealedStore(tx).replace(column, row, sealed)
            await failpoints.point("vault.rewrap.batch")
            if len(waiting) < self._batch:
                return changed, broken
            after = waiting[-1].key
