"""Which workers poll: counted from memory, told to the other replicas by a row now and then."""

from __future__ import annotations

import asyncio
import time

from kit.errors import DomainError
from kit.postgres import Database
from kit.telemetry import log
from services.worker.queue.store.session_items import PollingWorkers

WITHIN_SECONDS = 30.0
FLUSH_SECONDS = 10.0
FORGET_SECONDS = 3600.0
MAX_WORKERS = 50_000


class Polling:
    """The workers that polled this replica."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # (workspace, environment, worker) → when; since the last flush.
        self._fresh: dict[tuple[str, str, str], float] = {}

    def note(self, workspace_id: str, environment_id: str, worker_id: str) -> None:
        """A worker that names itself has polled."""
        if worker_id and len(self._fresh) < MAX_WORKERS:
            self._fresh[(workspace_id, environment_id, worker_id)] = time.monotonic()

    async def count(self, workspace_id: str, environment_id: str) -> int:
        """How many workers of an environment polled in the last 30 seconds, on any replica."""
        await self.flush()
        async with self._database.read(workspace_id) as tx:
            return await PollingWorkers(tx).count(environment_id, WITHIN_SECONDS)

    async def flush(self) -> None:
        """Stores what was noted."""
        if not self._fresh:
            return
        noted, self._fresh = self._fresh, {}
        now = time.monotonic()
        polls = [
            {"workspace_id": workspace, "environment_id": environment, "worker_id": worker, "age": now - at}
            for (workspace, environment, worker), at in noted.items()
        ]
        async with self._database.platform_transaction(relaxed=True) as tx:
            await PollingWorkers(tx).note(polls)

    async def run(self) -> None:
        """Stores now and then, and forgets who left; until cancelled."""
        forgotten_at = time.monotonic()
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.flush()
                if time.monotonic() - forgotten_at > FORGET_SECONDS:
                    forgotten_at = time.monotonic()
                    async with self._database.platform_transaction(relaxed=True) as tx:
                        await PollingWorkers(tx).forget(FORGET_SECONDS)
            except DomainError as error:
                log.debug("polling workers were not stored", reason=error.reason)
