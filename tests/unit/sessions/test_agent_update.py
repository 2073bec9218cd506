"""How an update changes a definition: keep, replace, clear, merge, preconditions, and its laws."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import InvalidArgument
from services.sessions.domain.agent import (
    AgentDocument,
    AgentVersion,
    merge_definition,
    take_precondition,
    validate_definition,
)
from services.sessions.domain.errors import AgentArchived, AgentVersionConflict, InvalidModel, McpServerMismatch
from services.sessions.domain.metadata import MAX_PAIRS, merge_metadata
from services.sessions.domain.session_errors import InvalidRequest, UnknownField

SERVER = {"name": "git", "type": "url", "url": "https://mcp.example.com"}
BINDING = {"type": "mcp_toolset", "mcp_server_name": "git"}
STORED = validate_definition(
    {
        "name": "assistant",
        "description": "Helps.",
        "model": {"id": "m", "speed": "fast"},
        "system": "Help.",
        "tools": [{"type": "agent_toolset_20260401"}, BINDING],
        "mcp_servers": [SERVER],
        "skills": [{"type": "custom", "skill_id": "s"}],
        "metadata": {"a": "1", "b": "2"},
    },
    published=False,
)


def merge(published: bool = False, **patch: Any) -> AgentDocument:
    return merge_definition(STORED, patch, published=published)


@pytest.mark.parametrize(
    ("patch", "changed"),
    [
        ({"name": "other"}, {"name": "other"}),
        ({"description": "Other."}, {"description": "Other."}),
        ({"description": None}, {"description": None}),
        ({"description": ""}, {"description": None}),
        ({"system": "Other."}, {"system": "Other."}),
        ({"tools": [BINDING]}, {"tools": STORED.tools[1:]}),
        ({"tools": None, "mcp_servers": None}, {"tools": [], "mcp_servers": []}),
        ({"tools": [], "mcp_servers": []}, {"tools": [], "mcp_servers": []}),
        ({"skills": None}, {"skills": []}),
        ({"skills": []}, {"skills": []}),
        ({"metadata": {"a": None, "c": "3"}}, {"metadata": {"b": "2", "c": "3"}}),
        ({"metadata": {"gone": None}}, {}),
        ({"metadata": {"a": ""}}, {"metadata": {"a": "", "b": "2"}}),
        ({"metadata": {}}, {}),
        ({"metadata": None}, {"metadata": {}}),
        ({"model": "new"}, {"model": {"id": "new", "speed": "standard"}}),
        ({"execution_identity": None}, {}),
        ({"multiagent": None}, {}),
        ({}, {}),
    ],
)
def test_what_is_left_out_stays_and_what_is_sent_replaces_or_clears(
    patch: dict[str, Any], changed: dict[str, Any]
) -> None:
    merged = merge(**patch)
    for name in AgentDocument.__slots__:
        assert getattr(merged, name) == changed.get(name, getattr(STORED, name)), name


@pytest.mark.parametrize("cleared", [None, ""])
def test_the_name_cannot_be_cleared_and_says_so(cleared: Any) -> None:
    with pytest.raises(InvalidRequest, match="name cannot be cleared"):
        merge(name=cleared)
    with pytest.raises(InvalidModel, match="model cannot be cleared"):
        merge(model=cleared)


@pytest.mark.parametrize("cleared", [None, "", " \n"])
def test_only_published_callers_may_clear_the_system_prompt(cleared: Any) -> None:
    assert merge(published=True, system=cleared).system is None
    with pytest.raises(InvalidRequest, match="system cannot be cleared"):
        merge(system=cleared)


def test_a_local_caller_may_change_an_agent_that_has_no_system_prompt() -> None:
    bare = validate_definition({"name": "a", "model": "m"}, published=True)
    assert merge_definition(bare, {"name": "b"}, published=False).system is None


def test_an_unknown_field_is_refused_by_name() -> None:
    for field in ("nmae", "id", "created_at"):
        with pytest.raises(UnknownField, match=field):
            take_precondition({field: "x"})


def test_one_side_of_a_coupled_pair_is_judged_on_the_pair_that_results() -> None:
    with pytest.raises(McpServerMismatch):
        merge(mcp_servers=[])
    with pytest.raises(McpServerMismatch):
        merge(tools=[])
    with pytest.raises(McpServerMismatch):
        merge(mcp_servers=[SERVER, SERVER | {"name": "wiki"}])


def test_a_metadata_patch_is_judged_on_the_bag_that_results() -> None:
    full = {f"k{n}": "v" for n in range(MAX_PAIRS)}
    assert len(merge_metadata(full, {"k0": None, "new": "v"})) == MAX_PAIRS
    with pytest.raises(InvalidRequest, match="17 pairs"):
        merge_metadata(full, {"new": "v"})


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({}, None),
        ({"version": 3}, 3),
        ({"expected_version": 3}, 3),
        ({"version": 3, "expected_version": 3}, 3),
        ({"version": 2**80}, 2**80),
    ],
)
def test_the_precondition_has_two_names(patch: dict[str, Any], expected: int | None) -> None:
    assert take_precondition(patch | {"name": "x"}) == (expected, {"name": "x"})


@pytest.mark.parametrize("name", ["version", "expected_version"])
@pytest.mark.parametrize("value", [None, "1", 0, -1, 1.0, True, [1], {}])
def test_a_malformed_precondition_is_refused_for_the_field_that_carried_it(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        take_precondition({name: value})
    assert refusal.value.field == name


def test_two_preconditions_that_differ_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="must not differ"):
        take_precondition({"version": 1, "expected_version": 2})


def version(archived: bool = False) -> AgentVersion:
    now = datetime(2026, 11, 29, tzinfo=UTC)
    return AgentVersion("agent_1", 3, "{}", "{}", "m", now, now, now if archived else None)


def test_a_version_knows_what_it_refuses() -> None:
    version().require_version(None)
    version().require_version(3)
    version().require_active()
    with pytest.raises(AgentVersionConflict):
        version().require_version(2)
    with pytest.raises(AgentArchived):
        version(archived=True).require_active()


def test_sameness_is_structural_and_strict_about_types() -> None:
    def with_default(value: Any) -> AgentDocument:
        schema = {"type": "object", "properties": {"q": {"default": value, "type": "number"}}}
        tool = {"type": "custom", "name": "t", "description": "d", "input_schema": schema}
        return validate_definition({"name": "a", "model": "m", "system": "s", "tools": [tool]}, published=False)

    assert with_default(1).same_as(with_default(1))
    assert not with_default(1).same_as(with_default(True))
    assert not with_default(1).same_as(with_default(1.0))
    assert merge(metadata={"b": "2", "a": "1"}).same_as(STORED)


texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), max_size=12)
keys = st.sampled_from([f"k{n}" for n in range(12)])
bags = st.dictionaries(keys, texts, max_size=12)
bag_patches = st.dictionaries(keys, texts | st.none(), max_size=12)
patches = st.fixed_dictionaries(
    {},
    optional={
        "name": texts.filter(str.strip),
        "description": texts | st.none(),
        "system": texts.filter(str.strip),
        "model": st.sampled_from(["m", "n", {"id": "m"}, {"id": "n", "speed": "fast", "effort": "low"}]),
        "skills": st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(
            lambda ids: [{"type": "custom", "skill_id": skill_id} for skill_id in ids]
        )
        | st.none(),
        "tools": st.sampled_from([[BINDING], [{"type": "agent_toolset_20260401"}, BINDING]]),
        "metadata": bag_patches | st.none(),
    },
)


@given(bags, bag_patches)
def test_law_a_merge_holds_each_key_as_patched_or_else_as_stored(
    bag: dict[str, str], patch: dict[str, str | None]
) -> None:
    merged = merge_metadata(bag, patch)
    for key in bag.keys() | patch.keys():
        assert merged.get(key) == (patch[key] if key in patch else bag[key])


@given(bags, bag_patches, bag_patches)
def test_law_two_patches_in_turn_are_one(
    bag: dict[str, str], first: dict[str, str | None], second: dict[str, str | None]
) -> None:
    assert merge_metadata(merge_metadata(bag, first), second) == merge_metadata(bag, first | second)


@given(patches)
def test_law_an_update_applied_twice_changes_nothing_the_second_time(patch: dict[str, Any]) -> None:
    once = merge_definition(STORED, patch, published=False)
    assert merge_definition(once, patch, published=False).same_as(once)


@given(patches)
def test_law_a_definition_resent_whole_changes_nothing(patch: dict[str, Any]) -> None:
    merged = merge_definition(STORED, patch, published=False)
    whole = {name: getattr(merged, name) for name in AgentDocument.__slots__}
    assert merge_definition(merged, whole, published=False).same_as(merged)
    assert validate_definition(whole, published=False).same_as(merged)


@given(patches)
def test_law_a_stored_definition_survives_the_database(patch: dict[str, Any]) -> None:
    merged = merge_definition(STORED, patch, published=False)
    assert AgentDocument.from_json(merged.document_json(), merged.model_json()) == merged


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("name", "description", "model", "model_config", "system", "tools", "mcp_servers", "skills", "metadata")


@given(st.dictionaries(st.sampled_from([*FIELDS, "multiagent", "execution_identity"]) | texts, json_values, max_size=5))
def test_law_any_json_is_either_taken_or_refused_by_name(body: dict[str, Any]) -> None:
    for judge in (
        lambda: validate_definition(body, published=True),
        lambda: merge_definition(STORED, take_precondition(body)[1], published=True),
    ):
        try:
            judge()
        except InvalidArgument as refusal:
            assert refusal.field is not None
