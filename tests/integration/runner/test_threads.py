"""Coordinators and their threads with a real runner: the demo model calls, threads answer, the coordinator goes on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from kit.testing import await_until
from kit.waiting import within
from managed_agents.sessions.v1 import agents_pb2, sessions_pb2, threads_pb2
from services.sessions.app import MIGRATIONS
from services.worker.runner.models.base import ModelAccess, ModelRequest
from services.worker.runner.models.demo import DemoModel
from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, of, text_of, types, world
from tests.integration.sessions.turn_driver import user

TOOLSET = {"type": "agent_toolset_20260401"}


@pytest.fixture
async def stage(make_database: Any, nats_url: str) -> AsyncIterator[World]:
    async with world(await make_database("sessions", MIGRATIONS), nats_url) as made:
        yield made


async def saved(stage: World, name: str, *tools: Any, **fields: Any) -> str:
    """A saved agent."""
    agent = {"name": name, "model": "default", "system": f"You are the {name}.", "tools": list(tools)} | fields
    request = agents_pb2.CreateAgentRequest(definition_json=orjson.dumps(agent))
    return (await stage.clients.agents.CreateAgent(request)).agent.id


async def team(stage: World, *tools: Any, lead_tools: Any = ()) -> str:
    """A session of a coordinator whose writer has these tools."""
    roster = [await saved(stage, "writer", *tools, description="Writes."), {"type": "self"}]
    multiagent = {"type": "coordinator", "agents": roster}
    agent_id = await saved(stage, "lead", *lead_tools, multiagent=multiagent)
    request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps({"agent": agent_id}))
    return (await stage.clients.sessions.CreateSession(request)).session.id


async def threads_of(stage: World, session_id: str) -> list[threads_pb2.SessionThread]:
    """What the session lists beside its primary thread."""
    request = threads_pb2.ListThreadsRequest(session_id=session_id, page={"limit": 100})
    return list((await stage.clients.threads.ListThreads(request)).threads)[1:]


async def thread_log(stage: World, session_id: str, thread_id: str) -> list[dict[str, Any]]:
    """The log of a thread."""
    request = sessions_pb2.ReadEventsRequest(session_id=session_id, thread_id=thread_id)
    events: list[dict[str, Any]] = []
    async for batch in stage.clients.events.ReadEvents(request):
        events += [orjson.loads(event.body) for event in batch.events]
    return events


def starts(*messages: str, agent: str = "writer") -> str:
    """A text that has the demo model start a thread for each message."""
    return " ".join(
        f"TOOL:start_thread:{orjson.dumps({'agent': agent, 'message': each}).decode()}" for each in messages
    )


async def test_a_coordinator_gets_the_answers_of_its_threads(stage: World) -> None:
    session_id = await team(stage)
    async with stage.runner():
        await stage.say(session_id, starts("count to three", "count to four"))
        log = await stage.until(session_id)

    answers = [text_of(event) for event in of(log, "agent.thread_message_received")]
    assert len(answers) == 2 and all("count to" in answer for answer in answers)
    assert "count to" in text_of(of(log, "agent.message")[-1])
    first, second = await threads_of(stage, session_id)
    own = await thread_log(stage, session_id, first.id)
    assert types(own)[-2:] == ["agent.thread_message_sent", "session.thread_status_idle"]
    assert text_of(of(own, "agent.thread_message_sent")[0]) == text_of(of(own, "agent.message")[0])
    assert first.usage.output_tokens and second.usage.output_tokens


async def test_threads_run_side_by_side(stage: World) -> None:
    session_id = await team(stage)
    met = asyncio.Barrier(3)

    class Meeting(DemoModel):
        async def stream(self, request: ModelRequest) -> Any:
            if request.system.startswith("You are the writer"):
                await met.wait()
            async for delta in super().stream(request):
                yield delta

    async with stage.runner(model=Meeting(ModelAccess("demo", default_model="demo"))):
        await stage.say(session_id, starts("one", "two", "three"))
        log = await stage.until(session_id)

    assert len(of(log, "agent.thread_message_received")) == 3


async def test_only_coordinators_have_the_tools_and_threads_have_none(stage: World) -> None:
    session_id = await team(stage)
    async with stage.runner():
        await stage.say(session_id, starts("what can you do?", agent="lead"))
        await stage.until(session_id)
        plain = await stage.session()
        await stage.say(plain, starts("hello"))
        plain_log = await stage.until(plain)

    (thread,) = await threads_of(stage, session_id)
    own = await thread_log(stage, session_id, thread.id)
    assert "My tools: none" in text_of(of(own, "agent.message")[-1])
    (use,) = of(plain_log, "agent.tool_use")
    assert use["evaluated_permission"] == "deny"
    assert (await threads_of(stage, plain)) == []


async def test_a_thread_asks_a_person_through_the_session(stage: World) -> None:
    ask = {"type": "custom", "name": "ask_person", "description": "Asks.", "input_schema": {"type": "object"}}
    session_id = await team(stage, ask)
    async with stage.runner():
        await stage.say(session_id, starts("call ask_person now"))
        log = await stage.until(session_id, "requires_action")
        (posted,) = of(log, "agent.custom_tool_use")
        reply = {"type": "user.custom_tool_result", "custom_tool_use_id": posted["id"], "content": "forty-two"}
        await stage.clients.send(session_id, reply)
        log = await stage.until(session_id)

    assert "forty-two" in text_of(of(log, "agent.thread_message_received")[0])
    assert types(log)[-3:] == ["session.thread_status_idle", "session.usage", "session.status_idle"]


async def test_files_are_shared_and_shells_are_not(stage: World) -> None:
    session_id = await team(stage, TOOLSET, lead_tools=[TOOLSET])
    sandboxes = SandboxManager(stage.folder / "sandboxes", kind="process")
    async with stage.runner(sandboxes=sandboxes):
        await stage.say(session_id, "run `export WORD=lead; echo shared > file.txt`")
        await stage.until(session_id)
        await stage.say(session_id, starts("run `cat file.txt; echo word=$WORD; echo more >> file.txt`"))
        log = await stage.until(session_id)

    (thread,) = await threads_of(stage, session_id)
    (result,) = of(await thread_log(stage, session_id, thread.id), "agent.tool_result")
    assert text_of(result) == "shared\nword="
    assert "word=" in text_of(of(log, "agent.thread_message_received")[0])
    folders = stage.folder / "sandboxes"
    assert (folders / session_id / "workspace" / "file.txt").read_text() == "shared\nmore\n"
    assert not (folders / thread.id).exists()


async def test_an_interrupt_ends_the_command_of_a_thread(stage: World) -> None:
    session_id = await team(stage, TOOLSET)
    async with stage.runner(sandboxes=SandboxManager(stage.folder / "sandboxes", kind="process")):
        await stage.say(session_id, starts("run `echo $$ > pid; sleep 600`"))
        file = stage.folder / "sandboxes" / session_id / "workspace" / "pid"
        await await_until(lambda: file.exists() and file.read_text().strip(), message="the command runs")
        pid = int(file.read_text())
        await stage.clients.send(session_id, {"type": "user.interrupt"})
        log = await stage.until(session_id)
        await await_until(lambda: not Path(f"/proc/{pid}").exists(), message="the command is gone")

    assert not of(log, "session.error")
    (thread,) = await threads_of(stage, session_id)
    (result,) = of(await thread_log(stage, session_id, thread.id), "agent.tool_result")
    assert result["is_error"] and text_of(result).startswith("Interrupted by the user")


async def test_an_interrupt_stops_coordinator_and_threads(stage: World) -> None:
    session_id = await team(stage)
    async with stage.runner():
        await stage.say(session_id, starts("LEN:900 DELAY:20", "LEN:901 DELAY:20"))
        await await_until(lambda: _all_running(stage, session_id, 2), message="both threads run")
        await stage.clients.send(session_id, {"type": "user.interrupt"})
        log = await stage.until(session_id, seconds=15)

    assert not of(log, "session.error")
    for thread in await threads_of(stage, session_id):
        own = await thread_log(stage, session_id, thread.id)
        assert types(own)[-1] == "session.thread_status_idle" and of(own, "user.interrupt")


async def _all_running(stage: World, session_id: str, count: int) -> bool:
    threads = await threads_of(stage, session_id)
    logs = [await thread_log(stage, session_id, thread.id) for thread in threads]
    return len(logs) == count and all(of(log, "span.model_request_start") for log in logs)


# Four appends make the whole: the calls, an answer of each thread, the end.
DEATHS = [f"runner.before_append=kill@{number}" for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("point", [*DEATHS, "runner.model.mid_request=kill@2", "runner.model.mid_request=kill@3"])
async def test_a_runner_that_dies_doubles_no_thread_and_loses_no_answer(
    make_database: Any, nats_url: str, point: str
) -> None:
    dsn = await make_database("sessions", MIGRATIONS)
    async with world(dsn, nats_url, lease_seconds=1.0) as stage:
        session_id = await team(stage)
        async with stage.runner_process(point) as dying:
            await stage.say(session_id, starts("count to three", "count to four"))
            await within(dying.wait(), 20)
        async with stage.runner_process():
            log = await stage.until(session_id, seconds=30)

        assert len(of(log, "session.thread_created")) == len(await threads_of(stage, session_id)) == 2
        calls = [event["id"] for event in of(log, "agent.tool_use")]
        assert sorted(event["tool_use_id"] for event in of(log, "agent.tool_result")) == sorted(calls)
        assert all("count to" in text_of(event) for event in of(log, "agent.tool_result"))
        assert types(log)[-1] == "session.status_idle"


async def test_a_coordinator_is_handed_over_while_it_waits(stage: World) -> None:
    session_id = await team(stage)
    async with stage.runner():
        await stage.clients.send(session_id, user(starts("LEN:200 DELAY:10")))
        await await_until(lambda: _all_running(stage, session_id, 1), message="the thread runs")
    async with stage.runner():
        log = await stage.until(session_id, seconds=20)

    assert len(of(log, "agent.thread_message_received")) == 1
    assert not of(log, "session.error")


async def test_a_runner_with_one_place_serves_coordinator_and_threads(stage: World) -> None:
    session_id = await team(stage)
    async with stage.runner(runner_capacity=1):
        await stage.say(session_id, starts("count to three", "count to four", "count to five"))
        log = await stage.until(session_id, seconds=20)

    assert len(of(log, "agent.thread_message_received")) == 3
