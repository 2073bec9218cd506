"""A call is run once and only where nothing speaks against it, in whatever order the log tells what."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.fleet.session.calls import Calls

TOOLS = ("bash", "read")


def use(call_id: str, permission: Any = "allow", name: str = "bash", **fields: Any) -> dict[str, Any]:
    event = {"type": "agent.tool_use", "id": call_id, "name": name, "input": {}, **fields}
    return event if permission is None else event | {"evaluated_permission": permission}


def result(call_id: str, kind: str = "user.tool_result") -> dict[str, Any]:
    return {"type": kind, "tool_use_id": call_id}


def verdict(call_id: str, said: str) -> dict[str, Any]:
    return {"type": "user.tool_confirmation", "tool_use_id": call_id, "result": said}


def idle(reason: str) -> dict[str, Any]:
    return {"type": "session.status_idle", "stop_reason": {"type": reason}}


def told(*events: dict[str, Any]) -> Calls:
    calls = Calls(TOOLS)
    for event in events:
        calls.take(event)
    return calls


def run_all(calls: Calls) -> list[str]:
    """Ids in the order in which they would be run."""
    ran: list[str] = []
    while (call := calls.next()) is not None:
        ran.append(call.id)
        calls.settle(call.id)
    return ran


def test_calls_are_run_in_order_and_each_once() -> None:
    calls = told(use("1"), use("2", None), use("3"))
    assert calls.next() is calls.next()
    assert run_all(calls) == ["1", "2", "3"]
    assert run_all(calls) == []


@pytest.mark.parametrize("kind", ["user.tool_result", "agent.tool_result"])
def test_a_call_that_has_a_result_is_not_run(kind: str) -> None:
    assert run_all(told(use("1"), use("2"), result("1", kind))) == ["2"]


def test_calls_of_others_are_left_alone() -> None:
    custom = {"type": "agent.custom_tool_use", "id": "c", "name": "bash", "input": {}}
    mcp = {"type": "agent.mcp_tool_use", "id": "m", "name": "bash", "input": {}}
    calls = told(use("1", name="web_fetch"), custom, mcp)
    assert run_all(calls) == [] and not calls.waiting


@pytest.mark.parametrize("permission", ["ask", "unheard_of"])
def test_what_must_be_confirmed_waits_for_it(permission: str) -> None:
    calls = told(use("1", permission), use("2"))
    assert run_all(calls) == ["2"] and calls.waiting
    calls.take(verdict("1", "allow"))
    assert not calls.waiting and run_all(calls) == ["1"]


@pytest.mark.parametrize("said", ["deny", "unheard_of"])
def test_a_denied_call_is_never_run(said: str) -> None:
    assert run_all(told(use("1", "ask"), verdict("1", said))) == []
    assert run_all(told(verdict("1", said), use("1", "ask"))) == []
    assert run_all(told(use("1", "ask"), verdict("1", said), verdict("1", "allow"))) == []
    # Any denial counts, also of a call that needed no leave.
    assert run_all(told(use("1"), verdict("1", said))) == []
    assert run_all(told(verdict("1", said), use("1"))) == []
    assert not told(verdict("1", said), use("1", "ask")).waiting


def test_what_the_platform_denied_no_verdict_allows() -> None:
    assert run_all(told(use("1", "deny"), verdict("1", "allow"))) == []


def test_calls_of_a_thread_that_has_ended_are_not_run() -> None:
    over = {"type": "session.thread_status_terminated", "session_thread_id": "t"}
    calls = told(use("1", session_thread_id="t"), use("2", "ask", session_thread_id="t"), use("3"), over)
    assert run_all(calls) == ["3"] and not calls.waiting


@pytest.mark.parametrize("kind", ["session.status_terminated", "session.deleted"])
def test_the_end_of_a_session_is_the_end(kind: str) -> None:
    assert told({"type": kind}).ended


def test_a_session_rests_only_when_its_turn_is_over() -> None:
    assert told(idle("end_turn")).resting
    assert told(idle("unheard_of")).resting
    assert not told(idle("requires_action")).resting
    assert not told(idle("end_turn"), {"type": "user.message"}).resting
    assert told(idle("end_turn"), verdict("1", "allow"), {"type": "session.usage"}).resting
    assert told(idle("requires_action"), {"type": "session.status_running"}, idle("end_turn")).resting


@pytest.mark.parametrize(
    "end",
    [
        {"type": "user.interrupt"},
        result("1"),
        result("1", "agent.tool_result"),
        verdict("1", "deny"),
        {"type": "session.thread_status_terminated", "session_thread_id": "t"},
    ],
)
def test_a_call_that_nobody_waits_for_is_not_wanted(end: dict[str, Any]) -> None:
    calls = told(use("1", session_thread_id="t"), use("2", session_thread_id="other"))
    assert calls.is_wanted("1")
    calls.take(end)
    assert not calls.is_wanted("1")
    assert end["type"] == "user.interrupt" or calls.is_wanted("2")


def test_what_a_client_has_interrupted_is_run_no_more() -> None:
    calls = told(use("1"), use("2", "ask"), {"type": "user.interrupt"}, use("3"))
    assert [calls.is_wanted(each) for each in "123"] == [False, False, True]
    calls.take(verdict("2", "allow"))
    assert run_all(calls) == ["3"] and not calls.waiting


def test_an_interrupt_of_one_thread_leaves_the_others_alone() -> None:
    status = {"type": "session.thread_status_running", "session_thread_id": "main"}
    other = {"type": "session.thread_status_running", "session_thread_id": "t"}
    mine, theirs = use("1"), use("2", session_thread_id="t")
    assert run_all(told(status, other, mine, theirs, {"type": "user.interrupt", "session_thread_id": "t"})) == ["1"]
    assert run_all(told(status, other, mine, theirs, {"type": "user.interrupt", "session_thread_id": "main"})) == ["2"]


kinds = st.sampled_from(["use", "ask", "deny use", "result", "allow", "deny", "thread ends"])
events = st.lists(st.tuples(kinds, st.sampled_from("123"), st.sampled_from(["", "t"])), max_size=25)


@given(events)
def test_nothing_is_run_that_something_speaks_against(script: list[tuple[str, str, str]]) -> None:
    calls, ran = Calls(TOOLS), list[str]()
    uses: dict[str, tuple[str, str]] = {}
    denied, allowed, answered, ended = set[str](), set[str](), set[str](), set[str]()
    for kind, call_id, thread in script:
        if kind in ("use", "ask", "deny use"):
            if call_id in uses:
                # An id stands for one call.
                continue
            uses[call_id] = (kind, thread)
            permission = {"use": "allow", "ask": "ask", "deny use": "deny"}[kind]
            calls.take(use(call_id, permission, **({"session_thread_id": thread} if thread else {})))
        elif kind == "result":
            if call_id in uses:
                answered.add(call_id)
                calls.take(result(call_id))
        elif kind in ("allow", "deny"):
            (denied if kind == "deny" else allowed).add(call_id)
            calls.take(verdict(call_id, kind))
        else:
            ended.add("t")
            calls.take({"type": "session.thread_status_terminated", "session_thread_id": "t"})
        for each in run_all(calls):
            permission, thread_of = uses[each]
            assert each not in ran and each not in answered and each not in denied and thread_of not in ended
            assert permission == "use" or (permission == "ask" and each in allowed)
            ran.append(each)
