"""Handlers of the sessions service over a real database and a real NATS, called as the gateway would."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

import services.sessions
from kit.clock import SystemClock
from kit.errors import DomainError
from kit.nats import Nats
from kit.postgres import Database
from kit.relay import Relay
from kit.rpc.context import CallContext, use_context
from managed_agents.sessions.v1 import agents_pb2, sessions_pb2
from managed_agents.sessions.v1.sessions_pb2 import Session
from services.sessions.domain import turn
from services.sessions.handlers.agents import AgentsHandler
from services.sessions.handlers.event_reads import EventReadsHandlers
from services.sessions.handlers.session_messages import session_message
from services.sessions.handlers.sessions import SessionsHandlers
from services.sessions.operations.announcer import Announcer
from services.sessions.operations.core import Operations, new_event_id
from services.sessions.operations.waiting_room import WaitingRoom

MIGRATIONS = Path(services.sessions.__file__).parent / "migrations"
WORKSPACE = "wrkspc_default"
MESSAGE = {"type": "user.message", "content": "Hello"}
AGENT: dict[str, Any] = {
    "name": "assistant",
    "model": {"id": "default", "effort": "high"},
    "system": "Be brief.",
    "tools": [{"type": "agent_toolset_20260401"}],
}


class Harness:
    """What the tests drive. Every call is one of `WORKSPACE` unless it says otherwise."""

    def __init__(self, database: Database, operations: Operations) -> None:
        self.database = database
        self.operations = operations
        self.agents = AgentsHandler(database, SystemClock())
        self.sessions = SessionsHandlers(operations)
        self.events = EventReadsHandlers(database)

    async def call(self, method: Any, request: Any, *, workspace: str = WORKSPACE, published: bool = False) -> Any:
        """One rpc."""
        with use_context(CallContext(workspace_id=workspace, published_contract=published)):
            return await method(request, None)

    async def agent(self, *, workspace: str = WORKSPACE, published: bool = False, **fields: Any) -> str:
        """A new agent's id."""
        request = agents_pb2.CreateAgentRequest(definition_json=orjson.dumps(AGENT | fields))
        created = await self.call(self.agents.CreateAgent, request, workspace=workspace, published=published)
        return created.agent.id

    async def save_another_version(self, agent_id: str) -> None:
        """Changes an agent."""
        request = agents_pb2.UpdateAgentRequest(agent_id=agent_id, patch_json=b'{"system":"Be long."}')
        await self.call(self.agents.UpdateAgent, request)

    async def create(
        self, agent: Any, *, workspace: str = WORKSPACE, published: bool = False, **fields: Any
    ) -> Session:
        """A new session."""
        request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps({"agent": agent} | fields))
        created = await self.call(self.sessions.CreateSession, request, workspace=workspace, published=published)
        return created.session

    async def get(self, session_id: str, *, workspace: str = WORKSPACE) -> Session:
        """A session as it is now."""
        request = sessions_pb2.GetSessionRequest(session_id=session_id)
        return (await self.call(self.sessions.GetSession, request, workspace=workspace)).session

    async def update(self, session_id: str, *, workspace: str = WORKSPACE, **patch: Any) -> Session:
        """A session after an update."""
        request = sessions_pb2.UpdateSessionRequest(session_id=session_id, patch_json=orjson.dumps(patch))
        return (await self.call(self.sessions.UpdateSession, request, workspace=workspace)).session

    async def listed(self, *, workspace: str = WORKSPACE, **fields: Any) -> sessions_pb2.ListSessionsResponse:
        """One page; `limit` and `cursor` are the page's, the rest are the request's own fields."""
        limit, cursor = fields.pop("limit", 20), fields.pop("cursor", "")
        request = sessions_pb2.ListSessionsRequest(page={"limit": limit, "cursor": cursor}, **fields)
        return await self.call(self.sessions.ListSessions, request, workspace=workspace)

    async def page(self, session_id: str, *, workspace: str = WORKSPACE, **fields: Any) -> Any:
        """One page of a log."""
        limit, cursor = fields.pop("limit", 100), fields.pop("cursor", "")
        request = sessions_pb2.ListEventsRequest(
            session_id=session_id, page={"limit": limit, "cursor": cursor}, **fields
        )
        return await self.call(self.events.ListEvents, request, workspace=workspace)

    async def log(self, session_id: str) -> list[dict[str, Any]]:
        """The bodies of a short log."""
        return [orjson.loads(event.body) for event in (await self.page(session_id, limit=1000)).events]

    async def replay(
        self, session_id: str, after_seq: int = 0, *, workspace: str = WORKSPACE, framed: bool = False
    ) -> list[Any]:
        """The batches of a replay."""
        request = sessions_pb2.ReadEventsRequest(session_id=session_id, after_seq=after_seq, framed=framed)
        with use_context(CallContext(workspace_id=workspace)):
            return [batch async for batch in self.events.ReadEvents(request, None)]

    async def append(self, session_id: str, events: list[Any]) -> None:
        """Appends client events as AppendEvents does."""
        async with self.operations.unit(WORKSPACE) as unit:
            await unit.append_client_events(await unit.lock(session_id), events)

    async def hold_turn(self, session_id: str) -> None:
        """Gives the session's waiting turn to a runner."""
        async with self.operations.unit(WORKSPACE) as unit:
            await unit.apply(turn.grant(await unit.lock(session_id), "runner_1", unit.now, new_event_id))

    async def count(self, table: str, workspace: str = WORKSPACE) -> int:
        """How many rows of a workspace a table has."""
        statements = {
            "sessions": "SELECT count(*) FROM sessions WHERE workspace_id = %(workspace_id)s",
            "events": "SELECT count(*) FROM events WHERE workspace_id = %(workspace_id)s",
            "outbox": "SELECT count(*) FROM outbox WHERE workspace_id = %(workspace_id)s",
            "idempotency": "SELECT count(*) FROM idempotency WHERE workspace_id = %(workspace_id)s",
        }
        async with self.database.read(workspace) as tx:
            return (await tx.one(statements[table]))[0]

    async def execute(self, sql: Any, **params: Any) -> None:
        """A statement of a test's own."""
        async with self.database.transaction(WORKSPACE) as tx:
            await tx.execute(sql, params)


@asynccontextmanager
async def harness(dsn: str, nats: Nats) -> AsyncIterator[Harness]:
    """The handlers over a fresh database; the relay is not started, so the outbox can be looked at."""
    database = Database(dsn, "sessions")
    await database.open()
    relay = Relay(database, nats, stream="SESSIONS", subjects=["sessions.log.>"])
    operations = Operations(
        database, SystemClock(), WaitingRoom(), Announcer(nats, relay), session_message, lease_seconds=10
    )
    try:
        yield Harness(database, operations)
    finally:
        await operations.stop()
        await database.close()


async def refusal(awaitable: Any) -> DomainError:
    """What a call is refused with."""
    with pytest.raises(DomainError) as caught:
        await awaitable
    return caught.value


__all__ = ["AGENT", "MESSAGE", "MIGRATIONS", "WORKSPACE", "Harness", "harness", "refusal"]
