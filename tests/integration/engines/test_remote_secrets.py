"""Headers with secrets: they come from the session's vaults, for the agent's host alone, and are seen nowhere."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from kit.testing.fixtures import MakeDatabase
from managed_agents.sessions.v1 import sessions_pb2
from services.sessions.app import MIGRATIONS
from tests.integration.engines.sessions import remote_session, runner
from tests.integration.runner.harness import World, of, text_of, world
from tests.integration.runner.played import TOOLSET, PlayedSandboxes
from tests.support.http_agent import Answer, body, calls, http_agent, reply
from tests.support.injection import Vault, variable

VALUE = "s3cret-value-0123456789"
HEADERS = {"Authorization": "Bearer ${AGENT_TOKEN}", "X-Tenant": "acme"}
VAULTS = {"vault_ids": ["vlt_1"]}


@pytest.fixture
async def platform(make_database: MakeDatabase, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async def every_vault(new: Any) -> tuple[Any, None]:
        return new, None

    monkeypatch.setattr("services.sessions.app.vault_checker", lambda _: every_vault)
    async with world(await make_database("sessions", MIGRATIONS), nats_url) as made:
        yield made


async def turn(platform: World, vault: Vault, *answers: Answer, session: Any = VAULTS, tools: Any = ()) -> Any:
    """One turn of an agent with secret headers: what it was sent, and the log."""
    async with http_agent(*answers) as agent, runner(platform, None, PlayedSandboxes()) as running:
        running.secrets._vault = vault
        session_id = await remote_session(platform, agent, *tools, options={"headers": HEADERS}, session=session)
        await platform.say(session_id, "hello")
        return agent, await platform.until(session_id), session_id


async def test_a_header_is_filled_in_for_the_host_that_the_credential_is_for(platform: World) -> None:
    vault = Vault(variable("AGENT_TOKEN", VALUE, "127.0.0.1"), variable("OTHER", "never asked for"))
    agent, log, session_id = await turn(platform, vault, reply("Hi."))
    assert agent.headers[0]["authorization"] == f"Bearer {VALUE}" and agent.headers[0]["x-tenant"] == "acme"
    (asked,) = vault.asked
    assert (list(asked.names), asked.host, asked.session_id) == (["AGENT_TOKEN"], "127.0.0.1", session_id)
    assert VALUE not in str(log) + str(agent.steps)
    shown = await platform.clients.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=session_id))
    assert orjson.loads(shown.session.loop_engine_options_json)["headers"] == HEADERS


NOT_FILLED_IN: list[tuple[Vault, dict[str, Any]]] = [
    (Vault(), VAULTS),
    # For another host, not for headers, of a session without vaults, and no value that a header can have.
    (Vault(variable("AGENT_TOKEN", VALUE, "api.example")), VAULTS),
    (Vault(variable("AGENT_TOKEN", VALUE, in_headers=False)), VAULTS),
    (Vault(variable("AGENT_TOKEN", VALUE)), {}),
    (Vault(variable("AGENT_TOKEN", f"{VALUE}\r\nX-More: 1")), VAULTS),
]


async def test_a_header_that_can_not_be_filled_in_is_an_error_and_nothing_is_sent(platform: World) -> None:
    for vault, session in NOT_FILLED_IN:
        agent, log, _ = await turn(platform, vault, reply("Hi."), session=session)
        (error,) = of(log, "session.error")
        assert "was not asked" in error["error"]["message"]
        assert agent.steps == [] and VALUE not in str(log)
        assert "step_outcome" not in of(log, "span.model_request_end")[0]


async def test_a_vault_that_is_away_is_told_and_the_step_is_made_later(platform: World) -> None:
    vault = Vault(variable("AGENT_TOKEN", VALUE))
    vault.is_down = True
    async with http_agent(reply("Hi.")) as agent, runner(platform) as running:
        running.secrets._vault = vault
        session = await remote_session(platform, agent, options={"headers": HEADERS}, session=VAULTS)
        await platform.say(session, "one")
        log = await platform.until(session, seconds=40)
        assert "can't be asked" in of(log, "session.error")[0]["error"]["message"] and agent.steps == []
        vault.is_down = False
        await platform.say(session, "two")
        await platform.until_logged(session, "session.status_idle", 2)
        assert [step["message"] for step in agent.steps] == ["one", "two"]


async def test_what_an_agent_repeats_of_its_secret_is_seen_nowhere(platform: World) -> None:
    vault = Vault(variable("AGENT_TOKEN", VALUE))
    asked = calls(("c1", "bash", {"command": f"echo {VALUE}"}))
    _, log, _ = await turn(platform, vault, asked, reply(f"You sent {VALUE}."), tools=(TOOLSET,))
    assert VALUE not in str(log) and "[secret AGENT_TOKEN removed]" in text_of(of(log, "agent.message")[0])
    assert "removed" in of(log, "agent.tool_use")[0]["input"]["command"]


async def test_an_error_that_repeats_the_secret_is_told_without_it(platform: World) -> None:
    vault = Vault(variable("AGENT_TOKEN", VALUE))
    for answer in (body({"error": f"Bearer {VALUE} is no good"}, 401), calls((VALUE, "bash", {}))):
        _, log, _ = await turn(platform, vault, answer, tools=(TOOLSET,))
        (error,) = of(log, "session.error")
        assert VALUE not in str(log) and ("status 401" in str(error) or "a secret as the name" in str(error))
