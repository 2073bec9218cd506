"""Which workers poll: noted in memory, told to the other replicas by a row now and then, and soon of a new one."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from kit.errors import DomainError
from kit.postgres import Database
from kit.telemetry import log
from services.worker.queue.store.session_items import PollingWorkers

WITHIN_SECONDS = 30.0
FLUSH_SECONDS = 10.0
# New workers that come within this time are stored together.
GATHER_SECONDS = 0.2
FORGET_SECONDS = 3600.0
MAX_WORKERS = 50_000


class Polling:
    """The workers that polled this replica."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # (workspace, environment, worker) → when; since the last flush.
        self._fresh: dict[tuple[str, str, str], float] = {}
        # The same for what is stored.
        self._stored: dict[tuple[str, str, str], float] = {}
        self._woken = asyncio.Event()

    def note(self, workspace_id: str, environment_id: str, worker_id: str) -> None:
        """A worker that names itself has polled."""
        if not worker_id or len(self._fresh) >= MAX_WORKERS:
            return
        worker, now = (workspace_id, environment_id, worker_id), time.monotonic()
        self._fresh[worker] = now
        if now - self._stored.get(worker, float("-inf")) > WITHIN_SECONDS:
            self._woken.set()

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
        self._stored = {worker: at for worker, at in self._stored.items() if now - at <= WITHIN_SECONDS} | noted

    async def run(self) -> None:
        """Stores now and then, and forgets who left; until cancelled."""
        forgotten_at = time.monotonic()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._woken.wait()
            self._woken.clear()
            await asyncio.sleep(GATHER_SECONDS)
            try:
                await self.flush()
                if time.monotonic() - forgotten_at > FORGET_SECONDS:
                    forgotten_at = time.monotonic()
                    async with self._database.platform_transaction(relaxed=True) as tx:
                        await PollingWorkers(tx).forget(FORGET_SECONDS)
            except DomainError as error:
                log.debug("polling workers were not stored", reason=error.reason)
