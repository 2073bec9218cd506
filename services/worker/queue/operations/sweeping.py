"""What nobody asks for: lapsed claims, lost hints, items whose waiter is gone, and what is kept no longer.

While nobody waits on this replica it leaves the database alone, but for a look every `HOUSEKEEPING_SECONDS`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from kit.errors import DomainError, Unavailable
from kit.postgres import Database
from kit.telemetry import log
from services.worker.queue.domain import item as rules
from services.worker.queue.operations.desk import Decide, Desk, Job
from services.worker.queue.operations.intake import Intake
from services.worker.queue.operations.matching import Matching
from services.worker.queue.operations.pool import Pool
from services.worker.queue.operations.stopping import Stopping
from services.worker.queue.operations.waiting_room import WaitingRoom
from services.worker.queue.operations.waits import Waits
from services.worker.queue.store.pending import PendingStore
from services.worker.queue.store.records import RecordStore
from services.worker.queue.store.work_items import WorkItemStore

HOUSEKEEPING_SECONDS = 30.0
AT_ONCE = 500
MAX_FORGET_ROUNDS = 100
# After that the sessions service alone knows which sessions have ended, and is asked before anything is handed out.
KEEP_SESSIONS_SECONDS = 14 * 86_400.0


class Sweeping:
    """The sweeps of one replica; several may run side by side."""

    def __init__(
        self,
        database: Database,
        desk: Desk,
        room: WaitingRoom,
        pool: Pool,
        matching: Matching,
        intake: Intake,
        waits: Waits,
        stopping: Stopping,
        *,
        keep_seconds: float,
        look_seconds: float,
    ) -> None:
        self._database = database
        self._desk = desk
        self._room = room
        self._pool = pool
        pool.lapse = self.lapse
        self._matching = matching
        self._intake = intake
        self._waits = waits
        self._stopping = stopping
        # What else is to be tidied up now and then.
        self.also: list[Callable[[], Awaitable[Any]]] = []
        self._keep_seconds = keep_seconds
        self._look_seconds = look_seconds

    async def run(self) -> None:
        """For the life of the process."""
        cleaned_at = float("-inf")
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await self.look()
                if time.monotonic() - cleaned_at >= HOUSEKEEPING_SECONDS:
                    cleaned_at = time.monotonic()
                    await self.clean()
            except Unavailable as error:
                log.warning("the queue could not be swept", error=str(error))
            except Exception:
                log.exception("the queue could not be swept")

    async def look(self) -> None:
        """For those who wait here: claims that lapsed, items and ends that no hint told of."""
        if workspaces := self._room.workspaces():
            await self.lapse()
            await self._look_for_items(workspaces)
        if waited_for := self._waits.some(AT_ONCE):
            async with self._database.platform_read() as tx:
                silence = self._waits.silence.total_seconds()
                ended, silent = await WorkItemStore(tx).over_among(waited_for, silence)
            await self._decide(silent, self._waits.expire)
            if ended:
                self._waits.tell(await self._intake.read(ended))

    async def lapse(self) -> None:
        """Claims that nobody accepted in time are for others to take."""
        async with self._database.platform_read() as tx:
            lapsed = await PendingStore(tx).lapsed(AT_ONCE)
        await self._decide(lapsed, rules.lapse)

    async def hear_ended(self, item_id: str) -> None:
        """Another replica ended an item that may be waited for here."""
        if self._waits.is_waited_for(item_id):
            self._waits.tell(await self._intake.read([item_id]))

    async def clean(self) -> None:
        """Items that nobody waits for any more, and rows that are kept no longer."""
        await self.lapse()
        async with self._database.platform_read() as tx:
            store = PendingStore(tx)
            overdue = await store.overdue(self._waits.silence.total_seconds(), AT_ONCE)
            ended = await store.of_ended_sessions(AT_ONCE)
        await self._decide(overdue, self._waits.expire)
        await self._stopping.stop(ended)
        async with self._database.platform_statements() as tx:
            records = RecordStore(tx)
            for _ in range(MAX_FORGET_ROUNDS):
                if await records.forget_items(self._keep_seconds, AT_ONCE) < AT_ONCE:
                    break
            await records.forget_sessions(KEEP_SESSIONS_SECONDS)
        for tidy in self.also:
            await tidy()

    async def _look_for_items(self, workspaces: list[str]) -> None:
        waited_for: list[tuple[str, str]] = []
        unscoped: list[str] = []
        for workspace_id in workspaces:
            for environment_id, session_id in self._room.scopes(workspace_id):
                if session_id:
                    self._matching.look_into(workspace_id)
                elif environment_id:
                    waited_for.append((workspace_id, environment_id))
                else:
                    unscoped.append(workspace_id)
        if await self._pool.look(waited_for, unscoped):
            for workspace_id in workspaces:
                self._matching.look_into(workspace_id)

    async def _decide(self, item_ids: list[str], decide: Decide) -> None:
        for done in [self._desk.hand_in(Job(item_id, decide)) for item_id in item_ids]:
            try:
                await done
            except DomainError as error:
                log.debug("an item was not swept", error=str(error))
