"""What a turn makes of what an earlier attempt left: nothing that may have begun runs again."""

from typing import Any

import pytest

from services.sessions.domain.turn import MAX_LOST_ATTEMPTS
from services.worker.runner.loop import recovery
from services.worker.runner.loop.context import Conversation


def conversation(*events: tuple[str, str, dict[str, Any]]) -> Conversation:
    made = Conversation()
    for event_id, event_type, fields in events:
        made.apply(event_id, event_type, fields)
    return made


def use(event_id: str, permission: str = "allow") -> tuple[str, str, dict[str, Any]]:
    block = {"type": "tool_use", "id": f"toolu_{event_id}", "name": "bash", "input": {}}
    fields = {"name": "bash", "input": {}, "evaluated_permission": permission, "content": [block]}
    return event_id, "agent.tool_use", fields


def custom(event_id: str) -> tuple[str, str, dict[str, Any]]:
    block = {"type": "tool_use", "id": f"toolu_{event_id}", "name": "lookup", "input": {}}
    return event_id, "agent.custom_tool_use", {"name": "lookup", "input": {}, "content": [block]}


def decide(event_id: str, result: str, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    return f"d{event_id}", "user.tool_confirmation", {"tool_use_id": event_id, "result": result, **fields}


START = ("s1", "span.model_request_start", {})


def plan(
    *events: tuple[str, str, dict[str, Any]], attempt: int = 1, resumed: bool = False, joins: Any = None
) -> recovery.Plan:
    return recovery.plan(conversation(START, *events), attempt=attempt, resumed=resumed, joins=joins)


def test_a_request_without_an_end_gets_one() -> None:
    ((event_type, fields),) = plan(attempt=2).events
    assert event_type == "span.model_request_end"
    assert fields["model_request_start_id"] == "s1" and fields["is_error"] is True
    assert not plan(("x", "span.model_request_end", {})).events


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_a_call_that_may_have_begun_never_runs_again(attempt: int) -> None:
    found = plan(use("a"), ("x", "span.model_request_end", {}), attempt=attempt, resumed=True)
    assert not found.run and not found.park
    assert "work_outcome_unknown" in found.events[0][1]["content"][0]["text"]


def test_an_approved_call_runs_once_in_the_turn_that_the_approval_started() -> None:
    found = plan(use("a", "ask"), decide("a", "allow"), resumed=True)
    assert [call.event_id for call in found.run] == ["a"]
    for attempt, resumed in ((2, True), (1, False)):
        found = plan(use("a", "ask"), decide("a", "allow"), attempt=attempt, resumed=resumed)
        assert not found.run
        assert "work_outcome_unknown" in found.events[-1][1]["content"][0]["text"]


def test_a_call_that_can_be_joined_is_asked_for_again_and_no_other() -> None:
    events = (use("a"), use("b"), use("c", "ask"), decide("c", "allow"), use("d", "ask"), decide("d", "deny"))
    found = plan(*events, attempt=2, resumed=True, joins=lambda call: call.event_id != "b")
    assert [call.event_id for call in found.run] == ["a", "c"]
    assert [fields["tool_use_id"] for kind, fields in found.events if kind == "agent.tool_result"] == ["b", "d"]


def test_the_last_attempt_asks_for_nothing_again() -> None:
    # The service ends the turn after it, and can stop nothing that a worker has.
    for attempt in range(2, MAX_LOST_ATTEMPTS + 1):
        found = plan(use("a"), attempt=attempt, joins=lambda _call: True)
        told = [kind for kind, _ in found.events if kind == "agent.tool_result"]
        assert (len(found.run), len(told)) == ((0, 1) if attempt == MAX_LOST_ATTEMPTS else (1, 0))


def test_what_an_ended_turn_left_is_joined_by_none() -> None:
    # Only this turn's own former attempts have begun what it waits for.
    for resumed in (False, True):
        assert not plan(use("a"), resumed=resumed, joins=lambda _call: True).run
    # An approval belongs to the turn that it began.
    assert not plan(use("a", "ask"), decide("a", "allow"), attempt=2, joins=lambda _call: True).run


def test_a_denied_call_gets_the_denial() -> None:
    found = plan(use("a", "ask"), decide("a", "deny", deny_message="too risky"), resumed=True)
    fields = found.events[-1][1]
    assert "too risky" in fields["content"][0]["text"] and fields["is_error"]
    assert fields["metadata"] == {"tool_use_id": "toolu_a"}


def test_calls_that_wait_for_a_client_park_again_after_a_crash() -> None:
    found = plan(use("a", "ask"), custom("b"), attempt=2)
    assert [call.event_id for call in found.park] == ["a", "b"]


def test_calls_that_a_former_turn_gave_up_are_closed() -> None:
    found = plan(use("a", "ask"), custom("b"))
    assert not found.park
    assert [fields["tool_use_id"] for kind, fields in found.events if kind == "agent.tool_result"] == ["a", "b"]


def test_after_the_plan_nothing_is_open_but_what_runs_or_waits() -> None:
    for attempt in (1, 2):
        for resumed in (False, True):
            made = conversation(START, use("a"), use("b", "ask"), decide("b", "allow"), use("c", "ask"), custom("d"))
            found = recovery.plan(made, attempt=attempt, resumed=resumed)
            for event_type, fields in found.events:
                made.apply("new", event_type, fields)
            waiting = {call.event_id for call in (*found.run, *found.park)}
            assert {call.event_id for call in made.open_calls()} == waiting
            assert not made.open_request
