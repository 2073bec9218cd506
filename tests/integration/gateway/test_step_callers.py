"""Who may take steps: conversations belong to an agent and a workspace, and a key that is revoked hears no answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kit.waiting import within
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.further import another
from tests.integration.gateway.stepping import Stage, code, stage
from tests.integration.sessions.turn_driver import answer, end

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.fixture
def gateway(fresh_gateway: Gateway) -> Gateway:
    """Runners take whatever turn waits, and keys turn authentication on."""
    return fresh_gateway


@pytest_asyncio.fixture(loop_scope="package")
async def here(gateway: Gateway) -> AsyncIterator[Stage]:
    async with stage(gateway) as made:
        yield made


async def test_a_name_belongs_to_its_agent_and_to_its_workspace(here: Stage, gateway: Gateway, nats_url: str) -> None:
    other = await here.agent(name="another")
    asked = [here.begin(agent_id=each, message="hello") for each in (here.agent_id, other)]
    for _ in asked:
        await here.replied()
    one, two = await asyncio.gather(*asked)
    assert one.headers["step-session"] != two.headers["step-session"]
    async with another(gateway, nats_url, api_key="ma_configured_key_of_the_steps", inbound_rate_limit="off") as (
        http,
        _,
    ):
        admin = {"authorization": "Bearer ma_configured_key_of_the_steps"}
        made = await http.post("/v1/api-keys", json={"name": "b", "workspace_id": "wrkspc_b"}, headers=admin)
        theirs = {"authorization": f"Bearer {made.json()['secret_key']}"}
        body = {"session_id": "c", "message": "hello"}
        refused = await http.post(f"/v1/agents/{here.agent_id}/step", json=body, headers=theirs)
        assert code(refused) == (404, "agent_not_found")
        agent = {"name": "theirs", "model": "default", "system": "s"}
        agent_id = (await http.post("/v1/agents", json=agent, headers=theirs)).json()["id"]
        asking = asyncio.create_task(http.post(f"/v1/agents/{agent_id}/step", json=body, headers=theirs))
        grant = await here.runner.granted()
        assert grant.workspace_id == "wrkspc_b"
        asking.cancel()
        # Keys of one workspace share its conversations.
        again = await http.post(f"/v1/agents/{here.agent_id}/step", json=body, headers=admin)
        assert again.headers["step-repeated"] == "true" and again.json() == one.json()


async def test_a_caller_whose_key_is_revoked_hears_nothing_of_the_turn(
    here: Stage, gateway: Gateway, nats_url: str
) -> None:
    async with another(gateway, nats_url, inbound_rate_limit="off") as (http, _ring):
        admin = (await http.post("/v1/api-keys", json={"name": "admin"})).json()["secret_key"]
        ours = {"authorization": f"Bearer {admin}"}
        member = (await http.post("/v1/api-keys", json={"name": "m", "role": "member"}, headers=ours)).json()
        path, body = f"/v1/agents/{here.agent_id}/step", {"session_id": "c", "message": "slow"}
        theirs = {"authorization": f"Bearer {member['secret_key']}"}
        asked = asyncio.create_task(http.post(path, json=body, headers=theirs))
        grant = await here.runner.granted()
        assert (await http.delete(f"/v1/api-keys/{member['id']}", headers=ours)).status_code == 200
        assert code(await within(asked, 30)) == (401, "invalid_credential")
        await here.replica.append(grant, *answer("Done."), end=end())
        assert code(await http.post(path, json=body, headers=theirs)) == (401, "invalid_credential")
        assert (await http.post(path, json=body, headers=ours)).json() == {"reply": "Done."}
