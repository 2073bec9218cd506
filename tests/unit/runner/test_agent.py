"""Which tools an agent may use, and how, for each form of its toolset."""

from typing import Any

import orjson
import pytest

from services.worker.runner.loop.agent import parse_agent


def policies(**toolset: Any) -> dict[str, str]:
    document = {"name": "a", "tools": [{"type": "agent_toolset_20260401", **toolset}]}
    return dict(parse_agent(orjson.dumps(document), b"", "m").policies)


def policy(kind: str) -> dict[str, Any]:
    return {"permission_policy": {"type": kind}}


def test_a_bare_toolset_allows_everything() -> None:
    assert set(policies().values()) == {"always_allow"}
    assert {"bash", "read", "write", "edit", "glob", "grep"} <= policies().keys()


def test_a_default_policy_holds_for_all_but_those_that_name_their_own() -> None:
    found = policies(default_config=policy("always_ask"), configs=[{"name": "read", **policy("always_allow")}])
    assert found["bash"] == "always_ask" and found["read"] == "always_allow"


@pytest.mark.parametrize(
    ("toolset", "expected"),
    [
        ({"configs": [{"name": "bash", "enabled": False}]}, ("bash", False)),
        ({"default_config": {"enabled": False}, "configs": [{"name": "read", "enabled": True}]}, ("read", True)),
        ({"default_config": {"enabled": False}, "configs": [{"name": "read", "enabled": True}]}, ("bash", False)),
        ({"default_config": {"enabled": False}}, ("read", False)),
    ],
)
def test_tools_are_enabled_one_by_one_or_by_default(toolset: dict[str, Any], expected: tuple[str, bool]) -> None:
    name, enabled = expected
    assert (name in policies(**toolset)) is enabled


def test_without_a_toolset_there_is_no_built_in_tool() -> None:
    custom = {"type": "custom", "name": "lookup", "description": "d", "input_schema": {"type": "object"}}
    profile = parse_agent(orjson.dumps({"name": "a", "tools": [custom]}), b'{"id":"big","speed":"fast"}', "m")
    assert not profile.policies
    assert list(profile.custom_tools) == ["lookup"]
    assert (profile.model_id, profile.speed) == ("big", "fast")
