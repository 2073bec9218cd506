"""The three forms of a session's agent, and every refusal of an override, each under its own code."""

from typing import Any

import pytest

from kit.errors import DomainError
from services.sessions.domain.overrides import (
    apply_overrides,
    parse_agent_reference,
    refuse_unavailable,
    replace_tools,
    without_effort,
)

TOOLSET = {"type": "agent_toolset_20260401"}
SERVER = {"type": "url", "name": "docs", "url": "https://mcp.example.com"}
MCP_TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "docs"}
SKILL = {"type": "custom", "skill_id": "skill_1"}
DOCUMENT: dict[str, Any] = {
    "name": "assistant",
    "description": None,
    "system": "Be brief.",
    "tools": [{"type": "agent_toolset_20260401", "default_config": {}, "configs": []}],
    "mcp_servers": [],
    "skills": [],
    "metadata": {},
    "multiagent": None,
}
MODEL = {"id": "default", "speed": "standard"}


def override(**fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    reference = parse_agent_reference({"type": "agent_with_overrides", "id": "agent_1", **fields})
    return apply_overrides(DOCUMENT, MODEL, reference.overrides)


def reason_of(call: Any, *arguments: Any, **fields: Any) -> str:
    with pytest.raises(DomainError) as caught:
        call(*arguments, **fields)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert caught.value.field is not None
    return caught.value.reason


class TestReference:
    def test_a_bare_id_names_the_newest_version(self) -> None:
        reference = parse_agent_reference("agent_1")
        assert (reference.agent_id, reference.version, reference.overrides) == ("agent_1", None, {})

    def test_an_object_may_pin_a_version(self) -> None:
        reference = parse_agent_reference({"type": "agent", "id": "agent_1", "version": 3})
        assert (reference.agent_id, reference.version) == ("agent_1", 3)

    def test_overrides_may_pin_a_version_too(self) -> None:
        body = {"type": "agent_with_overrides", "id": "agent_1", "version": 2, "system": "x"}
        reference = parse_agent_reference(body)
        assert (reference.version, reference.overrides) == (2, {"system": "x"})

    @pytest.mark.parametrize(
        "value",
        [
            None,
            "",
            7,
            [],
            {},
            {"id": "agent_1"},
            {"type": "agent"},
            {"type": "agent", "id": 1},
            {"type": "agent", "id": "a\x00b"},
            {"type": "agent", "id": "x" * 300},
            {"type": "team", "id": "agent_1"},
            {"type": "agent", "id": "agent_1", "version": "1"},
            {"type": "agent", "id": "agent_1", "version": 0},
            {"type": "agent", "id": "agent_1", "version": None},
            {"type": "agent", "id": "agent_1", "version": True},
            {"type": "agent", "id": "agent_1", "version": 2**31},
            {"type": "agent", "id": "agent_1", "system": "x"},
        ],
    )
    def test_malformed(self, value: Any) -> None:
        assert reason_of(parse_agent_reference, value) == "INVALID_AGENT_REF"

    @pytest.mark.parametrize("name", ["name", "metadata", "multiagent", "description"])
    def test_other_fields_can_not_be_overridden(self, name: str) -> None:
        body = {"type": "agent_with_overrides", "id": "agent_1", name: None}
        assert reason_of(parse_agent_reference, body) == "INVALID_AGENT_OVERRIDES"


class TestOverride:
    def test_what_is_left_out_is_inherited(self) -> None:
        assert override() == (DOCUMENT, MODEL)

    def test_a_value_replaces_its_field_whole(self) -> None:
        document, model = override(model="other", system="In haiku.", tools=[])
        assert model == {"id": "other", "speed": "standard"}
        assert (document["system"], document["tools"]) == ("In haiku.", [])
        assert document["name"] == "assistant"

    @pytest.mark.parametrize("name", ["tools", "mcp_servers", "skills"])
    @pytest.mark.parametrize("cleared", [None, []])
    def test_null_and_an_empty_list_clear_a_list(self, name: str, cleared: Any) -> None:
        document, _ = override(**{name: cleared})
        assert document[name] == []

    def test_null_clears_the_system_prompt(self) -> None:
        assert override(system=None)[0]["system"] is None

    def test_the_saved_agent_is_not_touched(self) -> None:
        before = {**DOCUMENT}
        override(system="x", tools=[], model="other")
        assert before == DOCUMENT

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            pytest.param({"model": None}, "AGENT_MODEL_REQUIRED", id="model-null"),
            pytest.param({"model": ""}, "INVALID_MODEL", id="model-empty"),
            pytest.param({"model": {"speed": "fast"}}, "INVALID_MODEL", id="model-without-id"),
            pytest.param({"model": {"id": "m", "speed": "ludicrous"}}, "INVALID_MODEL_SPEED", id="model-speed"),
            pytest.param({"model": {"id": "m", "colour": 1}}, "UNSUPPORTED_MODEL_FIELD", id="model-field"),
            pytest.param({"model": {"id": "m", "effort": "high"}}, "INVALID_AGENT_OVERRIDE_FIELD", id="model-effort"),
            pytest.param({"model": {"id": "m", "effort": 9}}, "INVALID_AGENT_OVERRIDE_FIELD", id="bad-effort"),
            pytest.param({"system": ""}, "INVALID_AGENT_OVERRIDE_FIELD", id="system-empty"),
            pytest.param({"system": 1}, "INVALID_AGENT_OVERRIDE_FIELD", id="system-number"),
            pytest.param({"system": "x" * 100_001}, "INVALID_AGENT_OVERRIDE_FIELD", id="system-too-long"),
            pytest.param({"tools": {}}, "INVALID_AGENT_OVERRIDE_FIELD", id="tools-object"),
            pytest.param({"tools": [{"type": "nope"}]}, "INVALID_AGENT_OVERRIDE_FIELD", id="tools-type"),
            pytest.param({"tools": [{**TOOLSET, "x": 1}]}, "INVALID_AGENT_OVERRIDE_FIELD", id="tools-field"),
            pytest.param({"mcp_servers": "docs"}, "INVALID_AGENT_OVERRIDE_FIELD", id="servers-string"),
            pytest.param({"skills": [{"type": "custom"}]}, "INVALID_AGENT_OVERRIDE_FIELD", id="skill-without-id"),
            pytest.param({"tools": [], "skills": [SKILL]}, "AGENT_TOOLS_CLEARED_WITH_SKILLS", id="tools-cleared"),
            pytest.param({"tools": None, "skills": [SKILL]}, "AGENT_TOOLS_CLEARED_WITH_SKILLS", id="tools-null"),
            pytest.param({"tools": [MCP_TOOLSET]}, "AGENT_MCP_SERVER_NOT_FOUND", id="toolset-without-server"),
        ],
    )
    def test_refusals(self, fields: dict[str, Any], reason: str) -> None:
        assert reason_of(override, **fields) == reason

    def test_clearing_the_servers_is_judged_on_the_inherited_tools(self) -> None:
        saved = {**DOCUMENT, "tools": [MCP_TOOLSET], "mcp_servers": [SERVER]}
        assert reason_of(apply_overrides, saved, MODEL, {"mcp_servers": []}) == "AGENT_MCP_SERVER_NOT_FOUND"

    def test_a_toolset_with_its_server_is_sound(self) -> None:
        document, _ = override(tools=[MCP_TOOLSET], mcp_servers=[SERVER])
        assert document["mcp_servers"] == [SERVER]


class TestLiveUpdate:
    def test_tools_are_replaced_whole(self) -> None:
        assert replace_tools(DOCUMENT, {"tools": []})["tools"] == []

    def test_a_server_without_a_toolset_is_refused(self) -> None:
        assert reason_of(replace_tools, DOCUMENT, {"mcp_servers": [SERVER]}) == "AGENT_MCP_SERVER_NOT_FOUND"

    def test_malformed_tools_are_named(self) -> None:
        assert reason_of(replace_tools, DOCUMENT, {"tools": "bash"}) == "INVALID_REQUEST"


NEEDED: dict[str, Any] = {
    "multiagent": {"type": "multiagent_20261001", "subagents": {"type": "enabled"}},
}


@pytest.mark.parametrize("name", NEEDED)
def test_an_agent_that_needs_what_no_runner_has_is_refused(name: str) -> None:
    refuse_unavailable(DOCUMENT)
    assert reason_of(refuse_unavailable, {**DOCUMENT, name: NEEDED[name]}) == "UNSUPPORTED_CAPABILITY"


def test_a_session_shows_no_effort() -> None:
    assert without_effort({"id": "m", "speed": "fast", "effort": {"type": "high"}}) == {"id": "m", "speed": "fast"}


def test_a_coordinator_has_no_custom_tool_by_the_name_of_its_thread_tools() -> None:
    roster = {"type": "coordinator", "agents": [{"type": "agent", "id": "agent_1", "version": 1}]}
    tool = {"type": "custom", "name": "start_thread", "description": "", "input_schema": {"type": "object"}}
    refuse_unavailable({**DOCUMENT, "tools": [tool]})
    assert (
        reason_of(refuse_unavailable, {**DOCUMENT, "tools": [tool], "multiagent": roster}) == "UNSUPPORTED_CAPABILITY"
    )
