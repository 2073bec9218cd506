"""Cases of the published client's methods for threads: a coordinator, and what it puts to work."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest

from tests.contract.client_flow import TOOLSET, WORKSPACE, Flow, case, sound, user
from tests.support.api import tool


async def coordinated(flow: Flow) -> tuple[str, list[Any]]:
    """A session whose coordinator has had one answer of its writer, and its threads, the primary one first."""
    writer = await flow.client.beta.agents.create(name="writer", model="demo", system="You write.", tools=[TOOLSET])
    lead = await flow.client.beta.agents.create(
        name="lead",
        model="demo",
        system="You coordinate.",
        tools=[TOOLSET],
        multiagent={"type": "coordinator", "agents": [writer.id]},
    )
    session = await flow.sessions.create(agent=lead.id, environment_id=flow.environment)
    events = await flow.turn(session.id, user(tool("start_thread", agent="writer", message="Say hello.")))
    assert {"session.thread_created", "agent.thread_message_sent", "agent.thread_message_received"} <= {
        event.type for event in events
    }
    assert events[-1].stop_reason.type == "end_turn"
    return session.id, [thread async for thread in flow.sessions.threads.list(session.id)]


@case("threads.list")
async def list_threads(flow: Flow) -> None:
    session_id, threads = await coordinated(flow)
    primary, child = threads
    assert primary.parent_thread_id is None and child.parent_thread_id == primary.id
    first = await flow.sessions.threads.list(session_id, limit=1, workspace_id=WORKSPACE)
    second = await flow.sessions.threads.list(session_id, limit=1, page=first.next_page)
    assert [thread.id for thread in (*first.data, *second.data)] == [primary.id, child.id]
    assert len((await flow.sessions.threads.list(session_id, statuses=["idle"])).data) == 2
    assert (await flow.sessions.threads.list(session_id, statuses=["running", "terminated"])).data == []


@case("threads.retrieve")
async def retrieve_thread(flow: Flow) -> None:
    session_id, (primary, child) = await coordinated(flow)
    for thread, name in ((primary, "lead"), (child, "writer")):
        found = await flow.sessions.threads.retrieve(thread.id, session_id=session_id, workspace_id=WORKSPACE)
        assert (found.id, found.session_id, found.status, found.agent.name) == (thread.id, session_id, "idle", name)
        assert found.usage is not None and found.usage.output_tokens
    with pytest.raises(anthropic.NotFoundError):
        await flow.sessions.threads.retrieve("sthr_00000000000000000000000000", session_id=session_id)


@case("threads.archive")
async def archive_thread(flow: Flow) -> None:
    session_id, (_, child) = await coordinated(flow)
    archived = await flow.sessions.threads.archive(child.id, session_id=session_id, workspace_id=WORKSPACE)
    assert archived.id == child.id and archived.archived_at is not None
    assert (await flow.sessions.retrieve(session_id)).status == "idle"


@case("threads.events.list")
async def list_thread_events(flow: Flow) -> None:
    session_id, (primary, child) = await coordinated(flow)
    events = [sound(each) async for each in flow.sessions.threads.events.list(child.id, session_id=session_id)]
    assert events[0].type == "agent.thread_message_received" and events[-1].type == "session.thread_status_idle"
    first = await flow.sessions.threads.events.list(child.id, session_id=session_id, limit=2, workspace_id=WORKSPACE)
    second = await flow.sessions.threads.events.list(child.id, session_id=session_id, limit=2, page=first.next_page)
    assert [each.id for each in (*first.data, *second.data)] == [each.id for each in events[:4]]
    own = [each.id async for each in flow.sessions.threads.events.list(primary.id, session_id=session_id)]
    assert own == [each.id for each in await flow.log(session_id)]


@case("threads.events.stream")
async def stream_thread_events(flow: Flow) -> None:
    session_id, (_, child) = await coordinated(flow)
    text = tool("send_to_thread", thread_id=child.id, message="LEN:20 DELAY:10")
    events: list[Any] = []
    async with await flow.sessions.threads.events.stream(
        child.id, session_id=session_id, event_deltas=["agent.message"], workspace_id=WORKSPACE
    ) as live:
        sending = asyncio.ensure_future(flow.sessions.events.send(session_id, events=[user(text)]))
        async for event in live:
            events.append(sound(event))
            if event.type == "session.thread_status_idle":
                break
        await sending
    kept = [event.id for event in events if event.type not in ("event_start", "event_delta")]
    log = [each.id async for each in flow.sessions.threads.events.list(child.id, session_id=session_id)]
    assert kept == log[-len(kept) :] and "event_start" in {event.type for event in events}
