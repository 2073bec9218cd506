"""Stored agents and environments satisfy the published client's own types, checked strictly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from anthropic._models import validate_type
from anthropic.types.beta import BetaEnvironment, BetaManagedAgentsAgent
from pydantic import ValidationError

from kit.clock import rfc3339
from services.sessions.domain.agent import validate_definition
from services.sessions.domain.environment import Environment, validate_environment
from services.sessions.domain.roster import RosterAgent, references, resolve

MOMENT = datetime(2026, 11, 29, tzinfo=UTC)
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}


def published_agent(definition: dict[str, Any]) -> BetaManagedAgentsAgent:
    document = validate_definition({"name": "a", "model": "m"} | definition, published=True)
    body = orjson.loads(document.document_json()) | {
        "id": "agent_1",
        "type": "agent",
        "version": 1,
        "created_at": rfc3339(MOMENT),
        "updated_at": rfc3339(MOMENT),
        "archived_at": None,
        "model": orjson.loads(document.model_json()),
    }
    return validate_type(type_=BetaManagedAgentsAgent, value=body)


@pytest.mark.parametrize(
    "definition",
    [
        {},
        {"system": "s", "description": "d", "metadata": {"a": "b"}},
        {"model": {"id": "m", "speed": "fast", "effort": "xhigh"}},
        {"tools": [{"type": "agent_toolset_20260401"}]},
        {
            "tools": [
                {
                    "type": "agent_toolset_20260401",
                    "default_config": {"permission_policy": {"type": "always_ask"}},
                    "configs": [
                        *({"name": name} for name in ("bash", "read", "write", "edit", "glob", "grep")),
                        {"name": "web_fetch", "enabled": False, "allowed_domains": ["a.example.com"]},
                        {
                            "name": "web_search",
                            "enabled": False,
                            "user_location": {"type": "approximate", "country": "DE"},
                        },
                    ],
                }
            ]
        },
        {
            "tools": [{"type": "mcp_toolset", "mcp_server_name": "git", "configs": [{"name": "push"}]}],
            "mcp_servers": [{"name": "git", "type": "url", "url": "https://mcp.example.com"}],
        },
        {"tools": [{"type": "custom", "name": "t", "description": "d", "input_schema": SCHEMA}]},
        {"tools": [{"type": "custom_toolset", "configs": [{"name": "t", "description": "d", "parameters": SCHEMA}]}]},
        {"skills": [{"type": "anthropic", "skill_id": "xlsx"}, {"type": "custom", "skill_id": "s", "version": "2"}]},
    ],
)
def test_an_agent_reads_as_the_published_client_demands(definition: dict[str, Any]) -> None:
    agent = published_agent(definition)
    assert agent.execution_identity.type == "service_account"
    assert agent.multiagent is None


@pytest.mark.parametrize(
    "multiagent",
    [
        {"type": "coordinator", "agents": ["b", {"type": "self"}, {"type": "advisor", "model": "m"}]},
        {"type": "multiagent_20261001"},
        {
            "type": "multiagent_20261001",
            "subagents": {"type": "enabled", "predefined_agents": ["b"], "inline_agents": {"type": "disabled"}},
            "workflows": {"type": "disabled"},
            "advisor": {"type": "enabled", "model": "m"},
        },
    ],
)
def test_a_resolved_roster_reads_as_the_published_client_demands(multiagent: dict[str, Any]) -> None:
    document = validate_definition({"name": "a", "model": "m", "multiagent": multiagent}, published=True)
    assert document.multiagent is not None
    known = [RosterAgent("b", 1, False, False) for _ in references(document.multiagent, "agent_1")]
    resolved = resolve(document.multiagent, "agent_1", 1, known)
    field = BetaManagedAgentsAgent.model_fields["multiagent"].annotation
    assert validate_type(type_=field, value=resolved)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"config": {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": ["a.com"]}}},
        {"config": {"type": "self_hosted"}},
        {"hosting_type": "docker", "network": {"type": "unrestricted"}},
        {"sandbox_provider": "made-up", "description": "d", "scope": "account"},
    ],
)
@pytest.mark.parametrize("damaged", [False, True])
def test_an_environment_reads_as_the_published_client_demands(body: dict[str, Any], damaged: bool) -> None:
    content = validate_environment({"name": "e"} | body)
    stored = Environment(
        "env_1",
        content.name,
        content.description,
        "{}",
        "{" if damaged else content.config,
        content.scope,
        MOMENT,
        MOMENT,
        None,
    )
    rendered = {
        "id": stored.id,
        "type": "environment",
        "name": stored.name,
        "description": stored.description,
        "metadata": {},
        "scope": stored.scope,
        "config": stored.report().config,
        "created_at": rfc3339(MOMENT),
        "updated_at": rfc3339(MOMENT),
        "archived_at": None,
    }
    assert validate_type(type_=BetaEnvironment, value=rendered).id == "env_1"


def test_the_check_is_strict() -> None:
    with pytest.raises(ValidationError):
        validate_type(type_=BetaManagedAgentsAgent, value={"id": "agent_1", "type": "agent"})
