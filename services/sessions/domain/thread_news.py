"""What threads do, as their session takes note of it. Pure.

Each piece of news is told once, in the order of the thread's log: its event is posted to the
session's log, the session's totals and status follow, an awaited call gets its result, and
the coordinator's turn goes on with the last one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from services.sessions.domain import budget, outcome, turn_events
from services.sessions.domain.answers import answered
from services.sessions.domain.cost import Charge, read_spend
from services.sessions.domain.inbound import THREAD_MESSAGE
from services.sessions.domain.log import Draft
from services.sessions.domain.move import END_TURN, Move, Signal
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
from services.sessions.domain.thread_state import PostedCall, ThreadEntry, any_paused, any_running, waiting_ids

MESSAGE_SENT = "agent.thread_message_sent"
CREATED = "session.thread_created"
RUNNING = "session.thread_status_running"
IDLE = "session.thread_status_idle"
TERMINATED = "session.thread_status_terminated"
NEWS_TYPES = frozenset({MESSAGE_SENT, RUNNING, IDLE, TERMINATED, "session.thread_status_rescheduled"})

_ENVELOPE = ("id", "type", "seq", "created_at", "processed_at")


@dataclass(frozen=True, slots=True)
class News:
    """An event of a thread that its session takes note of, with what it takes to understand it."""

    thread_id: str
    type: str
    fields: dict[str, Any]
    # Of an idle thread: what it answered, or why it did not.
    answer: str = ""
    is_error: bool = False
    # Of one that waits for a client: its calls, as (event id, type, fields).
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    # What the thread spent in all.
    usage: TokenUsage = field(default_factory=TokenUsage)
    spend: str = "[]"


def hear(move: Move, news: Sequence[News]) -> None:
    """Takes note of what threads did, in order, and lets the session follow."""
    if phase_of(move.state) is Phase.ENDED:
        return
    for each in news:
        _hear_one(move, each)
    settle(move)


def _hear_one(move: Move, news: News) -> None:
    threads = move.state.threads
    entry = threads.find(news.thread_id) if threads else None
    if threads is None or entry is None:
        # It was archived meanwhile.
        return
    entry = _count(move, entry, news)
    if news.type == MESSAGE_SENT:
        _receive(move, entry, news.fields.get("content") or [])
        return
    known = {call.event_id: call for call in entry.waiting}
    posted = [known.get(call[0]) or _post_call(move, entry, *call) for call in news.calls]
    _give_up_posted(move, entry, posted)
    shown = {name: value for name, value in news.fields.items() if name not in _ENVELOPE}
    if posted:
        shown["stop_reason"] = {"type": "requires_action", "event_ids": [call.posted_id for call in posted]}
    move.write(news.type, shown)
    if news.type == IDLE:
        # One that its session's budget paused has not answered yet.
        is_paused = news.fields.get("stop_reason") == budget.BUDGET_REACHED
        _put(move, replace(entry, is_running=False, waiting=tuple(posted), is_paused=is_paused))
        if not posted and not is_paused:
            _answer(move, entry, news.answer, is_error=news.is_error)
    elif news.type == TERMINATED:
        close(move, entry, "The thread was ended before it answered.")
    else:
        _put(move, replace(entry, is_running=True, waiting=(), is_paused=False))


def end_all(move: Move, news: Sequence[News]) -> None:
    """Takes note of how threads ended together with their session, which then does what is left to do."""
    for each in news:
        entry = move.state.threads.find(each.thread_id) if move.state.threads else None
        if entry is not None:
            _count(move, entry, each)
            _give_up_posted(move, entry)
            move.write(each.type, {name: value for name, value in each.fields.items() if name not in _ENVELOPE})
    if move.state.threads is not None:
        move.state.threads = replace(move.state.threads, live=())


def close(move: Move, entry: ThreadEntry, text: str) -> None:
    """A thread takes no more messages; who waits for it is told why."""
    _give_up_posted(move, entry)
    _put(move, replace(entry, is_running=False, waiting=(), is_paused=False))
    _answer(move, entry, text, is_error=True)
    assert move.state.threads is not None
    move.state.threads = move.state.threads.without(entry.id)


def settle(move: Move) -> None:
    """Brings the session's status in line with its threads. While the primary one has a turn, that turn does."""
    state = move.state
    if state.turn_state is not TurnState.NONE:
        return
    if any_running(state):
        if state.status is not Status.RUNNING:
            move.keep_running()
            move.write_session("session.status_running")
            move.session_shown = True
            if state.pending:
                move.write(RUNNING, turn_events.thread_fields(state))
                move.thread_shown = True
        return
    waiting = waiting_ids(state)
    was_running = state.status is Status.RUNNING
    if not was_running and state.stop_reason == _encoded(_reason(state, waiting)):
        return
    if was_running:
        move.stop_running()
    if waiting:
        outcome.close_parked(move)
    state.status = Status.REQUIRES_ACTION if waiting else Status.IDLE
    if state.pending and waiting:
        move.write_waiting()
    elif state.pending:
        # The calls wait for threads that wait for budget.
        move.write_idle(_reason(state, waiting))
    else:
        reason = _reason(state, waiting)
        move.write_session_idle(reason, turn_events.idle_fields(reason, None))


def _reason(state: SessionState, waiting: list[str]) -> dict[str, Any]:
    """Why a session whose primary thread has ended its turn is idle."""
    if waiting:
        return {"type": "requires_action", "event_ids": waiting}
    if any_paused(state):
        return budget.BUDGET_REACHED
    last = orjson.loads(state.stop_reason) if state.stop_reason else END_TURN
    is_over = last["type"] == "requires_action" or (last == budget.BUDGET_REACHED and not budget.is_reached(state))
    return END_TURN if is_over else last


def _encoded(value: dict[str, Any]) -> str:
    return orjson.dumps(value).decode()


def _put(move: Move, entry: ThreadEntry) -> None:
    assert move.state.threads is not None
    move.state.threads = move.state.threads.put(entry)


def count(move: Move, thread_id: str, usage: TokenUsage, spend: str) -> None:
    """Adds what a thread spent in all to its session's totals, before it has news."""
    entry = move.state.threads.find(thread_id) if move.state.threads else None
    if entry is not None:
        _count(move, entry, News(thread_id, "", {}, usage=usage, spend=spend))


def _count(move: Move, entry: ThreadEntry, news: News) -> ThreadEntry:
    """Adds what the thread spent since the session last counted it."""
    told = entry.told_usage
    if news.usage == told and news.spend == entry.told_spend:
        return entry
    move.state.usage = move.state.usage + _less(news.usage, told)
    before = {charge.model_id: charge for charge in read_spend(entry.told_spend).models}
    charges = [_difference(charge, before.get(charge.model_id)) for charge in read_spend(news.spend).models]
    move.state.spend = read_spend(move.state.spend).plus(charges).dump()
    counted = replace(entry, told_usage=news.usage, told_spend=news.spend)
    _put(move, counted)
    return counted


def _difference(charge: Charge, before: Charge | None) -> Charge:
    if before is None:
        return charge
    priced = charge.cost is not None and before.cost is not None
    cost = (charge.cost or 0) - (before.cost or 0) if priced else None
    return Charge(charge.model_id, _less(charge.usage, before.usage), cost)


def _less(total: TokenUsage, part: TokenUsage) -> TokenUsage:
    return TokenUsage(
        total.input_tokens - part.input_tokens,
        total.output_tokens - part.output_tokens,
        total.cache_read_input_tokens - part.cache_read_input_tokens,
        total.cache_creation_5m_input_tokens - part.cache_creation_5m_input_tokens,
        total.cache_creation_1h_input_tokens - part.cache_creation_1h_input_tokens,
        total.web_search_requests - part.web_search_requests,
        total.web_fetch_requests - part.web_fetch_requests,
    )


def _receive(move: Move, entry: ThreadEntry, content: list[Any]) -> None:
    """A thread's message. The coordinator reads one that no call waits for with its next model request."""
    fields: dict[str, Any] = {
        "from_session_thread_id": entry.id,
        "from_agent_name": entry.agent_name,
        "content": content,
    }
    if entry.call_id:
        # It comes to the model as the result of the call.
        fields["tool_use_id"] = entry.call_id
    move.append(Draft(move.new_id(), THREAD_MESSAGE, orjson.dumps(fields), posted=bool(entry.call_id)))
    if not entry.call_id:
        move.state.input_seq = move.state.last_seq
        tell_holder(move)


def _post_call(move: Move, entry: ThreadEntry, event_id: str, event_type: str, fields: dict[str, Any]) -> PostedCall:
    shown = {name: value for name, value in fields.items() if name not in _ENVELOPE}
    posted_id = move.new_id()
    body = orjson.dumps(shown | {"session_thread_id": entry.id})
    move.append(Draft(posted_id, event_type, body, posted=True))
    call = turn_events.parked_call(event_id, event_type, fields)
    return PostedCall(posted_id, event_id, call.block_id, call.kind, call.by_worker)


def _give_up_posted(move: Move, entry: ThreadEntry, kept: Sequence[PostedCall] = ()) -> None:
    """Calls for workers that a thread no longer waits for: the log that workers read has to say so."""
    for call in entry.waiting:
        if call.by_worker and call not in kept:
            event_type, fields = turn_events.error_result(
                call.posted_id, call.block_id, "", turn_events.INTERRUPTED_TEXT, by_worker=True
            )
            body = orjson.dumps(fields | {"session_thread_id": entry.id})
            move.append(Draft(move.new_id(), event_type, body, posted=True))


def _answer(move: Move, entry: ThreadEntry, text: str, *, is_error: bool) -> None:
    """The result of the call that waits for a thread; the last one lets the coordinator go on."""
    state = move.state
    call = next((each for each in state.pending if each.event_id == entry.call_id and not each.answered), None)
    if not entry.call_id or call is None:
        return
    head = f"Thread {entry.id} ({entry.agent_name}):"
    write_result(move, call, text, head=head, is_error=is_error)
    assert state.threads is not None
    state.threads = state.threads.unawaited(entry.call_id)
    state.pending = answered(state.pending, call)
    if state.turn_state is TurnState.NONE and all(each.answered for each in state.pending):
        move.begin_turn(state.traceparent)
    else:
        tell_holder(move)


def write_result(move: Move, call: PendingCall, text: str, *, head: str = "", is_error: bool) -> None:
    """The result of a coordinator's call."""
    texts = [head, text] if head else [text]
    fields = {
        "tool_use_id": call.event_id,
        "content": [{"type": "text", "text": each} for each in texts],
        "is_error": is_error,
        "metadata": {"tool_use_id": call.block_id},
    }
    move.write("agent.tool_result", fields)
    move.state.input_seq = move.state.last_seq


def tell_holder(move: Move) -> None:
    """Has the runner of the coordinator's turn read what is new."""
    state = move.state
    if state.turn_state is TurnState.LEASED:
        move.signal = move.signal or Signal(state.turn_holder, state.id, state.turn_epoch)


def without_second_results(move: Move, drafts: list[Draft]) -> list[Draft]:
    """Results that a runner wrote for calls of threads and workers stand only where theirs is not in the log."""
    kept: list[Draft] = []
    kinds = (CallKind.THREAD, CallKind.WORKER)
    calls = {call.event_id: call for call in move.state.pending if call.kind in kinds}
    for draft in drafts:
        call = None
        if draft.type in ("agent.tool_result", turn_events.WORKER_RESULT):
            call = calls.get(orjson.loads(draft.fields).get("tool_use_id", ""))
        if call is None or not call.answered:
            kept.append(draft)
        if call is not None and not call.answered:
            move.state.pending = tuple(each for each in move.state.pending if each is not call)
            move.state.threads = move.state.threads and move.state.threads.unawaited(call.event_id)
    return kept
