"""Every method that the published client has for sessions, with every parameter, on real flows under strict validation.

A method or a parameter that a new version of the client brings fails here until it has a case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import anthropic
import pytest
from anthropic import beta_async_tool

from tests.contract.client_flow import (
    ASKING,
    CASES,
    CUSTOM,
    METHODS,
    TOOLSET,
    WORKSPACE,
    Flow,
    case,
    sound,
    user,
)
from tests.contract.resource_cases import list_resources
from tests.contract.thread_cases import list_threads
from tests.support.api import tool
from tests.support.platform import Platform

# Importing one of them brings all of their cases.
assert list_threads is CASES["threads.list"]
assert list_resources is CASES["resources.list"]
pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture
async def flow(platform: Platform) -> AsyncIterator[Flow]:
    """The client, unchanged but for its address."""
    async with anthropic.AsyncAnthropic(
        api_key="any", base_url=platform.url, max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield Flow(client)


@pytest.mark.parametrize("method", METHODS)
async def test_a_method_of_the_client_passes_with_every_parameter(flow: Flow, method: str) -> None:
    assert method in CASES, f"no case for sessions.{method}"
    await CASES[method](flow)
    assert METHODS[method] - flow.seen.get(method, set()) == set()


@case("create")
async def create(flow: Flow) -> None:
    agent = await flow.agent()
    made = await flow.sessions.create(
        agent=agent.id,
        environment_id=flow.environment,
        title="A session",
        metadata={"kind": "contract"},
        resources=[],
        vault_ids=[],
        initial_events=[user("Say hello.")],
        workspace_id=WORKSPACE,
    )
    assert made.status == "running" and made.agent.id == agent.id and made.agent.version == 1
    assert (made.title, made.metadata, made.vault_ids, made.resources) == ("A session", {"kind": "contract"}, [], [])
    pinned = {"type": "agent", "id": agent.id, "version": 1}
    assert (await flow.sessions.create(agent=pinned, environment_id=flow.environment)).status == "idle"
    overridden = {
        "type": "agent_with_overrides",
        "id": agent.id,
        "version": 1,
        "model": {"id": "other-model"},
        "system": "Answer only in haiku.",
        "tools": [CUSTOM],
        "mcp_servers": [],
        "skills": [],
    }
    made = await flow.sessions.create(agent=overridden, environment_id=flow.environment)
    assert made.agent.model.id == "other-model" and made.agent.system == "Answer only in haiku."
    assert [one.type for one in made.agent.tools] == ["custom"]
    assert (await flow.client.beta.agents.retrieve(agent.id)).system == "Do as you are told."
    # Nothing is priced here, so a ceiling could not be held.
    with pytest.raises(anthropic.BadRequestError):
        budget = {"type": "limit", "max_list_cost": {"amount": "500", "currency": "USD"}}
        await flow.sessions.create(agent=agent.id, environment_id=flow.environment, budget=budget)


@case("retrieve")
async def retrieve(flow: Flow) -> None:
    session = await flow.session(title="Mine")
    found = await flow.sessions.retrieve(session.id, workspace_id=WORKSPACE)
    assert found.id == session.id and found.title == "Mine" and found.usage is not None
    with pytest.raises(anthropic.NotFoundError):
        await flow.sessions.retrieve("sess_00000000000000000000000000")


@case("update")
async def update(flow: Flow) -> None:
    session = await flow.session(metadata={"kept": "1", "gone": "2"})
    changed = await flow.sessions.update(
        session.id,
        title="Renamed",
        metadata={"gone": None, "new": "3"},
        agent={"tools": [CUSTOM], "mcp_servers": []},
        workspace_id=WORKSPACE,
    )
    assert changed.title == "Renamed" and changed.metadata == {"kept": "1", "new": "3"}
    assert [one.type for one in changed.agent.tools] == ["custom"]
    [told] = [event for event in await flow.log(session.id) if event.type == "session.updated"]
    assert told.title == "Renamed" and told.metadata == {"kept": "1", "new": "3"}
    budget = {"type": "limit", "max_list_cost": {"amount": "500", "currency": "USD"}}
    for fixed in ({"budget": budget}, {"vault_ids": ["vlt_1"]}):
        with pytest.raises(anthropic.BadRequestError):
            await flow.sessions.update(session.id, **fixed)


@case("list")
async def list_(flow: Flow) -> None:
    agent = await flow.agent()
    began = datetime.now(UTC) - timedelta(seconds=1)
    made = [
        (await flow.sessions.create(agent=agent.id, environment_id=flow.environment, title=f"s{number}")).id
        for number in range(5)
    ]
    mine = {"agent_id": agent.id, "workspace_id": WORKSPACE}
    assert [one.id async for one in flow.sessions.list(**mine, limit=2)] == made[::-1]
    assert [one.id async for one in flow.sessions.list(**mine, order="asc")] == made
    first = await flow.sessions.list(**mine, limit=2)
    second = await flow.sessions.list(**mine, limit=2, page=first.next_page)
    assert [one.id for one in second.data] == made[2:0:-1]
    back = await flow.sessions.list(**mine, limit=2, page=second.prev_page)
    assert [one.id for one in back.data] == [one.id for one in first.data]
    bounds = {"created_at_gte": began, "created_at_lte": began + timedelta(hours=1)}
    assert len((await flow.sessions.list(**mine, **bounds)).data) == 5
    bounds = {"created_at_gt": began + timedelta(hours=1), "created_at_lt": began + timedelta(hours=2)}
    assert (await flow.sessions.list(**mine, **bounds)).data == []
    assert len((await flow.sessions.list(**mine, agent_version=1, statuses=["idle"])).data) == 5
    assert (await flow.sessions.list(**mine, agent_version=2)).data == []
    assert (await flow.sessions.list(**mine, statuses=["running", "terminated", "rescheduling"])).data == []
    await flow.sessions.archive(made[0])
    assert [one.id async for one in flow.sessions.list(**mine, order="asc")] == made[1:]
    assert [one.id async for one in flow.sessions.list(**mine, order="asc", include_archived=True)] == made
    assert (await flow.sessions.list(deployment_id="dep_1")).data == []
    assert (await flow.sessions.list(memory_store_id="memstore_1")).data == []
    with pytest.raises(anthropic.BadRequestError):
        await flow.sessions.list(agent_id=agent.id, order="asc", page=first.next_page)


@case("archive")
async def archive(flow: Flow) -> None:
    session = await flow.session()
    archived = await flow.sessions.archive(session.id, workspace_id=WORKSPACE)
    assert archived.archived_at is not None
    with pytest.raises(anthropic.BadRequestError):
        await flow.sessions.events.send(session.id, events=[user("Still there?")])
    running = await flow.session(initial_events=[user("LEN:50 DELAY:100")])
    with pytest.raises(anthropic.BadRequestError):
        await flow.sessions.archive(running.id)
    await flow.turn(running.id, {"type": "user.interrupt"})


@case("delete")
async def delete(flow: Flow) -> None:
    session = await flow.session()
    deleted = await flow.sessions.delete(session.id, workspace_id=WORKSPACE)
    assert deleted.id == session.id and deleted.type == "session_deleted"
    with pytest.raises(anthropic.NotFoundError):
        await flow.sessions.retrieve(session.id)
    running = await flow.session(initial_events=[user("LEN:50 DELAY:100")])
    with pytest.raises(anthropic.BadRequestError) as refused:
        await flow.sessions.delete(running.id)
    assert "user.interrupt" in str(refused.value)
    await flow.turn(running.id, {"type": "user.interrupt"})
    await flow.sessions.delete(running.id)


@case("events.list")
async def list_events(flow: Flow) -> None:
    session = await flow.session()
    await flow.turn(session.id, user("Say hello."))
    events = await flow.log(session.id)
    assert [event.id async for event in flow.sessions.events.list(session.id, limit=3)] == [one.id for one in events]
    down = [event.id async for event in flow.sessions.events.list(session.id, order="desc", limit=4)]
    assert down == [one.id for one in events][::-1]
    wanted = ["agent.message", "session.status_idle"]
    found = [event.type async for event in flow.sessions.events.list(session.id, types=wanted, workspace_id=WORKSPACE)]
    assert found == wanted
    first = await flow.sessions.events.list(session.id, limit=2)
    second = await flow.sessions.events.list(session.id, limit=2, page=first.next_page)
    assert [one.id for one in second.data] == [one.id for one in events[2:4]]
    stored = await flow.client.beta.sessions.events.with_raw_response.list(session.id)
    moment = stored.http_response.json()["data"][3]["created_at"]
    early = [event.id async for event in flow.sessions.events.list(session.id, created_at_lt=moment)]
    until = [event.id async for event in flow.sessions.events.list(session.id, created_at_lte=moment)]
    late = [event.id async for event in flow.sessions.events.list(session.id, created_at_gt=moment)]
    since = [event.id async for event in flow.sessions.events.list(session.id, created_at_gte=moment)]
    assert early + since == until + late == [one.id for one in events] and len(until) > len(early)


@case("events.send")
async def send(flow: Flow) -> None:
    session = await flow.session(TOOLSET, CUSTOM)
    system = {"type": "system.message", "content": [{"type": "text", "text": "Be brief."}]}
    sent = await flow.sessions.events.send(session.id, events=[user("Say hello."), system], workspace_id=WORKSPACE)
    assert [sound(event).type for event in sent.data or []] == ["user.message", "system.message"]
    # Nothing to interrupt, so nothing happens.
    sent = await flow.sessions.events.send(session.id, events=[{"type": "user.interrupt"}])
    assert [sound(event).type for event in sent.data or []] == ["user.interrupt"]
    await answer_a_custom_call(flow)
    await allow_and_deny(flow)
    await interrupt(flow)
    result = {"type": "user.tool_result", "tool_use_id": "sevt_1", "content": [{"type": "text", "text": "x"}]}
    outcome = {"type": "user.define_outcome", "description": "", "rubric": {"type": "text", "content": "x"}}
    for refused in (result, outcome):
        with pytest.raises(anthropic.BadRequestError):
            await flow.sessions.events.send(session.id, events=[refused])


async def answer_a_custom_call(flow: Flow) -> None:
    """A call of a custom tool is parked, answered once, and read by the model."""
    session = await flow.session(CUSTOM)
    parked = await flow.turn(session.id, user(tool("lookup", word="w")))
    assert parked[-1].stop_reason.type == "requires_action"
    [call] = [event for event in parked if event.type == "agent.custom_tool_use"]
    assert parked[-1].stop_reason.event_ids == [call.id] and call.name == "lookup" and call.input == {"word": "w"}
    answer = {
        "type": "user.custom_tool_result",
        "custom_tool_use_id": call.id,
        "content": [{"type": "text", "text": "a word"}],
        "is_error": False,
    }
    resumed = await flow.turn(session.id, answer)
    assert resumed[-1].stop_reason.type == "end_turn"
    assert "a word" in "".join(
        block.text for event in resumed if event.type == "agent.message" for block in event.content
    )
    with pytest.raises(anthropic.BadRequestError):
        await flow.sessions.events.send(session.id, events=[answer])


async def allow_and_deny(flow: Flow) -> None:
    """Two calls that ask: one is allowed and runs, the other is denied with a reason."""
    session = await flow.session(ASKING)
    text = f"{tool('bash', command='echo ran')} {tool('bash', command='echo never')}"
    parked = await flow.turn(session.id, user(text))
    calls = [event for event in parked if event.type == "agent.tool_use"]
    assert [call.evaluated_permission for call in calls] == ["ask", "ask"]
    assert parked[-1].stop_reason.event_ids == [call.id for call in calls]
    allowed = {"type": "user.tool_confirmation", "tool_use_id": calls[0].id, "result": "allow"}
    still = await flow.turn(session.id, allowed)
    assert still[-1].stop_reason.event_ids == [calls[1].id]
    denied = {
        "type": "user.tool_confirmation",
        "tool_use_id": calls[1].id,
        "result": "deny",
        "deny_message": "Not now.",
    }
    resumed = await flow.turn(session.id, denied)
    results = {event.tool_use_id: event for event in resumed if event.type == "agent.tool_result"}
    assert "ran" in results[calls[0].id].content[0].text and not results[calls[0].id].is_error
    assert "Not now." in results[calls[1].id].content[0].text and results[calls[1].id].is_error


async def interrupt(flow: Flow) -> None:
    """An interrupt ends the turn without an error."""
    session = await flow.session()
    await flow.sessions.events.send(session.id, events=[user("LEN:100 DELAY:100")])
    ended = await flow.turn(session.id, {"type": "user.interrupt"})
    assert ended[-1].stop_reason.type == "end_turn"
    assert not [event for event in await flow.log(session.id) if event.type == "session.error"]


@case("events.stream")
async def stream(flow: Flow) -> None:
    session = await flow.session()
    events: list[Any] = []
    async with await flow.sessions.events.stream(
        session.id, event_deltas=["agent.message", "agent.thinking"], workspace_id=WORKSPACE
    ) as live:
        sending = asyncio.ensure_future(flow.sessions.events.send(session.id, events=[user("THINK: LEN:20 DELAY:10")]))
        async for event in live:
            events.append(sound(event))
            if event.type == "session.status_idle":
                break
        await sending
    types = [event.type for event in events]
    assert types.count("event_start") == 2 and "event_delta" in types
    kept = [event.id for event in events if event.type not in ("event_start", "event_delta")]
    assert kept == [event.id for event in await flow.log(session.id)]


@case("events.tool_runner")
async def run_tools(flow: Flow) -> None:
    """The client's own loop: it follows the session, runs its custom tool and answers the call."""
    asked: list[str] = []

    @beta_async_tool
    async def lookup(word: str) -> str:
        """Looks a word up."""
        asked.append(word)
        return f"{word}: a colour"

    session = await flow.session(CUSTOM, initial_events=[user(tool("lookup", word="violet"))])
    runner = flow.sessions.events.tool_runner(session.id, tools=[lookup], max_idle=0.2, environment_key=None)
    done = [call async for call in runner]
    assert asked == ["violet"] and len(done) == 1 and done[0].posted
    events = await flow.log(session.id)
    assert events[-1].type == "session.status_idle" and events[-1].stop_reason.type == "end_turn"
    [answer] = [event for event in events if event.type == "user.custom_tool_result"]
    assert answer.content[0].text == "violet: a colour"
