"""What sessions of self-hosted environments can't have is refused by name; everything else is as anywhere."""

from typing import Any

import pytest

from services.sessions.domain.environment import resolve
from services.sessions.domain.self_hosted import refuse_agent, refuse_resource, refuse_session
from services.sessions.domain.session import read_new_session
from services.sessions.domain.session_errors import UnsupportedCapability

TOOL, SESSION, LOCAL = '{"hosting_type":"self_hosted"}', '{"type":"self_hosted"}', '{"hosting_type":"local"}'
STDIO = {"name": "notes", "type": "stdio", "command": "notes", "args": [], "env": {}}
BY_URL = {"name": "wiki", "type": "url", "url": "https://wiki.example/mcp"}
SKILL = {"type": "custom", "skill_id": "skill_1", "version": "latest"}
FILE = {"type": "file", "file_id": "file_1"}
REPOSITORY = {"type": "github_repository", "url": "https://github.com/o/r", "authorization_token": "t"}
STORE = {"type": "memory_store", "memory_store_id": "memstore_1"}


def judge(config: str, document: dict[str, Any], with_variables: tuple[str, ...] = (), **body: Any) -> None:
    new = read_new_session({"agent": "agent_1"} | body, published=False)
    object.__setattr__(new, "vaults_with_variables", frozenset(with_variables))
    refuse_session(resolve("env_1", config), document, new)


@pytest.mark.parametrize("config", [TOOL, SESSION])
@pytest.mark.parametrize(
    ("document", "body", "field", "capability"),
    [
        ({"mcp_servers": [BY_URL, STDIO]}, {}, "agent.mcp_servers.1", "mcp_stdio"),
        (
            {"multiagent": {"agents": [{}, {"mcp_servers": [STDIO]}]}},
            {},
            "agent.multiagent.agents.1.mcp_servers.0",
            "mcp_stdio",
        ),
        ({}, {"resources": [FILE]}, "resources.0.type", "file"),
        ({}, {"resources": [REPOSITORY]}, "resources.0.type", "github_repository"),
        ({}, {"vault_ids": ["vlt_1", "vlt_2"]}, "vault_ids.1", "environment_variable"),
    ],
)
def test_no_worker_can_have_it(config: str, document: dict, body: dict, field: str, capability: str) -> None:
    with pytest.raises(UnsupportedCapability) as refused:
        judge(config, document, ("vlt_2",), **body)
    assert (refused.value.field, refused.value.metadata["capability"]) == (field, capability)
    assert field in refused.value.message
    judge(LOCAL, document, ("vlt_2",), **body)


@pytest.mark.parametrize(
    ("document", "body", "field"),
    [
        ({"skills": [SKILL]}, {}, "agent.skills"),
        ({"multiagent": {"agents": [{"skills": [SKILL]}]}}, {}, "agent.multiagent.agents.0.skills"),
        ({}, {"resources": [STORE]}, "resources.0.type"),
    ],
)
def test_skills_and_memory_come_with_the_session_protocol_alone(document: dict, body: dict, field: str) -> None:
    with pytest.raises(UnsupportedCapability) as refused:
        judge(TOOL, document, **body)
    assert refused.value.field == field
    judge(SESSION, document, **body)


@pytest.mark.parametrize("config", [TOOL, SESSION])
def test_servers_by_url_and_vaults_without_variables_are_taken(config: str) -> None:
    judge(config, {"mcp_servers": [BY_URL]}, ("vlt_2",), vault_ids=["vlt_1"])


def test_what_comes_later_is_judged_alike() -> None:
    wanted = read_new_session({"agent": "a", "resources": [FILE]}, published=False).resources[0]
    for refuse in (
        lambda provider: refuse_agent(provider, "tool", {"mcp_servers": [STDIO]}),
        lambda provider: refuse_resource(provider, "session", wanted),
    ):
        refuse("local")
        with pytest.raises(UnsupportedCapability):
            refuse("self_hosted")
