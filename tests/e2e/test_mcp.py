"""MCP over REST with a vendor's model: from the agent to the model's next request, and how the servers stand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from kit.testing import await_until
from tests.support import chat
from tests.support.api import Api, Refused, api, message
from tests.support.mcp_process import SMALL
from tests.support.mcp_server import Doorman, mcp_server
from tests.support.platform import Platform, running_platform
from tests.support.vendor import Vendor, vendor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "tested"}
ALLOWED = {"default_config": {"permission_policy": {"type": "always_allow"}}}
BEARER = "bearer-of-the-mcp-tests"


@pytest.fixture
async def model() -> AsyncIterator[Vendor]:
    async with vendor(chat.said("nothing yet")) as scripted:
        yield scripted


@pytest.fixture
def platform(tmp_path: Any, model: Vendor) -> Iterator[Platform]:
    """A platform whose operator allows servers on this host."""
    environment = chat.environment(model) | {"MANAGED_AGENTS_ALLOWED_PRIVATE_HOSTS": "127.0.0.1"}
    with running_platform(tmp_path / "data", environment=environment) as running:
        yield running


async def session_of(client: Api, server: dict[str, Any], *tools: dict[str, Any], **fields: Any) -> str:
    return await client.session(await client.agent(tools=list(tools), mcp_servers=[server]), **fields)


def by_url(server: Doorman) -> dict[str, Any]:
    return {"type": "url", "name": "tested", "url": server.url}


async def turn(client: Api, session_id: str, text: str) -> list[dict[str, Any]]:
    """What a message leads to."""
    before = len(await client.log(session_id))
    await client.send(session_id, message(text))
    events: list[dict[str, Any]] = []

    async def is_over() -> bool:
        events[:] = (await client.log(session_id))[before:]
        return bool(events) and events[-1]["type"] == "session.status_idle"

    await await_until(is_over, timeout=30, message="the turn is over")
    return events


async def standing(client: Api, session_id: str) -> list[dict[str, Any]]:
    answer = await client.call("GET", f"/v1/x/mcp/status?session_id={session_id}")
    assert answer["session_id"] == session_id
    return answer["servers"]


async def test_a_tool_of_a_server_is_offered_called_and_answered(platform: Platform, model: Vendor) -> None:
    model.answers = [chat.called("tested__add", a=20, b=22), chat.said("It is 42.")]
    async with mcp_server() as server, api(platform.url) as client:
        server.tokens = {BEARER}
        vault = await client.call(
            "POST",
            "/v1/vaults",
            {"display_name": "v"},
            anthropic_version="2023-06-01",
            anthropic_beta="managed-agents-2026-04-01",
        )
        auth = {"type": "static_bearer", "mcp_server_url": server.url, "token": BEARER}
        await client.call(
            "POST",
            f"/v1/vaults/{vault['id']}/credentials",
            {"display_name": "c", "auth": auth},
            anthropic_version="2023-06-01",
            anthropic_beta="managed-agents-2026-04-01",
        )
        session_id = await session_of(client, by_url(server), TOOLSET | ALLOWED, vault_ids=[vault["id"]])
        (before,) = await standing(client, session_id)
        assert (before["status"], before["tools"], before["connected_at"]) == ("not_connected", [], None)

        events = await turn(client, session_id, "add")
        (result,) = [event for event in events if event["type"] == "agent.mcp_tool_result"]
        assert result["content"] == [{"type": "text", "text": "42"}] and result["mcp_server_name"] == "tested"
        assert "tested__add" in [tool["function"]["name"] for tool in model.requests[0]["tools"]]
        (answered,) = [each for each in model.requests[1]["messages"] if each["role"] == "tool"]
        assert "42" in str(answered["content"])

        (after,) = await standing(client, session_id)
        assert (after["status"], after["error"], after["url"]) == ("connected", None, server.url)
        assert "add" in [tool["name"] for tool in after["tools"]] and after["connected_at"]
        told = str(events) + str(after) + platform.logs() + platform.output() + str(model.requests)
        assert BEARER not in told

    async with api(platform.url) as client:
        # The server is gone: the session goes on, says so, and shows it.
        model.answers = [chat.called("tested__add", a=1, b=1), chat.said("It is gone.")]
        events = await turn(client, session_id, "again")
        assert [event for event in events if event["type"] == "session.error"]
        assert events[-1]["stop_reason"] == {"type": "end_turn"}
        (gone,) = await standing(client, session_id)
        assert (gone["status"], gone["error"]["type"]) == ("failed", "mcp_connection_failed_error")


async def test_a_server_may_be_a_process_of_the_sandbox(platform: Platform, model: Vendor) -> None:
    model.answers = [chat.called("tested__write", path="made.txt"), chat.said("Done.")]
    server = {"type": "stdio", "name": "tested", "command": "python3", "args": ["-c", SMALL], "env": {"LEVEL": "7"}}
    async with api(platform.url) as client:
        session_id = await session_of(client, server, TOOLSET | ALLOWED)
        events = await turn(client, session_id, "look")
        (result,) = [event for event in events if event["type"] == "agent.mcp_tool_result"]
        assert result["content"] == [{"type": "text", "text": "write"}]
        (shown,) = await standing(client, session_id)
        assert (shown["type"], shown["status"]) == ("stdio", "connected") and "url" not in shown


async def test_an_environment_that_does_not_allow_the_server_has_it_refused(platform: Platform, model: Vendor) -> None:
    async with mcp_server() as server, api(platform.url) as client:
        network = {"type": "limited", "allow_mcp_server_network_access": False, "allowed_hosts": ["example.com"]}
        environment = await client.call("POST", "/v1/environments", {"name": "closed", "network": network})
        session_id = await session_of(client, by_url(server), TOOLSET, environment_id=environment["id"])
        events = await turn(client, session_id, "hello")
        (error,) = [event["error"] for event in events if event["type"] == "session.error"]
        assert (error["type"], error["mcp_server_name"]) == ("mcp_connection_failed_error", "tested")
        assert "127.0.0.1" in error["message"] and server.seen == []


async def test_only_sessions_of_the_caller_are_told_of(platform: Platform) -> None:
    async with api(platform.url) as client:
        with pytest.raises(Refused) as refused:
            await client.call("GET", "/v1/x/mcp/status?session_id=sess_01JABCDEFGHJKMNPQRSTVWXYZ0")
        assert refused.value.status == 404
        with pytest.raises(Refused) as refused:
            await client.call("GET", "/v1/x/mcp/status")
        assert refused.value.status == 400 and "session_id" in refused.value.body["error"]["message"]
        assert await standing(client, await client.session(await client.agent())) == []
