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
from datetime import datetime

from kit.clock import Clock
from kit.errors import DomainError
from kit.ids import new_id
from kit.postgres import Database, Tx
from kit.telemetry import inject, log, traceparent
from services.sessions.domain import turn
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.move import Moved
from services.sessions.domain.session_errors import SessionNotFound
from services.sessions.domain.session_state import SessionState
from services.sessions.operations.announcer import Announcer
from services.sessions.operations.committer import Committer, Decide, Job
from services.sessions.operations.grants import Grants, Render
from services.sessions.operations.waiting_room import WaitingRoom
from services.sessions.operations.writer import Writer, Written, unchanged
from services.sessions.store.log import MAX_TAIL, EventStored, LogStore
from services.sessions.store.turns import TurnStore


def new_event_id() -> str:
    """The id of an event that this service writes."""
    return new_id("sevt")


class Unit:
    """One transaction that moves sessions of one workspace, and what it will tell once it commits."""

    def __init__(self, tx: Tx, writer: Writer, clock: Clock, written: Written) -> None:
        self.tx = tx
        self.now: datetime = clock.now()
        self._writer = writer
        self._written = written

    async def lock(self, session_id: str) -> SessionState:
        """The session, held until the transaction ends; SessionNotFound for any other."""
        state = await TurnStore(self.tx).lock(session_id)
        if state is None:
            raise not_found(session_id)
        return state

    async def apply(self, moved: Moved) -> Moved:
        """Saves a move of a locked (or just inserted) session."""
        if not unchanged(moved):
            await self._writer.write(self.tx, [(moved, inject())], self._written)
        return moved

    async def append_client_events(self, state: SessionState, events: list[ClientEvent]) -> Moved:
        """Appends a client's events to a session that this transaction holds or has inserted."""
        return await self.apply(
            turn.append_client_events(state, events, self.now, new_event_id, traceparent=traceparent())
        )

    async def open_work(self, state: SessionState) -> list[LoggedEvent]:
        """The end of the context, where a turn may have left something open that this transaction is to close."""
        if not turn.may_have_open_work(state):
            return []
        return await LogStore(self.tx).newest_context(state.id, MAX_TAIL)

    async def stored_ids(self, session_id: str, event_ids: list[str]) -> frozenset[str]:
        """Which of these events are in the session's log."""
        return await LogStore(self.tx).stored_ids(session_id, event_ids)


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
        self._committer = Committer(database, self.writer, clock, self._move_alone)

    async def stop(self) -> None:
        """Commits what was asked for, and hands out what was granted."""
        await self._committer.stop()
        await self.writer.stop()

    @asynccontextmanager
    async def unit(self, workspace_id: str, *, relaxed: bool = False) -> AsyncIterator[Unit]:
        """A transaction of a caller's own; it is announced once it has committed."""
        written = Written()
        try:
            async with self.database.transaction(workspace_id, relaxed=relaxed) as tx:
                yield Unit(tx, self.writer, self.clock, written)
        except BaseException:
            self.writer.undo(written)
            raise
        await self.writer.settle(written)

    async def move(
        self,
        workspace_id: str,
        session_id: str,
        decide: Decide,
        *,
        event_ids: tuple[str, ...] = (),
        relaxed: bool = False,
    ) -> Moved:
        """Moves one session in a commit that it may share with others.

        `event_ids` are those of events that may be in the log already, where a repeat of
        the call is possible.
        """
        return await self._committer.submit(
            Job(workspace_id, session_id, decide, event_ids=event_ids, relaxed=relaxed, headers=inject())
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
        async with self.unit(job.workspace_id, relaxed=job.relaxed) as unit:
            state = await unit.lock(job.session_id)
            stored = await unit.stored_ids(job.session_id, list(job.event_ids)) if look_up else None
            return await unit.apply(job.decide(state, unit.now, stored))


def not_found(session_id: str) -> SessionNotFound:
    """The refusal for an id that the workspace does not have."""
    return SessionNotFound(f"Session not found: {session_id}", session_id=session_id)
