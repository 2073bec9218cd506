"""One transaction that moves sessions, and what it needs."""

from datetime import datetime

from kit.clock import Clock
from kit.ids import new_id
from kit.postgres import Tx
from kit.telemetry import inject, traceparent
from services.sessions.domain import turn
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.move import Moved
from services.sessions.domain.session_errors import SessionNotFound, ThreadNotFound
from services.sessions.domain.session_state import SessionState
from services.sessions.operations.writer import Writer, Written, unchanged
from services.sessions.store.log import MAX_TAIL, LogStore
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
        """Saves a move of a locked (or just inserted) session; what was saved, with the grant that went with it."""
        if unchanged(moved):
            return moved
        (saved,) = await self._writer.write(self.tx, [(moved, inject())], self._written)
        return saved

    def heard(self, root_id: str) -> None:
        """This transaction carries the news of a session's threads itself."""
        self._written.roots = {root for root in self._written.roots if root[1] != root_id}

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


def not_found(session_id: str) -> SessionNotFound:
    """The refusal for an id that the workspace does not have."""
    return SessionNotFound(f"Session not found: {session_id}", session_id=session_id)


def thread_not_found(session_id: str, thread_id: str) -> ThreadNotFound:
    """The refusal for a thread that a session does not have."""
    return ThreadNotFound(
        f"Session {session_id} has no thread {thread_id}.", session_id=session_id, thread_id=thread_id
    )
