"""Calls of MCP tools in the loop: what is written of them, what a context makes of it, and what a recovery does."""

from types import SimpleNamespace
from typing import Any

from services.worker.runner.loop import recovery
from services.worker.runner.loop.agent import AgentProfile
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.tools import Toolbox
from services.worker.runner.mcp.turn import ServerTool
from services.worker.runner.models.base import ToolCall, ToolDefinition
from services.worker.tools import ToolOutcome

LOG = ToolDefinition("git__log", "", {"type": "object"})


class Journal:
    """Gives ids, and a conversation what was added."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.conversation = Conversation()

    def add(self, event_type: str, fields: dict[str, Any]) -> str:
        event_id = f"sevt_{len(self.events)}"
        self.events.append((event_type, fields))
        self.conversation.apply(event_id, event_type, fields)
        return event_id


def toolbox(policy: str) -> Toolbox:
    offered = {"git__log": ServerTool("git", "log", policy)}
    servers: Any = SimpleNamespace(definitions=[LOG], find=offered.get)
    profile = AgentProfile("a", "", "m", "standard", {}, {})
    return Toolbox(profile, {}, (), servers)


def written(policy: str, *calls: ToolCall) -> tuple[Journal, list[tuple[str, dict[str, Any]]]]:
    journal = Journal()
    journal.add("span.model_request_start", {"context_seq": 0})
    return journal, toolbox(policy).write_calls(list(calls), journal)  # type: ignore[arg-type]


def test_a_call_is_written_under_the_servers_names_and_kept_under_the_models() -> None:
    journal, refused = written("always_allow", ToolCall("toolu_1", "git__log", {"n": 1}))
    event_type, fields = journal.events[-1]
    assert (event_type, fields["name"], fields["mcp_server_name"]) == ("agent.mcp_tool_use", "log", "git")
    assert fields["content"] == [{"type": "tool_use", "id": "toolu_1", "name": "git__log", "input": {"n": 1}}]
    assert not refused
    (call,) = journal.conversation.open_calls()
    assert (call.name, call.server_name, call.server_tool, call.permission) == ("git__log", "git", "log", "allow")


def test_calls_that_ask_share_a_group_whoever_runs_them() -> None:
    journal, _ = written("always_ask", ToolCall("toolu_1", "git__log", {}), ToolCall("toolu_2", "git__log", {}))
    first, second = (fields for event_type, fields in journal.events if event_type == "agent.mcp_tool_use")
    assert first["evaluated_permission"] == "ask" and first["evaluation"] == {"type": "always_ask"}
    assert first["confirmation_group_id"] == second["confirmation_group_id"]


def test_a_call_with_input_that_is_none_is_answered_under_its_server() -> None:
    journal, refused = written("always_allow", ToolCall("toolu_1", "git__log", {}, input_error="no JSON"))
    assert journal.events[-1][1]["evaluated_permission"] == "deny"
    ((event_type, fields),) = refused
    assert (event_type, fields["mcp_tool_use_id"]) == ("agent.mcp_tool_result", "sevt_1")
    assert fields["mcp_server_name"] == "git"


def test_a_result_answers_its_call_with_text_and_pictures() -> None:
    journal, _ = written("always_allow", ToolCall("toolu_1", "git__log", {}))
    (call,) = journal.conversation.open_calls()
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    event_type, fields = recovery.outcome_result(call, ToolOutcome("seen", pictures=(picture,)))
    assert event_type == "agent.mcp_tool_result" and fields["content"] == [{"type": "text", "text": "seen"}, picture]
    journal.add(event_type, fields)
    assert not journal.conversation.open_calls()
    assert journal.conversation.messages()[-1].content[0]["content"] == fields["content"]


def test_a_call_that_may_have_begun_is_not_made_again() -> None:
    journal, _ = written("always_allow", ToolCall("toolu_1", "git__log", {}))
    plan = recovery.plan(journal.conversation, attempt=2, resumed=False)
    assert not plan.run and not plan.park
    event_type, fields = plan.events[-1]
    assert event_type == "agent.mcp_tool_result" and fields["content"][0]["text"] == recovery.OUTCOME_UNKNOWN


def test_a_denied_call_gets_the_denial_and_an_approved_one_runs() -> None:
    journal, _ = written("always_ask", ToolCall("toolu_1", "git__log", {}), ToolCall("toolu_2", "git__log", {}))
    journal.add("user.tool_confirmation", {"tool_use_id": "sevt_1", "result": "deny", "deny_message": "no"})
    journal.add("user.tool_confirmation", {"tool_use_id": "toolu_2", "result": "allow"})
    plan = recovery.plan(journal.conversation, attempt=1, resumed=True)
    assert [call.event_id for call in plan.run] == ["sevt_2"]
    denied = [fields for event_type, fields in plan.events if event_type == "agent.mcp_tool_result"]
    assert [fields["mcp_tool_use_id"] for fields in denied] == ["sevt_1"]
