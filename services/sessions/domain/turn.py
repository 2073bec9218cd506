"""The state machine of a session's turn: pure functions from a state and a command to a move.

    phase      message      interrupt       answer          turn append     end               others
    ─────────  ───────────  ──────────────  ──────────────  ──────────────  ────────────────  ───────────────────────
    IDLE       → READY      stored          refused         repeat/refused  repeat/refused    stop → ENDED
    READY      queued       fresh: → IDLE   refused         repeat/refused  repeat/refused    grant → LEASED
                            else: noted                                                       stop → ENDED
    LEASED     queued       noted, holder   refused         → LEASED        → IDLE, PARKED,   expire → READY, IDLE
                            is signalled                                    or LEASED if      release → READY
                                                                            input waits       stop → ENDED
    PARKED     queued       → IDLE, or      → PARKED, or    repeat/refused  repeat/refused    stop → ENDED
                            READY if        READY with the
                            input waits     last answer
    ENDED      refused      refused         refused         refused         refused           nothing moves

READY is fresh until a runner has held the turn, unless answers resumed it: no call can be
open then, and an interrupt ends the turn without a runner. Otherwise the runner that gets
the turn closes it, since it knows how far it came.

Epochs: a grant takes the next one, and so does everything that takes a turn from its
holder. A turn that ends by its own append keeps its epoch; so an append with the current
epoch and no lease can only be a repeat of what ended the turn, and an append with another
epoch is stale.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import orjson

from services.sessions.domain import budget, compaction, inputs, turn_events
from services.sessions.domain.cost import Charge, read_spend
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.leftovers import ENDED_TEXT, closing_events
from services.sessions.domain.log import Draft, LoggedEvent
from services.sessions.domain.move import END_TURN, RETRIES_EXHAUSTED, Move, Moved
from services.sessions.domain.outcome import close_ended, close_interrupted, follow_evaluation, follow_request
from services.sessions.domain.session_errors import SessionEnded, SessionRunning
from services.sessions.domain.session_state import (
    CallKind,
    PendingCall,
    Phase,
    SessionState,
    Status,
    TokenUsage,
    TurnState,
    phase_of,
)
from services.sessions.domain.thread_news import without_second_results
from services.sessions.domain.thread_state import awaited
from services.sessions.domain.turn_errors import TurnLeaseLost

# Grants of one turn that may be lost before the turn is given up.
MAX_LOST_ATTEMPTS = 3

NewId = Callable[[], str]


class EndKind(StrEnum):
    """Why a runner ends a turn."""

    END_TURN = "end_turn"
    REQUIRES_ACTION = "requires_action"
    REFUSAL = "refusal"
    RETRIES_EXHAUSTED = "retries_exhausted"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    BUDGET_REACHED = "budget_reached"


@dataclass(frozen=True, slots=True)
class End:
    """How a runner ends a turn."""

    kind: EndKind
    # For REQUIRES_ACTION: the calls that wait.
    parked: tuple[PendingCall, ...] = ()
    stop_details: Any = None
    # For BUDGET_REACHED of a thread beside the primary one: whether its session is at its ceiling.
    at_ceiling: bool = False


@dataclass(frozen=True, slots=True)
class TurnAppend:
    """What a runner wrote."""

    epoch: int
    known_seq: int
    events: tuple[Draft, ...] = ()
    usage: TokenUsage | None = None
    end: End | None = None
    # Ids of `events` that are in the log already. Left out until a repeat shows.
    stored_ids: frozenset[str] | None = None
    # `usage` by model, priced.
    charges: tuple[Charge, ...] = ()


class MayBeRepeat(Exception):
    """Whether an append is a repeat depends on which of its events are stored."""


def append_client_events(
    state: SessionState, events: list[ClientEvent], now: datetime, new_id: NewId, *, traceparent: str = ""
) -> Moved:
    """Stores what a client sent, all or none, and starts, feeds, answers or interrupts the turn."""
    if phase_of(state) is Phase.ENDED:
        raise SessionEnded(f"Session {state.id} has ended and takes no events.", session_id=state.id)
    inputs.check_workers(state, events)
    inputs.check_threads(state, events)
    move = Move(state, now, new_id)
    for event in budget.admitted(state, events):
        inputs.take(move, Draft(new_id(), event.type, orjson.dumps(event.fields)), event, traceparent)
    if phase_of(move.state) is Phase.PARKED and move.state.pending != state.pending:
        move.write_waiting()
    return move.finish()


def append_turn_events(state: SessionState, command: TurnAppend, now: datetime, new_id: NewId) -> Moved:
    """Stores what a runner wrote under its epoch, and ends the turn where it says so.

    MayBeRepeat asks for the same command with `stored_ids`; TurnLeaseLost where the
    epoch is not the current one.
    """
    if command.epoch != state.turn_epoch:
        raise TurnLeaseLost(state.id, command.epoch)
    if state.turn_state is not TurnState.LEASED:
        return _answer_repeat(state, command)
    move = Move(state, now, new_id)
    stored = command.stored_ids or frozenset()
    fresh = [draft for draft in command.events if draft.id not in stored]
    if state.pending:
        fresh = without_second_results(move, fresh)
    for draft in fresh:
        _follow(move, draft, command.known_seq)
        move.append(draft)
    if command.usage is not None and _is_news(state, command, fresh):
        move.state.usage = move.state.usage + command.usage
        if state.threads is not None:
            own_usage = state.threads.own_usage + command.usage
            move.state.threads = replace(state.threads, own_usage=own_usage)
        move.state.spend = read_spend(move.state.spend).plus(command.charges).dump()
    if command.end is not None:
        move.ended = _END_TABLE[command.end.kind](move, command.end)
    return move.finish()


def _is_news(state: SessionState, command: TurnAppend, fresh: list[Draft]) -> bool:
    """Whether the usage of an append is not counted yet: a repeat has no fresh events."""
    if fresh or command.end is None or command.end.kind is not EndKind.INTERRUPTED:
        return bool(fresh) or not command.events
    # What an interrupt cut off may come without events; a repeat finds the interrupt obeyed.
    return not command.events and state.interrupt_seq > 0


def _follow(move: Move, draft: Draft, known_seq: int) -> None:
    """What an event of a runner says about the session itself."""
    event_type = draft.type
    if event_type == "span.model_request_start":
        known_seq = compaction.read_up_to(draft, known_seq)
        move.mark_read(known_seq)
        move.state.pending = tuple(call for call in move.state.pending if not call.answered)
        follow_request(move, known_seq)
    elif event_type == compaction.COMPACTED:
        compaction.check(draft, move.state.last_seq)
    elif event_type == "agent.tool_use" and move.state.on_worker:
        # A worker may answer as soon as it reads the call, which is before the turn waits for it.
        call = turn_events.parked_call(draft.id, event_type, orjson.loads(draft.fields))
        if call.kind is CallKind.WORKER:
            move.state.pending += (call,)
    elif event_type == turn_events.WORKER_RESULT:
        ended = orjson.loads(draft.fields).get("tool_use_id")
        move.state.pending = tuple(call for call in move.state.pending if call.event_id != ended)
    elif event_type.startswith("span.outcome_evaluation_"):
        follow_evaluation(move, draft)
    elif event_type == _RESCHEDULED[bool(move.state.root_id)]:
        # The runner holds the turn and waits before it asks the vendor again.
        move.stop_running()
        move.state.status = Status.RESCHEDULING
    elif event_type == _RUNNING[bool(move.state.root_id)]:
        move.state.status = Status.RUNNING
        move.state.running_since = move.now


# Whose calls are known from the moment that they are in the log.
_NOT_CLIENTS = (CallKind.THREAD, CallKind.WORKER)
# By whether a thread beside the primary one runs: its log tells nothing of the session as a whole.
_RESCHEDULED = ("session.status_rescheduled", "session.thread_status_rescheduled")
_RUNNING = ("session.status_running", "session.thread_status_running")


def grant(state: SessionState, runner_id: str, now: datetime, new_id: NewId) -> Moved:
    """Gives a waiting turn to a runner; a rescheduled session says that it runs again."""
    move = Move(state, now, new_id)
    if state.status is Status.RESCHEDULING:
        move.start_running()
    _take(move.state, runner_id)
    return move.finish()


def grant_at_once(moved: Moved, runner_id: str) -> Moved:
    """Gives the turn that a move has made ready to a runner, as part of that move."""
    state = replace(moved.state)
    _take(state, runner_id)
    return replace(moved, state=state)


def _take(state: SessionState, runner_id: str) -> None:
    assert state.turn_state is TurnState.READY, "only a waiting turn is granted"
    state.turn_state = TurnState.LEASED
    state.turn_holder = runner_id
    state.turn_epoch += 1
    state.turn_attempt += 1
    # Threads and workers go on while the turn changes hands.
    state.pending = tuple(call for call in state.pending if call.kind in _NOT_CLIENTS and not call.answered)


def is_last_attempt(state: SessionState) -> bool:
    """Whether the turn is given up when its lease runs out."""
    return state.turn_attempt >= MAX_LOST_ATTEMPTS


def expire(state: SessionState, now: datetime, new_id: NewId, tail: Sequence[LoggedEvent] = ()) -> Moved:
    """Takes a turn from a holder whose lease ran out: the next runner gets it, up to a limit.

    At the limit, `tail` is the end of the log's context events: what they leave open is closed.
    """
    assert state.turn_state is TurnState.LEASED, "only a held turn expires"
    move = Move(state, now, new_id)
    move.state.turn_epoch += 1
    if is_last_attempt(state):
        move.close_open(closing_events(tail))
        move.write("session.error", turn_events.lost_runner_error(move.state.turn_attempt))
        move.mark_read(move.state.last_seq)
        move.close_turn(RETRIES_EXHAUSTED)
        return move.finish()
    move.state.turn_state = TurnState.READY
    if state.status is not Status.RESCHEDULING:
        move.stop_running()
        move.state.status = Status.RESCHEDULING
        move.write_session("session.status_rescheduled")
        move.write("session.thread_status_rescheduled", turn_events.thread_fields(move.state))
    return move.finish()


def release(state: SessionState, epoch: int, now: datetime, new_id: NewId, *, leaves_calls: bool = False) -> Moved:
    """Takes a turn back from a holder that gives it up; the session goes on running.

    As if it had never been granted, unless calls are left open: then the next holder is told that there was one before,
    and whoever ends the turn closes them.
    """
    if epoch != state.turn_epoch or state.turn_state is not TurnState.LEASED:
        raise TurnLeaseLost(state.id, epoch)
    move = Move(state, now, new_id)
    move.state.turn_state = TurnState.READY
    move.state.turn_epoch += 1
    move.state.turn_attempt = max(state.turn_attempt - 1, 1 if leaves_calls else 0)
    return move.finish()


def may_have_open_work(state: SessionState) -> bool:
    """Whether the log may hold a model request or calls that only the turn would have closed."""
    return state.turn_state is not TurnState.NONE or bool(state.pending)


# What ends a session takes `tail`, the end of the log's context events, where there may be open work: nobody else
# would close it.


def stop(state: SessionState, now: datetime, new_id: NewId, tail: Sequence[LoggedEvent] = ()) -> Moved:
    """Ends a session for good. A session that has ended stays as it is."""
    move = Move(state, now, new_id)
    if phase_of(state) is not Phase.ENDED:
        move.close_open(closing_events(tail, ENDED_TEXT))
        move.revoke_turn()
        move.state.status = Status.TERMINATED
        move.write("session.thread_status_terminated", turn_events.thread_fields(move.state))
        move.write_session("session.status_terminated")
    return move.finish()


def archive(state: SessionState, now: datetime, new_id: NewId, tail: Sequence[LoggedEvent] = ()) -> Moved:
    """Closes a session that doesn't run; one that is archived stays as it is."""
    move = Move(state, now, new_id)
    if state.archived_at is None:
        require_at_rest(state)
        move.close_open(closing_events(tail, ENDED_TEXT))
        close_ended(move)
        if state.status is Status.REQUIRES_ACTION:
            move.state.status = Status.IDLE
        move.state.pending = ()
        move.state.turn_epoch += 1
        move.state.archived_at = move.now
    return move.finish()


def delete(
    state: SessionState, now: datetime, new_id: NewId, tail: Sequence[LoggedEvent] = (), *, refuse_running: bool
) -> Moved:
    """Removes a session and stops its work."""
    if refuse_running:
        require_at_rest(state)
    move = Move(state, now, new_id)
    if state.turn_state is not TurnState.NONE or state.status in (Status.RUNNING, Status.REQUIRES_ACTION):
        move.close_open(closing_events(tail, ENDED_TEXT))
        move.revoke_turn()
        move.state.status = Status.TERMINATED
        move.write("session.thread_status_terminated", turn_events.thread_fields(move.state))
        move.write_session("session.status_terminated")
    else:
        move.state.turn_epoch += 1
    move.state.deleted_at = move.now
    move.write("session.deleted")
    return move.finish()


def tell_update(
    state: SessionState, changed: Mapping[str, Any], now: datetime, new_id: NewId, *, traceparent: str = ""
) -> Moved:
    """Writes session.updated with the fields that changed; a budget that is no longer reached ends its pause."""
    if phase_of(state) is Phase.ENDED:
        raise SessionEnded(f"Session {state.id} has ended and can't be changed.", session_id=state.id)
    move = Move(state, now, new_id)
    move.write("session.updated", dict(changed))
    if "budget" in changed:
        move.state.budget = orjson.dumps(changed["budget"]).decode()
        if budget.is_paused(move.state) and not awaited(move.state):
            move.begin_turn(traceparent)
    move.state.revision += 1
    return move.finish()


def is_at_work(state: SessionState) -> bool:
    """Whether the session has a turn, or a thread of it runs."""
    return state.turn_state is not TurnState.NONE or state.status is Status.RUNNING


def require_at_rest(state: SessionState) -> None:
    """Refuses what a session can't have done to it while it runs."""
    if is_at_work(state):
        raise SessionRunning(
            f"Session {state.id} is running. Send a user.interrupt and wait until it is idle.", session_id=state.id
        )


def _answer_repeat(state: SessionState, command: TurnAppend) -> Moved:
    if command.stored_ids is None:
        raise MayBeRepeat
    if any(draft.id not in command.stored_ids for draft in command.events):
        raise TurnLeaseLost(state.id, command.epoch)
    return Moved(before=state, state=state, ended=True)


# How a turn ends; each answers whether it is over.


def _end_or_go_on(move: Move, end: End) -> bool:
    if end.kind is EndKind.INTERRUPTED:
        close_interrupted(move, move.state.interrupt_seq)
    if move.input_waits():
        move.state.interrupt_seq = 0
        move.state.turn_attempt = 1
        return False
    reason = {"type": "refusal"} if end.kind is EndKind.REFUSAL else END_TURN
    move.close_turn(reason, end.stop_details)
    return True


def _end_failed(move: Move, _end: End) -> bool:
    # What waits stays in the log and is context of the next turn, but does not start one:
    # it would fail as this one did.
    move.mark_read(move.state.last_seq)
    move.close_turn(RETRIES_EXHAUSTED)
    return True


def _end_parked(move: Move, end: End) -> bool:
    state = move.state
    known = tuple(call for call in state.pending if call.kind in _NOT_CLIENTS)
    state.pending = tuple(call for call in end.parked if call.kind not in _NOT_CLIENTS) + known
    places = {call.event_id: place for place, call in enumerate(end.parked)}
    state.pending = tuple(sorted(state.pending, key=lambda call: places.get(call.event_id, len(places))))
    if not state.interrupt_seq and all(call.answered for call in state.pending):
        # The last thread or worker answered while the runner was about to wait for it.
        state.turn_attempt = 1
        return False
    if not state.interrupt_seq:
        move.park_turn()
        return True
    # The interrupt came while the runner was about to park.
    move.give_up_calls()
    return _end_or_go_on(move, End(EndKind.INTERRUPTED))


def _end_at_ceiling(move: Move, end: End) -> bool:
    # An interrupt is obeyed first, and a ceiling that was raised meanwhile is none.
    if move.state.interrupt_seq or not (end.at_ceiling or budget.is_reached(move.state)):
        return False
    move.close_turn(budget.BUDGET_REACHED)
    return True


_END_TABLE: dict[EndKind, Callable[[Move, End], bool]] = {
    EndKind.END_TURN: _end_or_go_on,
    EndKind.REFUSAL: _end_or_go_on,
    EndKind.INTERRUPTED: _end_or_go_on,
    EndKind.RETRIES_EXHAUSTED: _end_failed,
    EndKind.FAILED: _end_failed,
    EndKind.REQUIRES_ACTION: _end_parked,
    EndKind.BUDGET_REACHED: _end_at_ceiling,
}
