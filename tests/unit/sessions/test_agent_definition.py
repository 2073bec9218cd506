"""What a new agent may say: required fields, limits, unknown fields, callers, identity, skills."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kit.errors import DomainError
from services.sessions.domain.agent import AgentDocument, validate_definition
from services.sessions.domain.errors import InvalidModel
from services.sessions.domain.session_errors import InvalidRequest, UnknownField, UnsupportedCapability

TOOLSET = {"type": "agent_toolset_20260401"}
BINDING = {"type": "mcp_toolset", "mcp_server_name": "s"}
BASE = {"name": "assistant", "model": "default", "system": "Help."}


def define(published: bool = False, **fields: Any) -> AgentDocument:
    return validate_definition(BASE | fields, published=published)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in BASE.items() if key != name}


def test_the_shortest_definition_gets_every_default() -> None:
    document = define()
    assert document == AgentDocument(
        name="assistant",
        description=None,
        system="Help.",
        tools=[],
        mcp_servers=[],
        skills=[],
        metadata={},
        multiagent=None,
        execution_identity={"type": "service_account"},
        model={"id": "default", "speed": "standard"},
    )


def test_a_stored_document_reads_back_as_it_was() -> None:
    document = define(metadata={"a": "b"}, description="ü")
    assert AgentDocument.from_json(document.document_json(), document.model_json()) == document


def test_a_document_of_an_older_build_gets_defaults_for_what_it_lacks() -> None:
    assert AgentDocument.from_json('{"name": "old", "system": "s"}', '{"id": "m"}').skills == []


@pytest.mark.parametrize("name", ["name", "model"])
@pytest.mark.parametrize("absent", ["left out", "null"])
def test_required_fields(name: str, absent: str) -> None:
    body = without(name) | ({name: None} if absent == "null" else {})
    with pytest.raises(InvalidModel if name == "model" else InvalidRequest) as refusal:
        validate_definition(body, published=True)
    assert refusal.value.field == name


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "   "}, "name"),
        ({"name": 4}, "name"),
        ({"name": "x" * 257}, "name"),
        ({"name": "a\x00"}, "name"),
        ({"description": "x" * 2049}, "description"),
        ({"description": ["x"]}, "description"),
        ({"description": "a\x00"}, "description"),
        ({"system": "x" * 100_001}, "system"),
        ({"system": {}}, "system"),
        ({"system": "a\x00"}, "system"),
        ({"tools": {}}, "tools"),
        ({"tools": "bash"}, "tools"),
        ({"tools": [None]}, "tools.0"),
        ({"mcp_servers": {}}, "mcp_servers"),
        ({"skills": 1}, "skills"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"": "v"}}, "metadata"),
        ({"metadata": {"a\x00": "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {"k": None}}, "metadata.k"),
        ({"metadata": {"k": "a\x00"}}, "metadata.k"),
        ({"execution_identity": "service_account"}, "execution_identity"),
        ({"execution_identity": {"type": "root"}}, "execution_identity.type"),
        ({"multiagent": []}, "multiagent"),
    ],
)
def test_a_malformed_field_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        define(**fields)
    assert refusal.value.field == field
    assert field in refusal.value.message


def test_limits_are_inclusive() -> None:
    define(
        name="n" * 256,
        description="d" * 2048,
        system="s" * 100_000,
        metadata={f"{n:064}": "v" * 512 for n in range(16)},
        skills=[{"type": "custom", "skill_id": f"skill_{n}"} for n in range(20)],
    )


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model_settings": {}}, "model_settings"),
        ({"id": "agent_1"}, "id"),
        ({"version": 1}, "version"),
        ({"tools": [TOOLSET | {"tools": []}]}, "tools.0.tools"),
        ({"tools": [TOOLSET | {"configs": [{"name": "bash", "x": 1}]}]}, "tools.0.configs.0.x"),
        ({"tools": [TOOLSET | {"default_config": {"x": 1}}]}, "tools.0.default_config.x"),
        (
            {"tools": [TOOLSET | {"default_config": {"permission_policy": {"type": "always_ask", "x": 1}}}]},
            "tools.0.default_config.permission_policy.x",
        ),
        ({"tools": [BINDING | {"x": 1}]}, "tools.0.x"),
        ({"tools": [BINDING | {"configs": [{"name": "t", "x": 1}]}]}, "tools.0.configs.0.x"),
        ({"tools": [{"type": "custom", "name": "t", "parameters": {}}]}, "tools.0.parameters"),
        ({"tools": [{"type": "custom_toolset", "x": 1}]}, "tools.0.x"),
        ({"tools": [{"type": "custom_toolset", "configs": [{"name": "t", "x": 1}]}]}, "tools.0.configs.0.x"),
        ({"mcp_servers": [{"name": "s", "url": "https://a.example", "token": "t"}]}, "mcp_servers.0.token"),
        ({"skills": [{"type": "custom", "skill_id": "s", "x": 1}]}, "skills.0.x"),
        ({"execution_identity": {"type": "service_account", "x": 1}}, "execution_identity.x"),
        ({"multiagent": {"type": "coordinator", "agents": ["a"], "x": 1}}, "multiagent.x"),
        ({"multiagent": {"type": "coordinator", "agents": [{"type": "self", "x": 1}]}}, "multiagent.agents.0.x"),
    ],
)
def test_an_unknown_field_is_refused_by_its_path_at_every_level(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(UnknownField) as refusal:
        define(**fields)
    assert refusal.value.field == path
    assert path in refusal.value.message


def test_a_refusal_repeats_no_more_of_a_field_name_than_fits_a_header() -> None:
    long = "x" * 100_000
    for fields in ({long: 1}, {"model": {"id": "m", long: 1}}, {"tools": [TOOLSET | {long: 1}]}):
        with pytest.raises(DomainError) as refusal:
            define(**fields)
        assert len(refusal.value.message) < 1000


@pytest.mark.parametrize("system", [None, "", "  \n"])
def test_only_published_callers_may_go_without_a_system_prompt(system: str | None) -> None:
    assert define(published=True, system=system).system is None
    with pytest.raises(InvalidRequest, match="system"):
        define(system=system)


def test_a_system_prompt_left_out_is_refused_for_local_callers() -> None:
    assert validate_definition(without("system"), published=True).system is None
    with pytest.raises(InvalidRequest) as refusal:
        validate_definition(without("system"), published=False)
    assert refusal.value.field == "system"


def test_an_empty_description_is_none() -> None:
    assert define(description="").description is None


def test_null_is_an_empty_list_or_bag() -> None:
    document = define(tools=None, mcp_servers=None, skills=None, metadata=None, execution_identity=None)
    assert (document.tools, document.mcp_servers, document.skills, document.metadata) == ([], [], [], {})
    assert document.execution_identity == {"type": "service_account"}


def test_an_execution_identity_of_another_kind_is_an_unsupported_capability() -> None:
    with pytest.raises(UnsupportedCapability) as refusal:
        define(execution_identity={"type": "aws_role", "role_arn": "arn:aws:iam::1:role/x"})
    assert refusal.value.field == "execution_identity.type"


def test_a_skill_without_a_version_is_pinned_to_the_latest() -> None:
    skills = define(
        skills=[{"type": "anthropic", "skill_id": "xlsx"}, {"type": "custom", "skill_id": "s", "version": "3"}]
    ).skills
    assert skills == [
        {"type": "anthropic", "skill_id": "xlsx", "version": "latest"},
        {"type": "custom", "skill_id": "s", "version": "3"},
    ]


@pytest.mark.parametrize(
    ("skills", "field"),
    [
        ([{"type": "custom", "skill_id": "s"}] * 2, "skills.1.skill_id"),
        ([{"type": "other", "skill_id": "s"}], "skills.0.type"),
        ([{"type": "custom"}], "skills.0.skill_id"),
        ([{"type": "custom", "skill_id": "s", "version": 3}], "skills.0.version"),
        (["skill_1"], "skills.0"),
        ([{"type": "custom", "skill_id": f"s{n}"} for n in range(21)], "skills"),
    ],
)
def test_malformed_skills(skills: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        define(skills=skills)
    assert refusal.value.field == field


def test_every_refusal_names_a_field_and_a_reason() -> None:
    for fields in ({"name": 1}, {"model": {}}, {"tools": [{}]}, {"nope": 1}):
        with pytest.raises(DomainError) as refusal:
            define(**fields)
        assert refusal.value.field
        assert refusal.value.reason
        assert refusal.value.message.endswith(".")


def test_reads_pass_text_through_without_escaping_it() -> None:
    assert "Grüße" in define(system="Grüße").document_json()
    assert orjson.loads(define(system="Grüße").document_json())["system"] == "Grüße"
