"""A session's OAuth token, from vault to MCP server: renewed when it is refused, replaced when it is rotated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kit.testing import await_until
from tests.support.api import Api, api, message, tool
from tests.support.mcp_server import Doorman, mcp_server
from tests.support.oauth import AuthorizationServer, authorization_server
from tests.support.platform import Platform, running_platform

ALLOWED = {"permission_policy": {"type": "always_allow"}}
TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "tested", "default_config": ALLOWED}


@pytest.fixture(scope="module")
def vault_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform that may reach servers of this machine."""
    folder = tmp_path_factory.mktemp("tokens") / "data"
    with running_platform(folder, environment={"MANAGED_AGENTS_ALLOWED_PRIVATE_HOSTS": "127.0.0.1"}) as running:
        yield running


async def session_with(client: Api, server: Doorman, auth: dict[str, Any]) -> tuple[str, str]:
    """A session of an agent with this server, and the path of the credential that it uses."""
    vault_id = (await client.call("POST", "/v1/vaults", {"name": "tokens"}))["id"]
    path = f"/v1/vaults/{vault_id}/credentials"
    made = await client.call("POST", path, {"auth": auth})
    servers = [{"type": "url", "name": "tested", "url": server.url}]
    agent_id = await client.agent(tools=[TOOLSET], mcp_servers=servers)
    return await client.session(agent_id, vault_ids=[vault_id]), f"{path}/{made['id']}"


async def adds(client: Api, session_id: str) -> dict[str, Any]:
    """What a call of the server's tool gives in a turn of its own."""
    before = len(await client.log(session_id))
    await client.send(session_id, message(tool("tested__add", a=2, b=3)))

    async def is_over() -> bool:
        log = await client.log(session_id)
        return len(log) > before + 1 and log[-1]["type"] == "session.status_idle"

    await await_until(is_over, timeout=30)
    log = (await client.log(session_id))[before:]
    return next(event for event in log if event["type"] == "agent.mcp_tool_result")


def expiring(authority: AuthorizationServer, server: Doorman) -> dict[str, Any]:
    return {
        "type": "mcp_oauth",
        "mcp_server_url": server.url,
        "access_token": "a-token-that-has-ended",
        "refresh": {
            "client_id": "client",
            "refresh_token": authority.refresh_token,
            "token_endpoint": authority.token_endpoint,
            "token_endpoint_auth": {"type": "client_secret_post", "client_secret": "a-client-secret-of-tests"},
        },
    }


@pytest.mark.timeout(120)
async def test_a_token_that_ends_in_a_session_is_renewed_once_and_the_call_goes_on(vault_platform: Platform) -> None:
    async with authorization_server() as authority, mcp_server() as server, api(vault_platform.url) as client:
        server.tokens = {"access-token-number-1", "access-token-number-2"}
        session_id, credential = await session_with(client, server, expiring(authority, server))
        result = await adds(client, session_id)
        assert not result.get("is_error") and result["content"][0]["text"] == "5"
        assert len(authority.renewals) == 1

        # And once more, in the middle of an open connection.
        server.tokens = {"access-token-number-2"}
        result = await adds(client, session_id)
        assert result["content"][0]["text"] == "5" and len(authority.renewals) == 2
        assert authority.renewals[1]["form"]["refresh_token"] == "refresh-token-number-1"
        audit = (await client.call("GET", f"{credential}/audit"))["data"]
        assert [event["action"] for event in audit] == ["refreshed", "refreshed", "created"]
        assert {event["session_id"] for event in audit} == {session_id, None}
        assert "token-number" not in vault_platform.logs()


@pytest.mark.timeout(120)
async def test_a_rotated_token_is_used_by_a_live_session_and_one_that_is_refused_is_told(
    vault_platform: Platform,
) -> None:
    async with mcp_server() as server, api(vault_platform.url) as client:
        server.tokens = {"the-first-token-of-tests"}
        bearer = {"type": "static_bearer", "mcp_server_url": server.url, "token": "the-first-token-of-tests"}
        session_id, credential = await session_with(client, server, bearer)
        assert (await adds(client, session_id))["content"][0]["text"] == "5"

        server.tokens = {"the-second-token-of-tests"}
        rotated = await client.call("POST", f"{credential}/rotate", {"value": "the-second-token-of-tests"})
        assert "warnings" not in rotated
        assert (await adds(client, session_id))["content"][0]["text"] == "5"
        assert server.seen[-1]["token"] == "the-second-token-of-tests"

        refused = await client.call("POST", f"{credential}/rotate", {"value": "a-wrong-token-of-tests"})
        assert refused["secret_version"] == 3
        (warning,) = refused["warnings"]
        assert session_id in warning and "tested" in warning and "token-of-tests" not in warning
        status = await client.call("GET", f"/v1/x/mcp/status?session_id={session_id}")
        assert "failed" in str(status)
