"""The bound on waiting, as a pure decision: who is ended, when, and what the log says."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import orjson
import pytest

from services.sessions.domain import budget, turn, waiting
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.move import Moved
from services.sessions.domain.session_errors import SessionEnded
from services.sessions.domain.session_state import CallKind, PendingCall, SessionState, Status

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
BOUND = timedelta(seconds=60)
CALLS = (PendingCall("sevt_a", "toolu_a", CallKind.CUSTOM), PendingCall("sevt_b", "toolu_b", CallKind.CONFIRMATION))
MESSAGE = ClientEvent("user.message", {"content": [{"type": "text", "text": "go"}]})
ANSWER = ClientEvent("user.custom_tool_result", {"custom_tool_use_id": "sevt_a"})


@pytest.fixture
def ids():
    numbers = itertools.count(1)
    return lambda: f"sevt_{next(numbers)}"


@pytest.fixture
def parked(ids) -> SessionState:
    """Waits since `START` for two answers."""
    state = SessionState("wrkspc_default", "sess_1", "sthr_1", "tester", START, START)
    state = turn.append_client_events(state, [MESSAGE], START, ids).state
    state = turn.grant(state, "runner_1", START, ids).state
    command = turn.TurnAppend(state.turn_epoch, state.last_seq, end=turn.End(turn.EndKind.REQUIRES_ACTION, CALLS))
    return turn.append_turn_events(state, command, START, ids).state


def events(moved: Moved) -> list[dict]:
    return [orjson.loads(event.body) for event in moved.events]


def test_a_session_that_waited_too_long_is_timed_out_and_its_calls_stay_unanswered(parked, ids) -> None:
    moved = waiting.time_out(parked, BOUND, START + BOUND, ids)
    error, thread, session = events(moved)
    assert error["type"] == "session.error" and thread["type"] == "session.thread_status_terminated"
    assert session["type"] == "session.status_terminated"
    assert error["error"]["type"] == "requires_action_timeout"
    assert error["error"]["retry_status"] == "not_retryable"
    assert error["content"] == [{"type": "text", "text": error["error"]["message"]}]
    assert moved.state.status is Status.TIMED_OUT and moved.state.parked_at is None
    with pytest.raises(SessionEnded):
        turn.append_client_events(moved.state, [ANSWER], START + BOUND, ids)


def test_before_the_bound_nothing_happens(parked, ids) -> None:
    early = START + BOUND - timedelta(milliseconds=1)
    moved = waiting.time_out(parked, BOUND, early, ids)
    assert moved.state == parked and not moved.events


@pytest.mark.parametrize("meanwhile", [ANSWER, MESSAGE])
def test_the_bound_counts_from_the_parking_event_whatever_comes_meanwhile(parked, ids, meanwhile) -> None:
    later = turn.append_client_events(parked, [meanwhile], START + BOUND / 2, ids).state
    assert later.status is Status.REQUIRES_ACTION and later.parked_at == START
    assert waiting.time_out(later, BOUND, START + BOUND, ids).state.status is Status.TIMED_OUT


def test_a_session_that_was_resumed_is_not_ended_and_waits_anew_when_parked_again(parked, ids) -> None:
    answers = [ANSWER, ClientEvent("user.tool_confirmation", {"tool_use_id": "toolu_b", "result": "allow"})]
    state = turn.append_client_events(parked, answers, START + BOUND / 2, ids).state
    assert state.parked_at is None
    assert waiting.time_out(state, BOUND, START + 2 * BOUND, ids).state == state
    state = turn.grant(state, "runner_1", START + BOUND, ids).state
    again = turn.End(turn.EndKind.REQUIRES_ACTION, (PendingCall("sevt_c", "toolu_c", CallKind.CUSTOM),))
    command = turn.TurnAppend(state.turn_epoch, state.last_seq, end=again)
    state = turn.append_turn_events(state, command, START + BOUND, ids).state
    assert state.parked_at == START + BOUND
    assert not waiting.is_overdue(state, BOUND, START + 2 * BOUND - timedelta(seconds=1))
    assert waiting.is_overdue(state, BOUND, START + 2 * BOUND)


def test_a_session_at_its_ceiling_is_never_ended_by_waiting(parked, ids, monkeypatch) -> None:
    monkeypatch.setattr(budget, "is_reached", lambda state: True)
    assert waiting.time_out(parked, BOUND, START + 100 * BOUND, ids).state == parked


@pytest.mark.parametrize("how", ["stopped", "archived", "interrupted"])
def test_a_session_that_no_longer_waits_is_left_alone(parked, ids, how) -> None:
    interrupt = [ClientEvent("user.interrupt", {})]
    moves = {
        "stopped": lambda: turn.stop(parked, START, ids),
        "archived": lambda: turn.archive(parked, START, ids),
        "interrupted": lambda: turn.append_client_events(parked, interrupt, START, ids),
    }
    state = moves[how]().state
    assert state.parked_at is None
    assert waiting.time_out(replace(state), BOUND, START + 2 * BOUND, ids).state == state
