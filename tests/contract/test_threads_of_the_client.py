"""Threads as the published client meets them: what they ask, how they are interrupted, what the log tells of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from kit.testing import await_until
from tests.contract.client_flow import ASKING, CUSTOM, Flow, user
from tests.support.api import api, tool
from tests.support.platform import Platform

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture
async def flow(platform: Platform) -> AsyncIterator[Flow]:
    """The client, unchanged but for its address."""
    async with anthropic.AsyncAnthropic(
        api_key="any", base_url=platform.url, max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield Flow(client)


async def team(flow: Flow, *tools: dict[str, Any]) -> str:
    """A session of a coordinator whose writer has these tools."""
    agents = flow.client.beta.agents
    writer = await agents.create(name="writer", model="demo", system="You write.", tools=list(tools))
    roster = {"type": "coordinator", "agents": [writer.id, {"type": "self"}]}
    lead = await agents.create(name="lead", model="demo", system="You lead.", tools=[], multiagent=roster)
    session = await flow.sessions.create(agent=lead.id, environment_id=flow.environment)
    members = session.agent.multiagent.agents
    assert [(each.name, each.version, each.model.id) for each in members] == [
        ("writer", 1, "demo"),
        ("lead", 1, "demo"),
    ]
    return session.id


def starts(*messages: str) -> dict[str, Any]:
    """A message that has the demo model start a thread for each text."""
    return user(" ".join(tool("start_thread", agent="writer", message=each) for each in messages))


async def test_a_custom_tool_of_a_thread_is_asked_and_answered_on_the_session(flow: Flow) -> None:
    session_id = await team(flow, CUSTOM)
    events = await flow.turn(session_id, starts("call lookup"))
    (asked,) = [event for event in events if event.type == "agent.custom_tool_use"]
    _, thread = [each async for each in flow.sessions.threads.list(session_id)]

    assert asked.session_thread_id == thread.id
    assert events[-1].stop_reason.type == "requires_action" and events[-1].stop_reason.event_ids == [asked.id]
    content = [{"type": "text", "text": "forty-two"}]
    reply = {"type": "user.custom_tool_result", "custom_tool_use_id": asked.id, "content": content}
    rest = await flow.turn(session_id, reply)

    assert rest[0].type == "user.custom_tool_result" and rest[0].session_thread_id == thread.id
    (answer,) = [event for event in rest if event.type == "agent.thread_message_received"]
    assert (answer.from_session_thread_id, answer.from_agent_name) == (thread.id, "writer")
    assert "forty-two" in answer.content[0].text and rest[-1].stop_reason.type == "end_turn"
    assert {event.id for event in (*events, *rest)} == {event.id for event in await flow.log(session_id)}


@pytest.mark.parametrize("result", ["allow", "deny"])
async def test_a_confirmation_of_a_thread_goes_to_it(flow: Flow, result: str) -> None:
    session_id = await team(flow, ASKING)
    events = await flow.turn(session_id, starts("run `echo hi`"))
    (asked,) = [event for event in events if event.type == "agent.tool_use" and event.session_thread_id]
    assert (asked.name, asked.evaluated_permission) == ("bash", "ask")

    rest = await flow.turn(session_id, {"type": "user.tool_confirmation", "tool_use_id": asked.id, "result": result})

    thread_id = asked.session_thread_id
    assert rest[0].session_thread_id == thread_id
    own = [each async for each in flow.sessions.threads.events.list(thread_id, session_id=session_id)]
    (done,) = [event for event in own if event.type == "agent.tool_result"]
    assert bool(done.is_error) is (result == "deny")
    assert rest[-1].type == "session.status_idle" and rest[-1].stop_reason.type == "end_turn"


async def test_one_thread_is_interrupted_and_the_others_work_on(flow: Flow) -> None:
    session_id = await team(flow)
    sending = asyncio.ensure_future(flow.turn(session_id, starts("LEN:150 DELAY:30", "LEN:30 DELAY:30")))

    async def both() -> Any:
        threads = [each async for each in flow.sessions.threads.list(session_id, statuses=["running"])]
        return threads if len(threads) == 3 else None

    await await_until(both, message="two threads run")
    primary, long, short = await both() or [each async for each in flow.sessions.threads.list(session_id)]
    await flow.sessions.events.send(session_id, events=[{"type": "user.interrupt", "session_thread_id": long.id}])
    events = await sending

    assert [event.type for event in events].count("session.error") == 0
    told = {event.content[0].text: event.content[1].text for event in events if event.type == "agent.tool_result"}
    assert told[f"Thread {long.id} (writer):"] == "The thread was interrupted by the user before it answered."
    assert "t29" in told[f"Thread {short.id} (writer):"]
    idle = [event for event in events if event.type == "session.thread_status_idle"]
    assert {event.session_thread_id for event in idle} == {primary.id, long.id, short.id}


async def test_a_session_with_running_threads_is_not_archived_or_deleted(flow: Flow) -> None:
    session_id = await team(flow)
    await flow.sessions.events.send(session_id, events=[starts("LEN:990 DELAY:30")])

    async def started() -> bool:
        return len([each async for each in flow.sessions.threads.list(session_id)]) == 2

    await await_until(started, message="the thread is there")
    _, thread = [each async for each in flow.sessions.threads.list(session_id)]
    for refused in (
        flow.sessions.archive(session_id),
        flow.sessions.delete(session_id),
        flow.sessions.threads.archive(thread.id, session_id=session_id),
    ):
        with pytest.raises(anthropic.BadRequestError):
            await refused
    for hidden in (flow.sessions.retrieve(thread.id), flow.sessions.delete(thread.id)):
        with pytest.raises(anthropic.NotFoundError):
            await hidden
    assert thread.id not in [each.id async for each in flow.sessions.list(limit=50)]
    await flow.turn(session_id, {"type": "user.interrupt"})
    await flow.sessions.delete(session_id)


async def test_a_stream_replays_after_its_cursor_and_ends_with_the_thread(flow: Flow, platform: Platform) -> None:
    session_id = await team(flow)
    await flow.turn(session_id, starts("Say hello."))
    _, thread = [each async for each in flow.sessions.threads.list(session_id)]
    seen: list[Any] = []

    async with await flow.sessions.threads.events.stream(
        thread.id, session_id=session_id, extra_headers={"Last-Event-ID": "2"}
    ) as stream:
        stopping = None
        async for event in stream:
            seen.append(event)
            if event.type == "session.thread_status_idle" and stopping is None:
                async with api(platform.url) as local:
                    stopping = await local.call("POST", f"/v1/sessions/{session_id}/stop")

    log = [each async for each in flow.sessions.threads.events.list(thread.id, session_id=session_id)]
    assert [event.id for event in seen] == [event.id for event in log[2:]]
    assert seen[-1].type == "session.thread_status_terminated"
    terminated = await flow.sessions.threads.retrieve(thread.id, session_id=session_id)
    assert terminated.status == "terminated"
