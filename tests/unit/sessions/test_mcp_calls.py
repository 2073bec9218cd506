"""What the sessions service makes of calls of MCP tools: parked, given up, and closed where a turn is given up."""

from datetime import UTC, datetime
from typing import Any

import orjson

from services.sessions.domain import turn_events
from services.sessions.domain.leftovers import closing_events
from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.session_state import CallKind
from services.sessions.store.turns import _call, _call_values

USE = {"name": "start_thread", "input": {}, "mcp_server_name": "git", "evaluated_permission": "ask"}
BLOCK = [{"type": "tool_use", "id": "toolu_1", "name": "git__start_thread", "input": {}}]


def logged(event_id: str, event_type: str, **fields: Any) -> LoggedEvent:
    body = orjson.dumps({"id": event_id, "type": event_type, **fields})
    return LoggedEvent(event_id, 1, event_type, datetime.now(UTC), body)


def test_a_parked_call_knows_its_server_and_waits_for_a_confirmation() -> None:
    call = turn_events.parked_call("sevt_1", "agent.mcp_tool_use", {**USE, "content": BLOCK})
    assert (call.kind, call.block_id, call.server_name) == (CallKind.CONFIRMATION, "toolu_1", "git")


def test_a_call_that_is_given_up_gets_a_result_of_its_kind() -> None:
    call = turn_events.parked_call("sevt_1", "agent.mcp_tool_use", {**USE, "content": BLOCK})
    event_type, fields = turn_events.interrupted_result(call)
    assert event_type == "agent.mcp_tool_result"
    assert (fields["mcp_tool_use_id"], fields["mcp_server_name"], fields["is_error"]) == ("sevt_1", "git", True)
    assert fields["metadata"] == {"tool_use_id": "toolu_1"} and "tool_use_id" not in fields


def test_calls_of_a_turn_that_is_given_up_are_closed_each_by_its_kind() -> None:
    tail = [
        logged("sevt_1", "agent.mcp_tool_use", **USE, content=BLOCK),
        logged("sevt_2", "agent.tool_use", name="bash", input={}, content=[{"id": "toolu_2"}]),
        logged("sevt_3", "agent.mcp_tool_use", **USE, content=BLOCK),
        logged("sevt_4", "agent.mcp_tool_result", mcp_tool_use_id="sevt_3"),
    ]
    closed = closing_events(tail)
    assert [(event_type, fields.get("mcp_tool_use_id") or fields["tool_use_id"]) for event_type, fields in closed] == [
        ("agent.mcp_tool_result", "sevt_1"),
        ("agent.tool_result", "sevt_2"),
    ]
    assert closed[0][1]["mcp_server_name"] == "git" and "mcp_server_name" not in closed[1][1]


def test_a_parked_call_is_stored_as_before_but_for_its_server() -> None:
    plain = turn_events.parked_call("sevt_1", "agent.tool_use", {"name": "bash", "content": [{"id": "toolu_1"}]})
    assert _call_values(plain) == ["sevt_1", "toolu_1", "confirmation", False]
    of_server = turn_events.parked_call("sevt_1", "agent.mcp_tool_use", {**USE, "content": BLOCK})
    for call in (plain, of_server):
        assert _call(*_call_values(call)) == call
