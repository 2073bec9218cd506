"""StepsService: conversations of the HTTP agent protocol as sessions.

A step is one transaction: the conversation's row, the session where it is new, the events
that the step brings, and the step itself. What it is answered with is read from the log.
"""

from typing import Any

from kit import failpoints
from kit.rpc.context import current_context
from managed_agents.sessions.v1.steps_pb2 import TakeStepRequest, TakeStepResponse
from managed_agents.sessions.v1.steps_pb2_grpc import StepsServiceServicer
from services.sessions.domain import steps
from services.sessions.domain.errors import AgentNotFound
from services.sessions.domain.inbound import USER_INTERRUPT, ClientEvent
from services.sessions.domain.move import Moved
from services.sessions.domain.session import NewSession, read_new_session
from services.sessions.domain.session_errors import SessionEnded, SessionNotFound
from services.sessions.domain.session_state import SessionState
from services.sessions.domain.step_sessions import FirstStep, begin
from services.sessions.domain.steps import Step, TakenStep
from services.sessions.handlers.definitions import can_exist, read_body
from services.sessions.handlers.events import EventsHandlers
from services.sessions.handlers.sessions import SessionsHandlers
from services.sessions.operations.core import Operations, Unit
from services.sessions.store.agents import AgentStore
from services.sessions.store.steps import StepStore


class StepsHandlers(StepsServiceServicer):
    """StepsService, over the handlers that make sessions and append to them."""

    def __init__(self, operations: Operations, sessions: SessionsHandlers, events: EventsHandlers) -> None:
        self._operations = operations
        self._sessions = sessions
        self._events = events

    async def TakeStep(self, request: TakeStepRequest, context: Any) -> TakeStepResponse:
        """Takes a step, or finds it taken."""
        workspace_id = current_context().workspace_id
        step = steps.read_step(read_body(request.body_json), request.key)
        agent_id = request.agent_id
        if not can_exist(agent_id):
            raise AgentNotFound("Agent not found.")
        first = await self._first(workspace_id, agent_id, step)
        async with self._operations.unit(workspace_id) as unit:
            store = StepStore(unit.tx)
            if first is not None and await store.claim(agent_id, step, first[0].conversation, unit.now):
                return await self._begin(unit, store, agent_id, step, first[1])
            return await self._go_on(unit, store, agent_id, step)

    async def _first(self, workspace_id: str, agent_id: str, step: Step) -> tuple[FirstStep, NewSession] | None:
        """What a new conversation is to be made of; None where it goes on."""
        async with self._operations.database.read(workspace_id) as tx:
            if await StepStore(tx).is_known(agent_id, step.digest):
                return None
            agent = await AgentStore(tx).load(agent_id)
        steps.require_message(step)
        first = begin(agent, step)
        new = read_new_session(first.body, published=False)
        new, refusal = await self._sessions.prepared(workspace_id, new)
        if refusal is not None:
            raise refusal
        return first, new

    async def _begin(
        self, unit: Unit, store: StepStore, agent_id: str, step: Step, new: NewSession
    ) -> TakeStepResponse:
        admitted, state = await self._sessions.insert(unit.tx, new, unit.now)
        await store.name_session(agent_id, step.digest, admitted.row.id)
        return await self._take(unit, store, step, state, steps.events_of(step, state) or [], number=1)

    async def _go_on(self, unit: Unit, store: StepStore, agent_id: str, step: Step) -> TakeStepResponse:
        conversation = await store.hold(agent_id, step.digest)
        session_id = conversation.session_id
        steps.refuse_changes(step, conversation)
        newest = await store.newest(session_id)
        former = steps.repeated(
            step,
            newest=newest,
            named=await store.named(session_id, step.key) if step.key is not None else None,
            same=await store.same(session_id, step.fingerprint) if step.results else None,
        )
        if former is not None:
            return TakeStepResponse(
                session_id=session_id, first_seq=former.first_seq, number=former.number, repeated=True
            )
        state = await _lock(unit, session_id)
        events = steps.events_of(step, state)
        if events is None:
            return TakeStepResponse(session_id=session_id, first_seq=state.last_seq, busy=True)
        number = newest.number + 1 if newest is not None else 1
        return await self._take(unit, store, step, state, events, number=number)

    async def _take(
        self, unit: Unit, store: StepStore, step: Step, state: SessionState, events: list[ClientEvent], *, number: int
    ) -> TakeStepResponse:
        moved = await self._events.append_in(unit, state, events)
        taken = TakenStep(number, step.fingerprint, _first_seq(state, moved))
        await store.add(state.id, step, taken, unit.now)
        await failpoints.point("sessions.step.before_commit")
        return TakeStepResponse(session_id=state.id, first_seq=taken.first_seq, number=number)


async def _lock(unit: Unit, session_id: str) -> SessionState:
    try:
        return await unit.lock(session_id)
    except SessionNotFound:
        raise SessionEnded(
            f"Session {session_id} was deleted, and its conversation takes no further step.", session_id=session_id
        ) from None


def _first_seq(before: SessionState, moved: Moved) -> int:
    """Where the step begins: behind the interrupt that gave up what the former one left open."""
    brought = (event.seq for event in moved.client_events if event.type != USER_INTERRUPT)
    return next(brought, before.last_seq + 1)
