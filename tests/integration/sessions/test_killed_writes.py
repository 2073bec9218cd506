"""A process that dies in the middle of a write, between its statements, leaves all of it or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from kit.errors import DomainError
from kit.rpc.client import Channel, channel
from kit.rpc.context import CallContext
from kit.testing import await_until
from managed_agents.sessions.v1 import agents_pb2, memory_pb2, resources_pb2, sessions_pb2
from managed_agents.sessions.v1.agents_pb2_grpc import AgentsServiceStub
from managed_agents.sessions.v1.memory_pb2_grpc import MemoryServiceStub
from managed_agents.sessions.v1.resources_pb2_grpc import ResourcesServiceStub
from managed_agents.sessions.v1.sessions_pb2_grpc import SessionsServiceStub
from tests.integration.sessions.file_driver import WORKSPACE, files_of, rows, served, sessions_process

pytestmark = pytest.mark.asyncio(loop_scope="package")

CONTEXT = CallContext(workspace_id=WORKSPACE, principal_id="test")
TABLES = (
    "TABLE memory_stores",
    "TABLE memories",
    "TABLE memory_versions",
    "TABLE sessions",
    "TABLE files",
    "TABLE events",
)


class Ground:
    """What is there before the write, and the writes."""

    def __init__(self, connection: Channel) -> None:
        self.store_id = self.memory_id = self.agent_id = self.session_id = self.file_id = ""
        self.connect(connection)

    def connect(self, connection: Channel) -> None:
        self.memory, self.sessions = connection.stub(MemoryServiceStub), connection.stub(SessionsServiceStub)
        self.resources, self.agents = connection.stub(ResourcesServiceStub), connection.stub(AgentsServiceStub)

    async def furnish(self, file_id: str) -> None:
        self.file_id = file_id
        made = memory_pb2.CreateMemoryStoreRequest(definition_json=b'{"name":"Notes"}')
        self.store_id = (await self.memory.CreateMemoryStore(made, context=CONTEXT)).memory_store.id
        self.memory_id = (await self.add("/kept.md")).memory.id
        agent = agents_pb2.CreateAgentRequest(definition_json=b'{"name":"a","model":"m","system":"s"}')
        self.agent_id = (await self.agents.CreateAgent(agent, context=CONTEXT)).agent.id
        self.session_id = (await self.start()).session.id

    def add(self, path: str = "/new.md") -> Awaitable[Any]:
        request = memory_pb2.CreateMemoryRequest(memory_store_id=self.store_id, path=path, content="text")
        return self.memory.CreateMemory(request, context=CONTEXT)

    def change(self) -> Awaitable[Any]:
        named = {"memory_store_id": self.store_id, "memory_id": self.memory_id}
        return self.memory.UpdateMemory(memory_pb2.UpdateMemoryRequest(**named, content="other"), context=CONTEXT)

    def remove(self) -> Awaitable[Any]:
        named = {"memory_store_id": self.store_id, "memory_id": self.memory_id}
        return self.memory.DeleteMemory(memory_pb2.DeleteMemoryRequest(**named), context=CONTEXT)

    def start(self, *resources: Any) -> Awaitable[Any]:
        body = orjson.dumps({"agent": self.agent_id, "resources": resources})
        return self.sessions.CreateSession(sessions_pb2.CreateSessionRequest(definition_json=body), context=CONTEXT)

    def start_with_a_file(self) -> Awaitable[Any]:
        return self.start(self.resource)

    def attach(self) -> Awaitable[Any]:
        body = orjson.dumps(self.resource)
        request = resources_pb2.AttachResourceRequest(session_id=self.session_id, definition_json=body)
        return self.resources.AttachResource(request, context=CONTEXT)

    @property
    def resource(self) -> dict[str, str]:
        return {"type": "file", "file_id": self.file_id, "mount_path": "/a.txt"}


async def everything(dsn: str) -> dict[str, Any]:
    return {table: sorted(map(str, await rows(dsn, table))) for table in TABLES}


async def waiting(dsn: str) -> list[Any]:
    return await rows(dsn, "SELECT relation::regclass::text FROM pg_locks WHERE NOT granted AND relation IS NOT NULL")


@pytest.mark.parametrize(
    ("write", "held"),
    [
        (Ground.add, "memories"),
        (Ground.change, "memories"),
        (Ground.remove, "memories"),
        (Ground.start_with_a_file, "files"),
        (Ground.attach, "sessions"),
    ],
)
async def test_a_kill_between_the_statements_of_a_write_leaves_nothing_of_it(
    dsn: str, nats_url: str, folder: Path, write: Callable[[Ground], Awaitable[Any]], held: str
) -> None:
    options = "-c search_path=sessions -c managed_agents.workspace=*"
    async with sessions_process(dsn, nats_url, folder) as service, files_of(service.listen) as files:
        connection = channel(service.listen)
        ground = Ground(connection)
        await ground.furnish((await files.upload(b"given")).id)
        before = await everything(dsn)
        async with await psycopg.AsyncConnection.connect(dsn, options=options) as blocker:
            # Rows are read and locked as ever; the statement that writes here waits.
            await blocker.execute(f"LOCK TABLE {held} IN SHARE MODE")  # type: ignore[arg-type]
            writing = asyncio.ensure_future(write(ground))

            async def is_at_it() -> bool:
                return (held,) in await waiting(dsn)

            await await_until(is_at_it)
            service.process.kill()
            await service.killed()
            with pytest.raises(DomainError):
                await writing
        await connection.close()

    async def is_over() -> bool:
        return not await waiting(dsn)

    await await_until(is_over)
    assert await everything(dsn) == before
    async with served(dsn, nats_url, folder) as listen:
        connection = channel(listen)
        ground.connect(connection)
        await write(ground)
        await connection.close()
    assert await everything(dsn) != before
