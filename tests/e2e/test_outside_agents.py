"""Outside agents as the engine of sessions, over REST: chosen everywhere, frozen, masked, and one of them our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest
from anthropic import AsyncAnthropic

from tests.e2e.test_secrets import _everything_stored
from tests.support.api import CUSTOM_TOOL, Api, Reader, Refused, api, message, tool
from tests.support.http_agent import HttpAgent, calls, http_agent, reply
from tests.support.platform import Platform, running_platform
from tests.support.rows import database_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SETTINGS = "/v1/x/settings"
VALUE, MASK = "canary-agent-0123456789", "********"
HEADERS = {"Authorization": "Bearer ${AGENT_TOKEN}", "X-Tenant": "acme"}
SHOWN = {"Authorization": MASK, "X-Tenant": "acme"}


@pytest.fixture(scope="module")
def private_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform whose operator lets it reach agents on loopback."""
    allowed = {"MANAGED_AGENTS_ALLOWED_PRIVATE_HOSTS": "127.0.0.1"}
    with running_platform(tmp_path_factory.mktemp("outside") / "data", environment=allowed) as running:
        yield running


@pytest.fixture
async def client(private_platform: Platform) -> AsyncIterator[Api]:
    async with api(private_platform.url) as made:
        yield made


async def answered(client: Api, session_id: str, text: str, until: str = "session.status_idle") -> list[dict[str, Any]]:
    """The events of a turn."""
    seen = len(await client.log(session_id))
    await client.send(session_id, message(text))
    reader = Reader(client, session_id)
    assert await reader.follow(lambda event: event["type"] == until and event["seq"] > seen)
    return reader.events[seen:]


def said(events: list[dict[str, Any]]) -> list[str]:
    return [event["content"][0]["text"] for event in events if event["type"] == "agent.message"]


async def _vault(client: Api) -> str:
    vault = await client.call("POST", "/v1/vaults", {"display_name": "agents"})
    auth = {
        "type": "environment_variable",
        "secret_name": "AGENT_TOKEN",
        "secret_value": VALUE,
        "networking": {"type": "limited", "allowed_hosts": ["127.0.0.1"]},
    }
    await client.call("POST", f"/v1/vaults/{vault['id']}/credentials", {"display_name": "token", "auth": auth})
    return vault["id"]


async def test_a_session_is_run_by_an_outside_agent_whose_secret_shows_nowhere(
    private_platform: Platform, client: Api
) -> None:
    async with http_agent(reply(f"You sent {VALUE}.")) as outside:
        options = outside.options(headers=HEADERS)
        agent = await client.agent(loop_engine={"provider": "http", "options": options})
        session = await client.session(agent, vault_ids=[await _vault(client)])
        events = await answered(client, session, "hello")
        assert said(events) == ["You sent [secret AGENT_TOKEN removed]."]
        assert outside.headers[0]["authorization"] == f"Bearer {VALUE}"
        for path in (f"/v1/sessions/{session}", f"/v1/agents/{agent}"):
            shown = await client.call("GET", path)
            assert (shown["loop_engine"], shown["loop_engine_options"]) == ("http", options | {"headers": SHOWN}), path
        listed = (await client.call("GET", f"/v1/sessions?agent_id={agent}"))["data"]
        assert listed[0]["agent"]["loop_engine_options"]["headers"] == SHOWN
        with database_of(private_platform) as rows:
            assert VALUE not in _everything_stored(rows)
        assert VALUE not in private_platform.logs() + str(await client.log(session))


async def test_what_was_read_of_an_agent_can_be_written_back(client: Api) -> None:
    options = {"url": "https://agent.example.com/step", "headers": HEADERS}
    agent = await client.agent(loop_engine="http", loop_engine_options=options)
    read = await client.call("GET", f"/v1/agents/{agent}")
    again = {name: read[name] for name in ("loop_engine", "loop_engine_options")}
    assert (await client.call("POST", f"/v1/agents/{agent}", again))["version"] == 1
    changed = await client.call("POST", f"/v1/agents/{agent}", {"loop_engine_options": {**options, "max_rounds": 2}})
    assert (changed["version"], changed["loop_engine_options"]["max_rounds"]) == (2, 2)
    cleared = await client.call("POST", f"/v1/agents/{agent}", {"loop_engine": None})
    assert not cleared.keys() & {"loop_engine", "loop_engine_options"}
    renamed = await client.call("POST", f"/v1/agents/{agent}", {"name": "other"})
    assert not renamed.keys() & {"loop_engine", "loop_engine_options"}


async def test_an_update_of_a_session_tells_no_secret_header(client: Api) -> None:
    async with http_agent(reply("Hi.")) as outside:
        agent = await client.agent(loop_engine="http", loop_engine_options=outside.options(headers=HEADERS))
        session = await client.session(agent)
        await client.call("POST", f"/v1/sessions/{session}", {"agent": {"tools": []}})
        (told,) = [event for event in await client.log(session) if event["type"] == "session.updated"]
        assert told["agent"]["loop_engine_options"]["headers"] == SHOWN


async def test_a_run_takes_it_inside_its_session(client: Api) -> None:
    async with http_agent(reply("Hi.")) as outside:
        agent = await client.agent()
        for session in (
            {"loop_engine": "http", "loop_engine_options": outside.options()},
            {"loop_engine": {"provider": "http", "options": outside.options()}},
        ):
            run = await client.call("POST", "/v1/runs", {"agent": agent, "input": "hello", "session": session})
            assert run["output"] == [{"type": "text", "text": "Hi."}] and run["status"] == "idle"
        with pytest.raises(Refused) as refused:
            await client.call("POST", "/v1/runs", {"agent": agent, "input": "x", "session": {"loop_engine": "http"}})
        assert refused.value.status == 400 and "loop_engine_options.url" in refused.value.body["error"]["message"]


async def _settle(client: Api, engine: dict[str, Any]) -> dict[str, Any]:
    found = await client.call("GET", SETTINGS)
    document = found["saved_config"] | {"loop_engine": engine}
    validated = await client.call("POST", f"{SETTINGS}/validate", document)
    assert validated["valid"] is True
    tested = await client.call("POST", f"{SETTINGS}/test", {"area": "loop_engine", "config": engine})
    assert (tested["status"], tested["adapter"]) == ("ok", engine["provider"])
    return await client.call("PUT", SETTINGS, {"revision": found["revision"], "config": document})


async def test_settings_hold_the_default_for_sessions_that_name_none(client: Api) -> None:
    async with http_agent(reply("Hi.")) as outside:
        agent = await client.agent()
        before = await client.session(agent)
        options = outside.options(headers=HEADERS, timeout_seconds=9)
        saved = await _settle(client, {"provider": "http", "options": options})
        try:
            assert saved["effective_config"]["loop_engine"]["options"]["headers"] == SHOWN
            assert saved["secret_states"]["loop_engine"] == {"headers": "configured"}
            # What was read can be saved as it is.
            assert (await _settle(client, saved["saved_config"]["loop_engine"]))["saved_config"] == saved[
                "saved_config"
            ]
            made = await client.call("POST", "/v1/sessions", {"agent": agent})
            assert (made["loop_engine"], made["loop_engine_options"]) == ("http", options | {"headers": SHOWN})
            pinned = await client.call("POST", "/v1/sessions", {"agent": agent, "loop_engine": "builtin"})
            assert pinned["loop_engine"] == "builtin" and "loop_engine_options" not in pinned
        finally:
            await _settle(client, {"provider": "builtin", "options": {}})
        for session, engine in ((before, "builtin"), (made["id"], "http")):
            assert (await client.call("GET", f"/v1/sessions/{session}"))["loop_engine"] == engine
        assert (await client.call("GET", SETTINGS))["secret_states"].keys() == {"model"}


async def test_one_of_our_own_agents_can_be_the_outside_agent(private_platform: Platform, client: Api) -> None:
    inner = await client.agent(tools=[])
    outer = await client.agent(tools=[CUSTOM_TOOL])
    url = f"{private_platform.url}/v1/agents/{inner}/step"
    session = await client.session(outer, loop_engine="http", loop_engine_options={"url": url})
    events = await answered(client, session, tool("lookup", word="load"))
    assert events[-1]["stop_reason"]["type"] == "requires_action", events[-4:]
    (use,) = [event for event in events if event["type"] == "agent.custom_tool_use"]
    assert (use["name"], use["input"]) == ("lookup", {"word": "load"})
    result = {"type": "user.custom_tool_result", "custom_tool_use_id": use["id"], "content": "a cargo"}
    await client.send(session, result)
    reader = Reader(client, session)
    assert await reader.follow(
        lambda event: event["type"] == "session.status_idle" and event["stop_reason"]["type"] == "end_turn"
    )
    assert "a cargo" in said(reader.events)[-1]
    assert said(await answered(client, session, "And now?")) != []


async def test_many_conversations_interleave(client: Api) -> None:
    """Each of them hears of its own calls and of nobody else's."""

    def plan(step: dict[str, Any]) -> Any:
        if "tool_results" in step:
            return reply(f"{step['session_id']} got {step['tool_results'][0]['result'].strip()}")
        return calls(("c1", "bash", {"command": f"echo {step['message']}"}))

    async with http_agent(plan=plan) as outside:
        agent = await client.agent(loop_engine="http", loop_engine_options=outside.options())
        sessions = [await client.session(agent) for _ in range(6)]
        turns = await asyncio.gather(*(answered(client, each, f"word-{each}") for each in sessions))
        assert [said(events) for events in turns] == [[f"{each} got word-{each}"] for each in sessions]
        check_keys(outside, sessions)


def check_keys(outside: HttpAgent, sessions: list[str]) -> None:
    """Each conversation has its own dense keys, and none comes twice."""
    assert sorted(outside.step_keys()) == sorted(f"{each}:{number}" for each in sessions for number in (1, 2))


async def test_capabilities_say_that_it_is_there(client: Api) -> None:
    found = (await client.call("GET", "/v1/x/capabilities"))["capabilities"]
    assert {"id": "http", "kind": "loop_engine", "status": "available"} in found


async def test_the_published_client_reads_what_such_a_session_says(private_platform: Platform, client: Api) -> None:
    async with http_agent(calls(("c1", "bash", {"command": "echo hi"})), reply("Done.")) as outside:
        agent = await client.agent()
        published = AsyncAnthropic(
            base_url=private_platform.url, api_key="none", max_retries=0, _strict_response_validation=True
        )
        async with published:
            body = {"loop_engine": "http", "loop_engine_options": {"url": outside.url}}
            session = await published.beta.sessions.create(agent=agent, environment_id="env_default", extra_body=body)
            assert session.model_extra is not None and session.model_extra["loop_engine"] == "http"
            await answered(client, session.id, "go")
            events = [event async for event in published.beta.sessions.events.list(session.id)]
            assert [event.type for event in events if event.type == "agent.message"] == ["agent.message"]
            assert orjson.loads((await published.beta.sessions.retrieve(session.id)).to_json())["loop_engine"] == "http"
            with pytest.raises(Exception, match="budget"):
                budget = {"type": "limit", "max_list_cost": {"amount": "100", "currency": "USD"}}
                await published.beta.sessions.create(
                    agent=agent, environment_id="env_default", extra_body=body | {"budget": budget}
                )
