"""Everything that a handler needs to move a session.

    async with operations.unit(workspace_id) as unit:         # one transaction
        state = await unit.lock(session_id)
        await unit.apply(turn.stop(state, unit.now, new_event_id))
        …                                                    # further statements on unit.tx
    # committed, announced, and a ready turn is with a runner

    moved = await operations.move(workspace_id, session_id, decide)   # many callers, one commit

New sessions with initial events: insert the row by `unit.tx`, then
`await unit.append_client_events(state, events)` with the state of a fresh session.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kit.clock import Clock
from kit.errors import DomainError
from kit.postgres import Database
from kit.telemetry import inject, log
from services.sessions.domain import turn
from services.sessions.domain.move import Moved
from services.sessions.operations.announcer import Announcer
from services.sessions.operations.committer import Committer, Decide, Job
from services.sessions.operations.grants import Grants, Render
from services.sessions.operations.thread_budgets import ThreadBudgets
from services.sessions.operations.threads import ThreadOperations
from services.sessions.operations.unit import Unit, new_event_id, not_found, thread_not_found
from services.sessions.operations.waiting_room import WaitingRoom
from services.sessions.operations.writer import Writer, Written
from services.sessions.store.log import EventStored

__all__ = ["Operations", "Unit", "new_event_id", "not_found", "thread_not_found"]


class Operations:
    """Moves sessions, on behalf of rpcs and of the platform itself."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        room: WaitingRoom,
        announcer: Announcer,
        render: Render,
        *,
        lease_seconds: float,
    ) -> None:
        self.database = database
        self.clock = clock
        self.room = room
        self.lease_seconds = lease_seconds
        self.writer = Writer(
            room, announcer, Grants(database, clock, render, lease_seconds), lease_seconds, self.give_up
        )
        self.threads = ThreadOperations(self)
        self.thread_budgets = ThreadBudgets(self)
        self._committer = Committer(database, self.writer, clock, self._move_alone)

    async def stop(self) -> None:
        """Commits what was asked for, and hands out what was granted."""
        await self._committer.stop()
        await self.threads.stop()
        await self.writer.stop()

    @asynccontextmanager
    async def unit(self, workspace_id: str) -> AsyncIterator[Unit]:
        """A transaction of a caller's own; it is announced once it has committed."""
        written = Written()
        try:
            async with self.database.transaction(workspace_id) as tx:
                yield Unit(tx, self.writer, self.clock, written)
        except BaseException:
            self.writer.undo(written)
            raise
        await self.writer.settle(written)

    async def move(
        self, workspace_id: str, session_id: str, decide: Decide, *, event_ids: tuple[str, ...] = ()
    ) -> Moved:
        """Moves one session in a commit that it may share with others.

        `event_ids` are those of events that may be in the log already, where a repeat of
        the call is possible.
        """
        return await self._committer.submit(
            Job(workspace_id, session_id, decide, event_ids=event_ids, headers=inject())
        )

    async def give_up(self, workspace_id: str, session_id: str, epoch: int) -> None:
        """Returns a turn whose grant did not reach its runner. Should this fail, the lease runs out."""
        try:
            async with self.unit(workspace_id) as unit:
                state = await unit.lock(session_id)
                await unit.apply(turn.release(state, epoch, unit.now, new_event_id))
        except DomainError as error:
            log.info("a grant was not given back", session_id=session_id, reason=error.reason)

    async def _move_alone(self, job: Job) -> Moved:
        """One job in a transaction of its own, and once more where it may be a repeat of what is stored."""
        try:
            return await self._attempt(job, look_up=False)
        except (turn.MayBeRepeat, EventStored):
            return await self._attempt(job, look_up=True)

    async def _attempt(self, job: Job, *, look_up: bool) -> Moved:
        async with self.unit(job.workspace_id) as unit:
            state = await unit.lock(job.session_id)
            stored = await unit.stored_ids(job.session_id, list(job.event_ids)) if look_up else None
            return await unit.apply(job.decide(state, unit.now, stored))
