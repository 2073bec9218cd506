"""Makes the message that a runner gets with a turn.

What a session is made of changes rarely, so it is kept here, by revision. The context is
read from the log only where the runner does not know it and the turn's own transaction
did not write all of it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime

from kit.clock import Clock
from kit.postgres import Database
from managed_agents.sessions.v1 import sessions_pb2, turns_pb2
from services.sessions.domain import budget
from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.move import Moved
from services.sessions.domain.session_state import SessionState
from services.sessions.operations.announcer import event_message
from services.sessions.operations.waiting_room import Seat
from services.sessions.store.contexts import ContextStore
from services.sessions.store.sessions import SessionRecord, Sessions
from services.sessions.store.threads import ThreadStore

MAX_CONTEXT_EVENTS = 200
MAX_CONTEXT_BYTES = 1_000_000
_MAX_KEPT = 2_000

Render = Callable[[SessionRecord, datetime], sessions_pb2.Session]


class Grants:
    """Builds grants for the turns of this replica."""

    def __init__(self, database: Database, clock: Clock, render: Render, lease_seconds: float) -> None:
        self._database = database
        self._clock = clock
        self._render = render
        self._lease_seconds = lease_seconds
        self._kept: OrderedDict[str, tuple[int, sessions_pb2.Session, bytes, str]] = OrderedDict()

    async def build(self, moved: Moved, seat: Seat) -> turns_pb2.TurnGrant | None:
        """The grant of the turn that `moved` gave to the runner of a seat; None where the session is gone."""
        state = moved.state
        described = await self._describe(state)
        if described is None:
            return None
        session, environment, parent_thread_id = described
        known_seq = min(seat.cached.get(state.id, 0), state.last_seq)
        after_seq, context, complete = await self._context(moved, known_seq)
        message = turns_pb2.TurnGrant(
            workspace_id=state.workspace_id,
            session=session,
            epoch=state.turn_epoch,
            attempt=state.turn_attempt,
            lease_seconds=self._lease_seconds,
            thread_id=state.thread_id,
            context=[event_message(event) for event in context],
            context_after_seq=after_seq,
            context_complete=complete,
            context_starts_anew=after_seq > known_seq,
            traceparent=state.traceparent,
            environment_json=environment,
            interrupt_seq=state.interrupt_seq,
            budget_reached=await self._is_budget_reached(state),
            root_session_id=state.root_id,
            parent_thread_id=parent_thread_id,
            session_revision=state.revision,
        )
        message.session.last_seq = state.last_seq
        # A runner tells by it whether this turn answers calls that waited, or comes after a failed one.
        message.session.stop_reason_json = state.stop_reason.encode()
        message.session.status = sessions_pb2.SESSION_STATUS_RUNNING
        return message

    async def _describe(self, state: SessionState) -> tuple[sessions_pb2.Session, bytes, str] | None:
        kept = self._kept.get(state.id)
        if kept is not None and kept[0] == state.revision:
            self._kept.move_to_end(state.id)
            return kept[1], kept[2], kept[3]
        async with self._database.read(state.workspace_id) as tx:
            record = await Sessions(tx).get(state.id)
            root = await Sessions(tx).get(state.root_id) if state.root_id else None
        if record is None:
            return None
        parent_thread_id = root.row.thread_id if root else ""
        session = self._render(record, self._clock.now())
        # A session shows its model without the effort that its agent asks for; the runner needs it.
        session.agent.model_json = record.agent_model.encode()
        environment = record.row.environment.encode()
        if root is not None:
            session.resources_json = root.row.resources.encode()
        self._kept[state.id] = (record.row.revision, session, environment, parent_thread_id)
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return session, environment, parent_thread_id

    async def _is_budget_reached(self, state: SessionState) -> bool:
        if not state.root_id or state.budget in (None, budget.REMOVED):
            return budget.is_reached(state)
        async with self._database.read(state.workspace_id) as tx:
            return await ThreadStore(tx).is_budget_spent(state.root_id)

    async def _context(self, moved: Moved, after_seq: int) -> tuple[int, Sequence[LoggedEvent], bool]:
        """Where the context that the runner needs begins, what fits of it, and whether that is all."""
        if after_seq >= moved.before.last_seq:
            events = [event for event in moved.events if event.in_context and event.seq > after_seq]
        else:
            async with self._database.read(moved.state.workspace_id) as tx:
                after_seq, events = await ContextStore(tx).begin(
                    moved.state.id, after_seq, moved.state.last_seq, MAX_CONTEXT_EVENTS + 1
                )
        return after_seq, *_capped(events)


def _capped(events: Sequence[LoggedEvent]) -> tuple[Sequence[LoggedEvent], bool]:
    """As many events as one message takes, and whether these are all."""
    size = 0
    for index, event in enumerate(events):
        size += len(event.body)
        if index >= MAX_CONTEXT_EVENTS or (size > MAX_CONTEXT_BYTES and index > 0):
            return events[:index], False
    return events, True
