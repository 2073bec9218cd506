"""What each kind of client event does to a session in each phase."""

from collections.abc import Callable
from dataclasses import replace

import orjson

from services.sessions.domain import answers, outcome
from services.sessions.domain.inbound import (
    SYSTEM_MESSAGE,
    THREAD_MESSAGE,
    USER_DEFINE_OUTCOME,
    USER_INTERRUPT,
    USER_MESSAGE,
    USER_TOOL_RESULT,
    ClientEvent,
)
from services.sessions.domain.log import Draft
from services.sessions.domain.move import END_TURN, Move, Signal
from services.sessions.domain.session_errors import InvalidEventType, InvalidRequest, InvalidSystemMessage
from services.sessions.domain.session_state import Phase, SessionState, TurnState, UnreadInput, phase_of


def check_threads(state: SessionState, events: list[ClientEvent]) -> None:
    """Refuses a request that names a thread which the session doesn't have, or has closed."""
    known = [state.thread_id, *(entry.id for entry in state.threads.live)] if state.threads else [state.thread_id]
    for index, event in enumerate(events):
        if event.type == USER_INTERRUPT and event.fields.get("session_thread_id", state.thread_id) not in known:
            field = f"events.{index}.session_thread_id"
            raise InvalidRequest(
                f"{field} names no open thread of session {state.id}. It has: {', '.join(known)}; without"
                " session_thread_id every thread is meant.",
                field=field,
                session_id=state.id,
            )


def check_workers(state: SessionState, events: list[ClientEvent]) -> None:
    """Refuses what only workers send where no worker runs the session's tools."""
    for index, event in enumerate(events):
        if event.type == USER_TOOL_RESULT and not state.on_worker:
            raise InvalidEventType(
                f"events.{index}: user.tool_result is only taken in self_hosted environments whose workers serve whole"
                " sessions (worker_protocol session).",
                field=f"events.{index}.type",
            )


def take(move: Move, draft: Draft, event: ClientEvent, traceparent: str) -> None:
    """Stores one client event and does what it asks for; an event outside the table is only stored."""
    if event.thread_id:
        # It was meant for a thread, which takes it in the same transaction.
        _store(move, replace(draft, posted=True), event, traceparent)
        return
    _CLIENT_TABLE.get((phase_of(move.state), event.type), _store)(move, draft, event, traceparent)


def _store(move: Move, draft: Draft, _event: ClientEvent, _traceparent: str) -> None:
    move.append_input(draft)


def _start(move: Move, draft: Draft, _event: ClientEvent, traceparent: str) -> None:
    move.append_input(draft)
    move.begin_turn(traceparent)


def _queue(move: Move, draft: Draft, _event: ClientEvent, _traceparent: str) -> None:
    # What comes in one request with the event that starts the turn is read with it.
    move.append_input(draft, read=move.running_is_due, starts_turn=draft.type == USER_MESSAGE)
    state = move.state
    if state.turn_state is TurnState.LEASED:
        move.signal = move.signal or Signal(state.turn_holder, state.id, state.turn_epoch)


def _declare(move: Move, draft: Draft, event: ClientEvent, traceparent: str) -> None:
    # Taken on receipt, so never shown as unread; but a turn that runs has yet to read it.
    outcome.require_free(move.state.outcome, move.state.id)
    logged = move.append_input(outcome.identified(draft, event.fields))
    outcome.declare(move, logged, draft, event.fields)
    state = move.state
    if phase_of(state) is Phase.IDLE:
        move.begin_turn(traceparent)
    elif not move.running_is_due:
        state.unread += (UnreadInput(logged.seq, starts_turn=True),)
        if state.turn_state is TurnState.LEASED:
            move.signal = move.signal or Signal(state.turn_holder, state.id, state.turn_epoch)


def _queue_thread_message(move: Move, draft: Draft, _event: ClientEvent, _traceparent: str) -> None:
    # Delivered is processed, by its published type; but a turn that runs has yet to read it.
    logged = move.append_input(draft)
    state = move.state
    state.unread += (UnreadInput(logged.seq, starts_turn=True),)
    if state.turn_state is TurnState.LEASED:
        move.signal = move.signal or Signal(state.turn_holder, state.id, state.turn_epoch)


def _refuse_while_parked(move: Move, draft: Draft, event: ClientEvent, traceparent: str) -> None:
    if move.thread_shown or not event.published:
        # Only the published contract keeps it from a session that waits; one that waits for threads that run is none.
        _queue(move, draft, event, traceparent)
        return
    raise InvalidSystemMessage(
        "A session that waits for answers takes no system.message; answer the pending calls first.",
        session_id=move.state.id,
    )


def _interrupt_waiting(move: Move, draft: Draft, event: ClientEvent, traceparent: str) -> None:
    if move.state.turn_attempt or move.state.pending:
        _interrupt_held(move, draft, event, traceparent)
        return
    logged = move.append_input(draft)
    outcome.close_interrupted(move, logged.seq)
    if not move.input_waits():
        move.close_turn(END_TURN)


def _interrupt_held(move: Move, draft: Draft, _event: ClientEvent, _traceparent: str) -> None:
    logged = move.append_input(draft)
    state = move.state
    state.interrupt_seq = logged.seq
    move.unawait_running()
    if state.turn_state is TurnState.LEASED:
        move.signal = Signal(state.turn_holder, state.id, state.turn_epoch, interrupt_seq=logged.seq)


def _interrupt_parked(move: Move, draft: Draft, _event: ClientEvent, traceparent: str) -> None:
    logged = move.append_input(draft)
    move.give_up_calls()
    outcome.close_interrupted(move, logged.seq)
    if move.input_waits():
        move.begin_turn(traceparent)
    else:
        move.close_turn(END_TURN)


def _answer(move: Move, draft: Draft, event: ClientEvent, traceparent: str) -> None:
    state = move.state
    call, fields = answers.match(state, event)
    was_parked = phase_of(state) is Phase.PARKED
    move.append_input(replace(draft, fields=orjson.dumps(fields)))
    if answers.lets_worker_run(call.kind, call.by_worker, event):
        state.pending = answers.allowed(state.pending, call)
        return
    state.pending = answers.answered(state.pending, call)
    if was_parked and all(pending.answered for pending in state.pending):
        move.begin_turn(traceparent)
    elif state.turn_state is TurnState.LEASED:
        # A worker sees a call before the turn that made it waits for it.
        move.signal = move.signal or Signal(state.turn_holder, state.id, state.turn_epoch)


_CLIENT_TABLE: dict[tuple[Phase, str], Callable[[Move, Draft, ClientEvent, str], None]] = {
    (Phase.IDLE, USER_MESSAGE): _start,
    (Phase.READY, USER_MESSAGE): _queue,
    (Phase.LEASED, USER_MESSAGE): _queue,
    (Phase.PARKED, USER_MESSAGE): _queue,
    (Phase.READY, SYSTEM_MESSAGE): _queue,
    (Phase.LEASED, SYSTEM_MESSAGE): _queue,
    (Phase.PARKED, SYSTEM_MESSAGE): _refuse_while_parked,
    (Phase.READY, USER_INTERRUPT): _interrupt_waiting,
    (Phase.LEASED, USER_INTERRUPT): _interrupt_held,
    (Phase.PARKED, USER_INTERRUPT): _interrupt_parked,
    (Phase.IDLE, THREAD_MESSAGE): _start,
    **{(phase, THREAD_MESSAGE): _queue_thread_message for phase in (Phase.READY, Phase.LEASED, Phase.PARKED)},
    **{(phase, USER_DEFINE_OUTCOME): _declare for phase in Phase},
    **{(phase, answer): _answer for phase in Phase for answer in answers.ANSWER_FIELDS},
}
