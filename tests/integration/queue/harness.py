"""Replicas of the queue over real Postgres and NATS, beside a sessions service that says what the test tells it to."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kit.errors import Unavailable
from kit.ids import new_id
from kit.lifecycle import Service
from kit.nats import connect
from kit.postgres import Database
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from kit.rpc.server import Server
from managed_agents.sessions.v1 import states_pb2, states_pb2_grpc
from managed_agents.worker.v1 import queue_pb2 as pb
from managed_agents.worker.v1.queue_pb2_grpc import QueueServiceStub
from services.worker.queue.app import MIGRATIONS, SCHEMA
from services.worker.queue.tool_protocol import ToolProtocol

# Of this process alone: queues of other test processes tell of their items on the same bus.
WORKSPACE = new_id("wrkspc")
PLATFORM = CallContext(WORKSPACE, "req_1", "runner_1")
ENVIRONMENT = "env_1"
SESSION = "sess_1"

_numbers = itertools.count(1)


def worker_context(environment_id: str = ENVIRONMENT, workspace_id: str = WORKSPACE) -> CallContext:
    """What the gateway says of a caller with the key of an environment."""
    return CallContext(workspace_id, "req_1", "wkey_1", role="worker", environment_id=environment_id)


class Sessions(states_pb2_grpc.SessionStatesServiceServicer):
    """The sessions service as far as the queue asks it."""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        self.asked: list[str] = []
        self.is_away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def ReadEndedSessions(self, request, context) -> states_pb2.ReadEndedSessionsResponse:
        await self.gate.wait()
        if self.is_away:
            raise Unavailable("The sessions service is away.")
        self.asked.extend(request.session_ids)
        return states_pb2.ReadEndedSessionsResponse(ended_session_ids=self.ended & set(request.session_ids))


class CountingDatabase(Database):
    """Knows how often anything asked for a connection."""

    asked = 0

    def _borrow(self, workspace_id: str | None):
        self.asked += 1
        return super()._borrow(workspace_id)


class Replica:
    """One process of the queue, and what runners and workers say to it."""

    def __init__(self, service: Service, channel: Channel, tools: ToolProtocol, database: CountingDatabase) -> None:
        self.service = service
        self.channel = channel
        # The sweeps, to be done now.
        self.sweeping = tools.sweeping
        self.database = database
        self.stub = channel.stub(QueueServiceStub)

    def run(self, item_id: str = "", /, **fields: Any) -> asyncio.Task[pb.RunWorkItemResponse]:
        """Puts an item in, and waits for its end in the background."""
        payload = fields.pop("payload", {"command": "true"})
        context = fields.pop("context", PLATFORM)
        request = {
            "session_id": SESSION,
            "environment_id": ENVIRONMENT,
            "kind": "exec",
            "wait_seconds": 30.0,
            "payload_json": json.dumps(payload).encode(),
        } | fields
        request.setdefault("item_id", item_id or f"work_{next(_numbers):06d}")
        call = self.stub.RunWorkItem(pb.RunWorkItemRequest(**request), context=context, timeout_seconds=60.0)
        return asyncio.create_task(call)

    async def claim(self, worker_id: str = "w1", /, **fields: Any) -> pb.WorkItem | None:
        """An item, or None."""
        context = fields.pop("context", PLATFORM)
        request = pb.ClaimWorkItemRequest(**{"worker_id": worker_id} | fields)
        answer = await self.stub.ClaimWorkItem(request, context=context, timeout_seconds=40.0)
        return answer.item if answer.HasField("item") else None

    async def accept(self, item_id: str, worker_id: str = "w1", context: CallContext = PLATFORM, attempt: int = 0):
        request = pb.AcceptWorkItemRequest(id=item_id, worker_id=worker_id, attempt=attempt)
        return await self.stub.AcceptWorkItem(request, context=context)

    async def heartbeat(self, item_id: str, worker_id: str = "w1", context: CallContext = PLATFORM, attempt: int = 0):
        request = pb.HeartbeatWorkItemRequest(id=item_id, worker_id=worker_id, attempt=attempt)
        return await self.stub.HeartbeatWorkItem(request, context=context)

    async def complete(
        self,
        item_id: str,
        worker_id: str = "w1",
        result: Any = None,
        failed: bool = False,
        context: CallContext = PLATFORM,
        attempt: int = 0,
    ):
        request = pb.CompleteWorkItemRequest(
            id=item_id, worker_id=worker_id, result_json=json.dumps(result).encode(), failed=failed, attempt=attempt
        )
        return await self.stub.CompleteWorkItem(request, context=context)

    async def stop_session(self, session_id: str = SESSION, item_ids: tuple[str, ...] = ()) -> int:
        request = pb.StopSessionWorkRequest(session_id=session_id, item_ids=item_ids)
        return (await self.stub.StopSessionWork(request, context=PLATFORM)).stopped

    async def items(self, environment_id: str = ENVIRONMENT, **fields: Any) -> list[pb.WorkItem]:
        request = pb.ListWorkItemsRequest(environment_id=environment_id, **fields)
        return list((await self.stub.ListWorkItems(request, context=PLATFORM)).items)

    async def pages(self, limit: int) -> list[pb.WorkItem]:
        found: list[pb.WorkItem] = []
        cursor = ""
        while True:
            request = pb.ListWorkItemsRequest(environment_id=ENVIRONMENT, limit=limit, cursor=cursor)
            page = await self.stub.ListWorkItems(request, context=PLATFORM)
            assert len(page.items) <= limit
            found += page.items
            cursor = page.next_cursor
            if not cursor:
                return found

    async def stats(self, environment_id: str = ENVIRONMENT) -> pb.GetQueueStatsResponse:
        return await self.stub.GetQueueStats(pb.GetQueueStatsRequest(environment_id=environment_id), context=PLATFORM)

    async def item(self, item_id: str, environment_id: str = ENVIRONMENT) -> pb.WorkItem | None:
        found = [item for item in await self.items(environment_id, limit=1000) if item.id == item_id]
        return found[0] if found else None


class Queue:
    """Replicas over one database."""

    def __init__(self, dsn: str, nats_url: str, folder: Path, sessions: Sessions, sessions_address: str) -> None:
        self.dsn = dsn
        self.sessions = sessions
        self.nats_url = nats_url
        self._folder = folder
        self._sessions_address = sessions_address
        self._replicas: list[Replica] = []

    async def replica(
        self,
        *,
        work_lease_seconds: float = 60.0,
        work_sweep_seconds: float = 0.2,
        work_silence_seconds: float = 30.0,
        hears_ends: bool = False,
    ) -> Replica:
        """Starts one; it hears of ended sessions only where that is tested."""
        listen = f"unix:{self._folder}/queue-{next(_numbers)}.sock"
        database, nats = CountingDatabase(self.dsn, SCHEMA), await connect(self.nats_url, "queue")
        sessions = Channel(self._sessions_address, exchange=True)
        server = Server(listen, service="queue")
        tools = ToolProtocol(
            database,
            nats,
            sessions,
            lease_seconds=work_lease_seconds,
            keep_seconds=86_400.0,
            sweep_seconds=work_sweep_seconds,
            silence_seconds=work_silence_seconds,
        )
        service = Service("queue", grace_seconds=5.0)
        service.add("database", database.open, database.close)
        service.add("nats", stop=nats.close)
        service.add("sessions", stop=sessions.close)
        tools.add_to(service, server)
        if hears_ends:
            tools.hear_ends(service, f"ends-{self._folder.name}")
        service.add("rpc", server.start, server.stop)
        await service.start()
        replica = Replica(service, Channel(listen, exchange=True), tools, database)
        self._replicas.append(replica)
        return replica

    @property
    def name(self) -> str:
        """Of this queue and no other, on servers that tests share."""
        return self._folder.name

    async def stop(self, replica: Replica) -> None:
        """Stops one."""
        self._replicas.remove(replica)
        await replica.service.stop()
        await replica.channel.close()

    async def close(self) -> None:
        """Stops all of them."""
        for replica in list(self._replicas):
            await self.stop(replica)


@asynccontextmanager
async def queue(make_database: Any, nats_url: str, folder: Path) -> AsyncIterator[Queue]:
    """A queue without replicas."""
    sessions = Sessions()
    address = f"unix:{folder}/sessions.sock"
    server = Server(address, service="sessions")
    server.add(states_pb2_grpc.add_SessionStatesServiceServicer_to_server, sessions)
    await server.start()
    ground = Queue(await make_database(SCHEMA, MIGRATIONS), nats_url, folder, sessions, address)
    try:
        yield ground
    finally:
        await ground.close()
        await server.stop()
