"""Stops the work of a session: what is pending ends, and who holds an item is told with the next heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from kit.postgres import Database
from services.worker.queue.domain import item as rules
from services.worker.queue.domain.errors import WorkItemNotFound
from services.worker.queue.operations.desk import Desk, Job, Settled
from services.worker.queue.store.work_items import WorkItemStore


class Stopping:
    """Stops items through the desk."""

    def __init__(self, database: Database, desk: Desk) -> None:
        self._database = database
        self._desk = desk

    async def end_session(self, workspace_id: str, session_id: str) -> int:
        """A session has ended for good: what it has and whatever is still put in for it is stopped."""
        # Committed before its items are looked for, so that those that come later find it.
        async with self._database.platform_statements() as tx:
            await WorkItemStore(tx).note_ended(workspace_id, session_id)
        return await self.stop_session(workspace_id, session_id)

    async def stop_session(self, workspace_id: str, session_id: str, only: Collection[str] = ()) -> int:
        """Stops what a session has now, or those of its items that are named; how many were stopped by this."""
        async with self._database.platform_read() as tx:
            found = await WorkItemStore(tx).live_of_session(session_id)
        named = set(only)
        return await self.stop([item_id for item_id in found if not named or item_id in named], workspace_id)

    async def stop(self, item_ids: Collection[str], workspace_id: str = "") -> int:
        """Stops items; how many were stopped by this."""
        jobs = [Job(item_id, rules.stop, workspace_id=workspace_id) for item_id in item_ids]
        outcomes = await asyncio.gather(*(self._desk.hand_in(job) for job in jobs), return_exceptions=True)
        stopped = 0
        for outcome in outcomes:
            if isinstance(outcome, Settled):
                stopped += outcome.item is not outcome.before
            elif not isinstance(outcome, WorkItemNotFound):
                raise outcome
        return stopped
