"""The multiagent part: both shapes, resolution to versions, depth, merging level by level."""

from __future__ import annotations

from typing import Any

import pytest

from services.sessions.domain.roster import (
    RosterAgent,
    RosterReference,
    merge_multiagent,
    references,
    resolve,
    stamp_self,
    validate_multiagent,
)
from services.sessions.domain.session_errors import InvalidRequest

ON, OFF = {"type": "enabled"}, {"type": "disabled"}
MEMBERS = "multiagent_20261001"


def coordinator(*agents: Any) -> dict[str, Any]:
    return {"type": "coordinator", "agents": list(agents)}


def known(agent_id: str, version: int = 1, *, archived: bool = False, has_roster: bool = False) -> RosterAgent:
    return RosterAgent(agent_id, version, archived, has_roster)


def test_none_is_none() -> None:
    assert validate_multiagent(None) is None
    assert references(None, "me") == []


def test_a_coordinator_is_resolved_entry_by_entry() -> None:
    multiagent = validate_multiagent(
        coordinator(
            "a", {"type": "agent", "id": "b", "version": 4}, {"type": "self"}, {"type": "advisor", "model": "m"}
        )
    )
    assert multiagent is not None
    assert references(multiagent, "me") == [
        RosterReference("multiagent.agents.0", "a", None),
        RosterReference("multiagent.agents.1", "b", 4),
    ]
    resolved = resolve(multiagent, "me", 7, [known("a", 2), known("b", 4)])
    assert resolved == coordinator(
        {"type": "agent", "id": "a", "version": 2},
        {"type": "agent", "id": "b", "version": 4},
        {"type": "agent", "id": "me", "version": 7},
        {"type": "advisor", "model": "m"},
    )
    assert validate_multiagent(resolved) == resolved
    assert stamp_self(resolved, "me", 8)["agents"][2]["version"] == 8


def test_members_get_their_defaults() -> None:
    assert validate_multiagent({"type": MEMBERS}) == {
        "type": MEMBERS,
        "subagents": {"type": "enabled", "inline_agents": ON, "predefined_agents": []},
        "workflows": {"type": "enabled", "inline_agents": ON, "predefined_agents": []},
        "advisor": OFF,
    }


def test_each_roster_of_the_members_is_resolved() -> None:
    multiagent = validate_multiagent(
        {
            "type": MEMBERS,
            "subagents": {"type": "enabled", "predefined_agents": ["a", {"type": "self"}]},
            "workflows": {"type": "enabled", "predefined_agents": ["a"]},
            "advisor": {"type": "enabled", "model": "m"},
        }
    )
    assert multiagent is not None
    resolved = resolve(multiagent, "me", 3, [known("a", 2), known("a", 2)])
    assert resolved["subagents"]["predefined_agents"] == [
        {"type": "agent", "id": "a", "version": 2},
        {"type": "agent", "id": "me", "version": 3},
    ]
    assert resolved["workflows"]["predefined_agents"] == [{"type": "agent", "id": "a", "version": 2}]
    assert resolved["advisor"] == {"type": "enabled", "model": "m"}


@pytest.mark.parametrize(
    ("agent", "word"),
    [(None, "does not exist"), (known("a", archived=True), "archived"), (known("a", has_roster=True), "one level")],
)
def test_an_agent_that_cannot_be_called_is_refused_at_its_place(agent: RosterAgent | None, word: str) -> None:
    multiagent = validate_multiagent(coordinator("b", "a"))
    assert multiagent is not None
    with pytest.raises(InvalidRequest, match=word) as refusal:
        resolve(multiagent, "me", 1, [known("b"), agent])
    assert refusal.value.field == "multiagent.agents.1"


def test_self_under_two_names_is_a_repetition() -> None:
    multiagent = validate_multiagent(coordinator("me", {"type": "self"}))
    assert multiagent is not None
    with pytest.raises(InvalidRequest, match="more than once"):
        resolve(multiagent, "me", 1, [])


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("coordinator", "multiagent"),
        ({}, "multiagent.type"),
        ({"type": "swarm"}, "multiagent.type"),
        (coordinator(), "multiagent.agents"),
        ({"type": "coordinator"}, "multiagent.agents"),
        (coordinator(*(f"a{n}" for n in range(21))), "multiagent.agents"),
        (coordinator("a", "a"), "multiagent.agents.1"),
        (coordinator("a", {"type": "agent", "id": "a", "version": 2}), "multiagent.agents.1"),
        (coordinator({"type": "self"}, {"type": "self"}), "multiagent.agents.1"),
        (coordinator({"type": "advisor", "model": "m"}, {"type": "advisor", "model": "n"}), "multiagent.agents.1"),
        (coordinator(4), "multiagent.agents.0"),
        (coordinator(""), "multiagent.agents.0"),
        (coordinator("a\x00"), "multiagent.agents.0"),
        (coordinator({"type": "agent"}), "multiagent.agents.0.id"),
        (coordinator({"type": "agent", "id": "a", "version": 0}), "multiagent.agents.0.version"),
        (coordinator({"type": "agent", "id": "a", "version": 2**31}), "multiagent.agents.0.version"),
        (coordinator({"type": "advisor"}), "multiagent.agents.0.model"),
        ({"type": MEMBERS, "subagents": []}, "multiagent.subagents"),
        ({"type": MEMBERS, "subagents": {}}, "multiagent.subagents.type"),
        (
            {"type": MEMBERS, "subagents": {"type": "enabled", "inline_agents": OFF}},
            "multiagent.subagents.predefined_agents",
        ),
        (
            {
                "type": MEMBERS,
                "workflows": {"type": "enabled", "predefined_agents": [{"type": "advisor", "model": "m"}]},
            },
            "multiagent.workflows.predefined_agents.0.type",
        ),
        ({"type": MEMBERS, "advisor": {"type": "enabled"}}, "multiagent.advisor.model"),
        ({"type": MEMBERS, "advisor": "m"}, "multiagent.advisor"),
    ],
)
def test_a_malformed_roster_is_refused_by_its_path(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        validate_multiagent(value)
    assert refusal.value.field == field


def test_an_update_of_the_members_merges_level_by_level() -> None:
    stored = validate_multiagent(
        {
            "type": MEMBERS,
            "subagents": {"type": "enabled", "inline_agents": OFF, "predefined_agents": ["a"]},
            "workflows": OFF,
            "advisor": {"type": "enabled", "model": "m"},
        }
    )
    assert stored is not None

    merged = merge_multiagent(stored, {"type": MEMBERS, "subagents": {"type": "enabled", "predefined_agents": ["b"]}})
    assert merged == stored | {
        "subagents": {"type": "enabled", "inline_agents": OFF, "predefined_agents": [{"type": "agent", "id": "b"}]}
    }
    assert merge_multiagent(stored, {"type": MEMBERS, "workflows": None})["workflows"]["type"] == "enabled"
    assert merge_multiagent(stored, {"type": MEMBERS, "advisor": OFF})["advisor"] == OFF
    assert merge_multiagent(stored, {"type": MEMBERS, "subagents": OFF})["subagents"] == OFF
    assert merge_multiagent(stored, coordinator("b")) == coordinator({"type": "agent", "id": "b"})
    assert merge_multiagent(stored, None) is None
    with pytest.raises(Exception, match=r"multiagent\.nope"):
        merge_multiagent(stored, {"type": MEMBERS, "nope": 1})
