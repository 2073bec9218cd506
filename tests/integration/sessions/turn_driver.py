"""A replica of the sessions service in the test's process, and a runner that does what a test says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg

from kit.ids import new_id
from kit.nats import Nats
from kit.rpc.client import Channel, channel
from kit.rpc.context import CallContext
from kit.waiting import within
from managed_agents.sessions.v1 import (
    agents_pb2,
    agents_pb2_grpc,
    common_pb2,
    duties_pb2_grpc,
    environments_pb2_grpc,
    events_pb2,
    sessions_pb2,
    sessions_pb2_grpc,
    threads_pb2_grpc,
    turns_pb2,
    turns_pb2_grpc,
)
from services.sessions.app import MIGRATIONS, build
from services.sessions.config import Settings

WORKSPACE = "wrkspc_default"
# What turns leave in a log.
RUNNING = ["session.status_running", "session.thread_status_running"]
IDLE = ["session.thread_status_idle", "session.usage", "session.status_idle"]
REQUEST = ["span.model_request_start", "agent.message", "span.model_request_end"]


class _Calls:
    """A stub whose calls all carry one context."""

    def __init__(self, stub: Any, context: CallContext) -> None:
        self._stub, self._context = stub, context

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._stub, name), context=self._context)


class Replica:
    """Clients of one replica."""

    def __init__(self, connection: Channel, context: CallContext) -> None:
        self.agents = _Calls(connection.stub(agents_pb2_grpc.AgentsServiceStub), context)
        self.environments = _Calls(connection.stub(environments_pb2_grpc.EnvironmentsServiceStub), context)
        self.sessions = _Calls(connection.stub(sessions_pb2_grpc.SessionsServiceStub), context)
        self.events = _Calls(connection.stub(sessions_pb2_grpc.EventsServiceStub), context)
        self.threads = _Calls(connection.stub(threads_pb2_grpc.ThreadsServiceStub), context)
        self.turns = _Calls(connection.stub(turns_pb2_grpc.TurnsServiceStub), context)
        self.duties = _Calls(connection.stub(duties_pb2_grpc.DutiesServiceStub), context)

    async def create_session(self, *initial: dict[str, Any], **fields: Any) -> str:
        """A session of a plain agent."""
        agent = {
            "name": "tester",
            "model": "demo",
            "system": "Be brief.",
            "tools": [{"type": "agent_toolset_20260401"}],
        }
        created = await self.agents.CreateAgent(agents_pb2.CreateAgentRequest(definition_json=orjson.dumps(agent)))
        body = {"agent": created.agent.id, "environment_id": "env_default", "initial_events": list(initial)} | fields
        response = await self.sessions.CreateSession(
            sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps(body))
        )
        return response.session.id

    async def send(self, session_id: str, *events: dict[str, Any], **options: Any) -> sessions_pb2.AppendEventsResponse:
        """What a client posts."""
        return await self.events.AppendEvents(
            sessions_pb2.AppendEventsRequest(session_id=session_id, events_json=orjson.dumps(list(events)), **options)
        )

    async def append(self, grant: turns_pb2.TurnGrant, *events: turns_pb2.TurnEvent, **options: Any) -> Any:
        """What the holder of a turn writes."""
        options.setdefault("known_seq", grant.session.last_seq)
        return await self.turns.AppendTurnEvents(
            turns_pb2.AppendTurnEventsRequest(session_id=grant.session.id, epoch=grant.epoch, events=events, **options)
        )

    async def log(self, session_id: str) -> list[dict[str, Any]]:
        """The whole log, decoded."""
        events: list[dict[str, Any]] = []
        async for batch in self.events.ReadEvents(sessions_pb2.ReadEventsRequest(session_id=session_id)):
            events.extend(orjson.loads(event.body) for event in batch.events)
        return events

    async def status(self, session_id: str) -> str:
        """The status, by its short name."""
        response = await self.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=session_id))
        name = sessions_pb2.SessionStatus.Name(response.session.status)
        return name.removeprefix("SESSION_STATUS_").lower()

    async def evaluations(self, session_id: str) -> list[dict[str, Any]]:
        """What the session tells of its outcomes."""
        response = await self.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=session_id))
        return orjson.loads(response.session.outcome_evaluations_json)

    async def stop(self, session_id: str) -> None:
        """Ends the session for good."""
        await self.sessions.StopSession(sessions_pb2.StopSessionRequest(session_id=session_id))

    @asynccontextmanager
    async def runner(self, slots: int = 4, **cached: int) -> AsyncIterator["Runner"]:
        """A runner that waits for turns on this replica."""
        runner = Runner(self, new_id("runner"))
        await runner.wait(slots, **cached)
        try:
            yield runner
        finally:
            runner.leave()


class Runner:
    """One ClaimTurns stream."""

    def __init__(self, replica: Replica, runner_id: str) -> None:
        self.replica = replica
        self.id = runner_id
        self._call = replica.turns.ClaimTurns()
        # A read that found nothing yet; the next grant is its answer.
        self._waiting: asyncio.Future[Any] | None = None

    async def wait(self, slots: int, **cached: int) -> None:
        """Tells the free slots."""
        entries = [turns_pb2.CachedContext(session_id=name, known_seq=seq) for name, seq in cached.items()]
        await self._call.write(turns_pb2.ClaimTurnsRequest(runner_id=self.id, free_slots=slots, cached=entries))

    async def granted(self, timeout: float = 30.0) -> turns_pb2.TurnGrant:
        """The next turn."""
        waiting = self._waiting or asyncio.ensure_future(self._call.call.read())
        self._waiting = None
        response = await within(waiting, timeout)
        return response.grant

    async def nothing_granted(self, seconds: float = 0.3) -> bool:
        """Whether no turn comes within a time."""
        waiting = asyncio.ensure_future(self._call.call.read())
        done, _ = await asyncio.wait({waiting}, timeout=seconds)
        if not done:
            self._waiting = waiting
        return not done

    async def renew(self, *grants: turns_pb2.TurnGrant) -> turns_pb2.RenewLeasesResponse:
        """Renews the leases of these turns."""
        held = [turns_pb2.HeldTurn(session_id=grant.session.id, epoch=grant.epoch) for grant in grants]
        return await self.replica.turns.RenewLeases(turns_pb2.RenewLeasesRequest(runner_id=self.id, turns=held))

    def leave(self) -> None:
        """Breaks the stream, as a crash would."""
        self._call.cancel()
        if self._waiting is not None:
            self._waiting.cancel()


@asynccontextmanager
async def replica(
    dsn: str, nats_url: str, folder: Path, workspace_id: str = WORKSPACE, **settings: Any
) -> AsyncIterator[Replica]:
    """A started replica with clients; stopped in order afterwards."""
    listen = f"unix:{folder}/{new_id('s')[-8:]}.sock"
    service = await build(Settings(database_url=dsn, nats_url=nats_url, listen=listen, **settings))
    await service.start()
    try:
        connection = channel(listen)
        try:
            yield Replica(connection, CallContext(workspace_id=workspace_id, principal_id="test"))
        finally:
            await connection.close()
    finally:
        await service.stop()


def user(text: str = "hello") -> dict[str, Any]:
    """A user.message."""
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def event(event_type: str, **fields: Any) -> turns_pb2.TurnEvent:
    """An event as a runner writes it."""
    return turns_pb2.TurnEvent(id=new_id("sevt"), type=event_type, fields_json=orjson.dumps(fields))


def call(event_type: str, block_id: str) -> turns_pb2.TurnEvent:
    """A call that waits for a client."""
    block = {"type": "tool_use", "id": block_id, "name": "bash", "input": {}}
    return event(event_type, name="bash", input={}, content=[block])


def answer(text: str = "hi") -> list[turns_pb2.TurnEvent]:
    """What a model request leaves in the log."""
    start = event("span.model_request_start")
    return [
        start,
        event("agent.message", content=[{"type": "text", "text": text}]),
        event("span.model_request_end", model_request_start_id=start.id, is_error=False),
    ]


def end(kind: str = "END_TURN", **fields: Any) -> turns_pb2.TurnEnd:
    """How a turn ends."""
    return turns_pb2.TurnEnd(kind=turns_pb2.TurnEndKind.Value(f"TURN_END_KIND_{kind}"), **fields)


def once(key: str, fingerprint: bytes = b"f", **fields: Any) -> common_pb2.Idempotency:
    """Marks a write that may come twice."""
    return common_pb2.Idempotency(key=key, fingerprint=fingerprint, keep_seconds=60, **fields)


def types(events: list[dict[str, Any]]) -> list[str]:
    """The types of a log."""
    return [entry["type"] for entry in events]


async def heard(nats: Nats, subject: str) -> list[bytes]:
    """A list that fills with what is published on a subject."""
    messages: list[bytes] = []

    async def keep(message: Any) -> None:
        messages.append(message.data)

    await nats.subscribe(subject, keep)
    await nats.client.flush()
    return messages


async def lapse(dsn: str, *session_ids: str) -> None:
    """The leases of these turns run out now, and not while a slow machine is still at the step before."""
    options = "-c search_path=sessions -c managed_agents.workspace=*"
    async with await psycopg.AsyncConnection.connect(dsn, options=options) as connection:
        await connection.execute(
            "UPDATE turns SET expires_at = clock_timestamp() - interval '1 second'"
            " WHERE holder <> '' AND session_id = ANY(%s)",
            [list(session_ids)],
        )


async def park(one: Replica, runner: Runner, session_id: str, *calls: Any) -> turns_pb2.TurnGrant:
    """A turn that ends with calls that wait for a client."""
    await one.send(session_id, user("do it"))
    grant = await runner.granted()
    ended = await one.append(
        grant, event("span.model_request_start"), *calls, end=end("REQUIRES_ACTION", event_ids=[c.id for c in calls])
    )
    assert ended.ended
    return grant


__all__ = [
    "IDLE",
    "MIGRATIONS",
    "REQUEST",
    "RUNNING",
    "Replica",
    "Runner",
    "answer",
    "end",
    "event",
    "events_pb2",
    "heard",
    "lapse",
    "once",
    "park",
    "replica",
    "types",
    "user",
]
