"""A coordinator and its threads, played by a runner that does what a test says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from kit.ids import new_id
from kit.testing import await_until
from managed_agents.sessions.v1 import agents_pb2, sessions_pb2, threads_pb2, turns_pb2
from services.sessions.domain.turn_events import SEND_TO_THREAD, START_THREAD
from tests.integration.sessions.turn_driver import Replica, Runner, answer, call, end, event, types, user

TOOLSET = {"type": "agent_toolset_20260401"}


class Coordinator:
    """A session whose agent may call a writer and a critic."""

    def __init__(self, replica: Replica, runner: Runner, session_id: str) -> None:
        self.replica, self.runner, self.id = replica, runner, session_id
        self._granted: dict[str, turns_pb2.TurnGrant] = {}

    async def turn_of(self, session_id: str) -> turns_pb2.TurnGrant:
        """The next turn of a session or thread, whatever is granted first."""
        while session_id not in self._granted:
            grant = await self.runner.granted()
            self._granted[grant.session.id] = grant
        return self._granted.pop(session_id)

    async def begin(self, text: str = "go") -> turns_pb2.TurnGrant:
        """The coordinator's turn on a message."""
        await self.replica.send(self.id, user(text))
        return await self.turn_of(self.id)

    async def start(self, grant: turns_pb2.TurnGrant, *agents: str, **options: Any) -> list[str]:
        """Threads of these agents, started by one answer, and the turn parked on them."""
        calls = [start(agent) for agent in agents]
        ids = [call.id for call in calls]
        await self.replica.append(grant, *calls, end=end("REQUIRES_ACTION", event_ids=ids), **options)
        return [thread.id for thread in (await self.threads())[1:]][-len(agents) :]

    async def finish(self, thread_id: str, text: str = "done") -> None:
        """A thread's turn from its grant to its answer."""
        grant = await self.turn_of(thread_id)
        await self.replica.append(grant, *spoken(grant, text), end=end())

    async def threads(self, **fields: Any) -> list[threads_pb2.SessionThread]:
        """What the session lists."""
        request = threads_pb2.ListThreadsRequest(session_id=self.id, page={"limit": 100}, **fields)
        return list((await self.replica.threads.ListThreads(request)).threads)

    async def thread_log(self, thread_id: str) -> list[dict[str, Any]]:
        """The log of a thread, decoded."""
        events: list[dict[str, Any]] = []
        request = sessions_pb2.ReadEventsRequest(session_id=self.id, thread_id=thread_id)
        async for batch in self.replica.events.ReadEvents(request):
            events.extend(orjson.loads(entry.body) for entry in batch.events)
        return events

    async def log(self) -> list[dict[str, Any]]:
        """The session's log, decoded."""
        return await self.replica.log(self.id)

    async def status(self) -> str:
        """The session's status."""
        return await self.replica.status(self.id)


def start(agent: str = "writer", message: Any = "write") -> turns_pb2.TurnEvent:
    """A call that starts a thread."""
    return called(START_THREAD, agent=agent, message=message)


def send(thread_id: str, message: str = "again") -> turns_pb2.TurnEvent:
    """A call that sends to a thread."""
    return called(SEND_TO_THREAD, thread_id=thread_id, message=message)


def called(name: str, **arguments: Any) -> turns_pb2.TurnEvent:
    """A call that may run."""
    block = {"type": "tool_use", "id": new_id("toolu"), "name": name, "input": arguments}
    return event("agent.tool_use", name=name, input=arguments, evaluated_permission="allow", content=[block])


def spoken(grant: turns_pb2.TurnGrant, text: str) -> list[turns_pb2.TurnEvent]:
    """What a thread's turn leaves in its log when the model is done."""
    content = [{"type": "text", "text": text}]
    sent = event("agent.thread_message_sent", to_session_thread_id=grant.parent_thread_id, content=content)
    return [*answer(text), sent]


async def saved(replica: Replica, name: str, **fields: Any) -> str:
    """A saved agent."""
    agent = {"name": name, "model": "demo", "system": "Be brief.", "tools": [TOOLSET]} | fields
    request = agents_pb2.CreateAgentRequest(definition_json=orjson.dumps(agent))
    return (await replica.agents.CreateAgent(request)).agent.id


@asynccontextmanager
async def coordinator(replica: Replica, **fields: Any) -> AsyncIterator[Coordinator]:
    """A session of a coordinator, and a runner that waits for turns."""
    roster = [await saved(replica, "writer"), await saved(replica, "critic")]
    multiagent = {"type": "coordinator", "agents": [*roster, {"type": "self"}]}
    agent_id = await saved(replica, "lead", multiagent=multiagent, **fields)
    request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps({"agent": agent_id}))
    session = (await replica.sessions.CreateSession(request)).session
    async with replica.runner(slots=40) as runner:
        yield Coordinator(replica, runner, session.id)


def results(log: list[dict[str, Any]]) -> list[str]:
    """What the results of a log say."""
    found = [entry for entry in log if entry["type"] == "agent.tool_result"]
    return ["\n".join(block["text"] for block in entry["content"]) for entry in found]


def last(log: list[dict[str, Any]], event_type: str) -> dict[str, Any]:
    """The newest event of a type."""
    return next(entry for entry in reversed(log) if entry["type"] == event_type)


async def until_status(lead: Coordinator, status: str) -> list[dict[str, Any]]:
    """The log once the session has a status."""

    async def reached() -> bool:
        return await lead.status() == status

    await await_until(reached, message=f"the session is {status}")
    return await lead.log()


async def ask(lead: Coordinator, thread_id: str, *kinds: str) -> list[str]:
    """Parks a thread on calls of these kinds; their ids as the session shows them."""
    grant = await lead.turn_of(thread_id)
    calls = [call(f"agent.{kind}", f"toolu_{at}") for at, kind in enumerate(kinds)]
    await lead.replica.append(grant, *calls, end=end("REQUIRES_ACTION", event_ids=[each.id for each in calls]))
    log = await until_status(lead, "requires_action")
    return last(log, "session.status_idle")["stop_reason"]["event_ids"]


async def has(lead: Coordinator, event_type: str) -> bool:
    """Whether the session's log has an event of a type."""
    return event_type in types(await lead.log())
