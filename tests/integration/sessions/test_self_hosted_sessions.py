"""Sessions in self-hosted environments: made and kept within what workers can give, from the first body to the last."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from kit.clock import SystemClock
from managed_agents.sessions.v1 import environments_pb2, resources_pb2, sessions_pb2
from services.sessions.domain.session import NewSession
from services.sessions.handlers.environments import EnvironmentsHandler
from services.sessions.handlers.resources import ResourcesHandlers
from services.sessions.handlers.sessions import SessionsHandlers
from services.sessions.operations.repository_tokens import RepositoryTokens
from tests.integration.sessions.harness import MESSAGE, Harness, refusal

pytestmark = pytest.mark.asyncio(loop_scope="package")

STDIO = {"name": "notes", "type": "stdio", "command": "notes"}
USING_STDIO = [{"type": "agent_toolset_20260401"}, {"type": "mcp_toolset", "mcp_server_name": "notes"}]


async def environment(h: Harness, **fields: Any) -> str:
    handler = EnvironmentsHandler(h.database, SystemClock())
    request = environments_pb2.CreateEnvironmentRequest(definition_json=orjson.dumps({"name": "fleet"} | fields))
    return (await h.call(handler.CreateEnvironment, request)).environment.id


@pytest.mark.parametrize("events", [[], [MESSAGE]])
async def test_a_session_is_made_and_says_where_its_tools_run(h: Harness, events: list) -> None:
    environment_id = await environment(h, hosting_type="self_hosted")
    made = await h.create(await h.agent(), environment_id=environment_id, initial_events=events)
    status = sessions_pb2.SESSION_STATUS_RUNNING if events else sessions_pb2.SESSION_STATUS_IDLE
    assert (made.environment_id, made.status) == (environment_id, status)


async def test_what_a_worker_can_not_have_leaves_no_session(h: Harness) -> None:
    environment_id = await environment(h, hosting_type="self_hosted")
    agent = await h.agent(mcp_servers=[STDIO], tools=USING_STDIO)
    refused = await refusal(h.create(agent, environment_id=environment_id))
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "UNSUPPORTED_CAPABILITY")
    assert await h.count("sessions") == 0


async def test_vaults_with_variables_are_refused_and_others_taken(h: Harness) -> None:
    async def check(new: NewSession) -> tuple[NewSession, None]:
        return replace(new, vaults_with_variables=frozenset({"vlt_b"})), None

    h.sessions = SessionsHandlers(h.operations, check_vaults=check)
    environment_id, agent = await environment(h, hosting_type="self_hosted"), await h.agent()
    refused = await refusal(h.create(agent, environment_id=environment_id, vault_ids=["vlt_a", "vlt_b"]))
    assert (refused.reason, refused.field) == ("UNSUPPORTED_CAPABILITY", "vault_ids.1")
    assert (await h.create(agent, environment_id=environment_id, vault_ids=["vlt_a"])).vault_ids == ["vlt_a"]
    assert (await h.create(agent, vault_ids=["vlt_a", "vlt_b"])).vault_ids == ["vlt_a", "vlt_b"]


async def test_nothing_of_the_kind_is_added_later(h: Harness) -> None:
    environment_id = await environment(h, hosting_type="self_hosted")
    made = await h.create(await h.agent(), environment_id=environment_id)
    refused = await refusal(h.update(made.id, agent={"mcp_servers": [STDIO], "tools": USING_STDIO}))
    assert (refused.reason, refused.field) == ("UNSUPPORTED_CAPABILITY", "agent.mcp_servers.0")
    resources = ResourcesHandlers(h.operations, RepositoryTokens(None))
    body = {"type": "github_repository", "url": "https://github.com/o/r"}
    request = resources_pb2.AttachResourceRequest(session_id=made.id, definition_json=orjson.dumps(body))
    refused = await refusal(h.call(resources.AttachResource, request))
    assert (refused.reason, refused.field) == ("UNSUPPORTED_CAPABILITY", "type")


async def test_initial_events_of_a_refused_session_are_nowhere(h: Harness) -> None:
    environment_id = await environment(h, config={"type": "self_hosted"})
    request = sessions_pb2.CreateSessionRequest(
        definition_json=orjson.dumps(
            {
                "agent": await h.agent(),
                "environment_id": environment_id,
                "initial_events": [MESSAGE],
                "resources": [{"type": "file", "file_id": "file_1"}],
            }
        )
    )
    refused = await refusal(h.call(h.sessions.CreateSession, request))
    assert (refused.reason, refused.field) == ("UNSUPPORTED_CAPABILITY", "resources.0.type")
    assert (await h.count("sessions"), await h.count("events")) == (0, 0)
