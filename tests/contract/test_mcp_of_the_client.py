"""The published client works with MCP servers under strict validation: agents, calls, approvals, results, failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest

from tests.contract.client_flow import Flow, user
from tests.support.mcp_server import Doorman, mcp_server, silent_server
from tests.support.platform import Platform, running_platform

pytestmark = [pytest.mark.timeout(180)]

CALL = 'TOOL:tested__add:{"a": 1, "b": 2}'
OPEN = {"MANAGED_AGENTS_ALLOWED_PRIVATE_HOSTS": "127.0.0.1", "MANAGED_AGENTS_MCP_CONNECT_SECONDS": "3"}


@pytest.fixture(scope="module")
def reaching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform whose operator allows servers on this host."""
    with running_platform(tmp_path_factory.mktemp("mcp") / "data", environment=OPEN) as running:
        yield running


@pytest.fixture
async def flow(reaching: Platform) -> AsyncIterator[Flow]:
    async with anthropic.AsyncAnthropic(
        api_key="any", base_url=reaching.url, max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield Flow(client)


@pytest.fixture
async def server() -> AsyncIterator[Doorman]:
    async with mcp_server() as served:
        yield served


def toolset(**fields: Any) -> dict[str, Any]:
    return {"type": "mcp_toolset", "mcp_server_name": "tested", **fields}


async def session_of(flow: Flow, url: str, **fields: Any) -> Any:
    agent = await flow.client.beta.agents.create(
        name="a",
        model="default",
        tools=[toolset(**fields)],
        mcp_servers=[{"type": "url", "name": "tested", "url": url}],
    )
    assert agent.mcp_servers[0].url == url and agent.tools[0].type == "mcp_toolset"
    return await flow.sessions.create(agent=agent.id, environment_id=flow.environment)


async def heard(flow: Flow, session_id: str, *events: Any) -> list[Any]:
    """What a stream brings from a request on, up to the next idle."""
    found = []
    async with await flow.client.beta.sessions.events.stream(session_id) as stream:
        await flow.sessions.events.send(session_id, events=list(events))
        async for event in stream:
            found.append(event)
            if event.type == "session.status_idle":
                return found
    raise AssertionError("the stream ended before the session was idle")


def of(events: list[Any], kind: str) -> list[Any]:
    return [event for event in events if event.type == kind]


async def test_a_call_waits_runs_and_is_read_back(flow: Flow, server: Doorman) -> None:
    session = await session_of(flow, server.url)
    asked = await heard(flow, session.id, user(CALL))
    (use,) = of(asked, "agent.mcp_tool_use")
    assert (use.name, use.mcp_server_name, use.input) == ("add", "tested", {"a": 1, "b": 2})
    assert (use.evaluated_permission, use.evaluation.type) == ("ask", "always_ask")
    assert asked[-1].stop_reason.type == "requires_action" and asked[-1].stop_reason.event_ids == [use.id]
    assert server.calls == []

    allow = {"type": "user.tool_confirmation", "tool_use_id": use.id, "result": "allow"}
    answered = await heard(flow, session.id, allow)
    (result,) = of(answered, "agent.mcp_tool_result")
    assert (result.mcp_tool_use_id, result.is_error) == (use.id, False)
    assert [block.text for block in result.content] == ["3"]
    assert not of(answered, "session.error")
    assert [event.type async for event in flow.client.beta.sessions.events.list(session.id)].count(
        "agent.mcp_tool_result"
    ) == 1


async def test_a_picture_in_a_result_passes(flow: Flow, server: Doorman) -> None:
    session = await session_of(flow, server.url, default_config={"permission_policy": {"type": "always_allow"}})
    (result,) = of(await heard(flow, session.id, user("TOOL:tested__picture:{}")), "agent.mcp_tool_result")
    assert [block.type for block in result.content] == ["text", "image"]


@pytest.mark.parametrize("reason", ["silent", "refusing"])
async def test_a_server_that_fails_is_told_of_and_the_turn_ends_well(flow: Flow, server: Doorman, reason: str) -> None:
    server.tokens = {"nobody has this"}
    async with silent_server() as silent:
        session = await session_of(flow, silent if reason == "silent" else server.url)
        events = await heard(flow, session.id, user("hello"))
    (told,) = of(events, "session.error")
    kind = "mcp_connection_failed_error" if reason == "silent" else "mcp_authentication_failed_error"
    assert (told.error.type, told.error.mcp_server_name) == (kind, "tested")
    assert told.error.retry_status.type == "retrying"
    assert events[-1].stop_reason.type == "end_turn"
