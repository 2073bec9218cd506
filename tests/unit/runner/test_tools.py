"""Calls become events with the permission that holds for them; what can't be called is answered."""

import orjson

from services.worker.runner.loop.agent import parse_agent
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.tools import Toolbox
from services.worker.runner.models.base import ToolCall, ToolDefinition

BUILT_IN = {name: ToolDefinition(name, "", {"type": "object"}) for name in ("bash", "read")}


class Written:
    """Stands in for the journal: keeps what is added."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict]] = []
        self.conversation = Conversation()

    def add(self, event_type: str, fields: dict, event_id: str = "") -> str:
        event_id = event_id or f"e{len(self.events)}"
        self.events.append((event_type, fields))
        self.conversation.apply(event_id, event_type, fields)
        return event_id


def toolbox(*tools: dict) -> Toolbox:
    return Toolbox(parse_agent(orjson.dumps({"name": "a", "tools": tools}), b"", "m"), BUILT_IN)


ASK_BASH = {
    "type": "agent_toolset_20260401",
    "configs": [{"name": "bash", "permission_policy": {"type": "always_ask"}}],
}
CUSTOM = {"type": "custom", "name": "lookup", "description": "", "input_schema": {"type": "object"}}


def test_only_what_is_enabled_and_exists_here_is_offered() -> None:
    assert [tool.name for tool in toolbox(ASK_BASH, CUSTOM).definitions] == ["bash", "read", "lookup"]
    assert toolbox(ASK_BASH).uses_sandbox and not toolbox(CUSTOM).uses_sandbox


def test_each_call_gets_its_permission() -> None:
    written = Written()
    calls = [ToolCall("t1", "bash", {"a": 1}), ToolCall("t2", "read", {}), ToolCall("t3", "lookup", {})]
    assert toolbox(ASK_BASH, CUSTOM).write_calls(calls, written) == []
    (_, bash), (_, read), (custom_type, custom) = written.events
    assert bash["evaluated_permission"] == "ask" and bash["evaluation"] == {"type": "always_ask"}
    assert bash["content"][0] == {
        "type": "tool_use",
        "id": "t1",
        "name": "bash",
        "input": {"a": 1},
        "requires_confirmation": True,
        "confirmation_group_id": bash["confirmation_group_id"],
    }
    assert read["evaluated_permission"] == "allow" and "requires_confirmation" not in read
    assert custom_type == "agent.custom_tool_use" and "evaluated_permission" not in custom


def test_unknown_tools_and_broken_arguments_are_answered_without_running() -> None:
    written = Written()
    calls = [ToolCall("t1", "rm", {}), ToolCall("t2", "lookup", {}, "not JSON"), ToolCall("t3", "read", {}, "not JSON")]
    refusals = toolbox(ASK_BASH, CUSTOM).write_calls(calls, written)
    assert {fields["evaluated_permission"] for _, fields in written.events} == {"deny"}
    assert not any("evaluation" in fields for _, fields in written.events)
    texts = [fields["content"][0]["text"] for _, fields in refusals]
    assert "'rm'" in texts[0] and texts[1:] == ["not JSON", "not JSON"]
    for event_type, fields in refusals:
        written.add(event_type, fields)
    assert written.conversation.open_calls() == []


def test_ids_that_a_vendor_leaves_out_or_repeats_are_made_anew() -> None:
    written = Written()
    calls = [ToolCall("", "read", {}), ToolCall("t", "read", {}), ToolCall("t", "read", {})]
    toolbox(ASK_BASH).write_calls(calls, written)
    ids = [fields["content"][0]["id"] for _, fields in written.events]
    assert len(set(ids)) == 3 and ids[1] == "t" and all(ids)
