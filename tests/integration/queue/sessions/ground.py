"""Replicas of the session protocol over real Postgres and NATS; the sessions service says what a test has it say."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.errors import DomainError, NotFound, Unavailable
from kit.ids import new_id
from kit.lifecycle import Service
from kit.nats import connect
from kit.postgres import Database
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from kit.rpc.server import Server
from kit.testing.swept import SweptDatabases
from managed_agents.sessions.v1 import duties_pb2
from managed_agents.worker.v1 import session_work_pb2 as pb
from managed_agents.worker.v1.session_work_pb2_grpc import SessionWorkServiceStub
from services.worker.queue.app import MIGRATIONS, SCHEMA
from services.worker.queue.session_protocol import SessionProtocol

WORKSPACE = new_id("wrkspc")
STREAM_SUBJECT = "sessions.work"


class SessionGone(NotFound):
    reason = "SESSION_NOT_FOUND"


class CountingDatabase(Database):
    """Knows how often a connection was asked for: for a workspace, and for none."""

    asked = 0
    asked_by_itself = 0

    def _borrow(self, workspace_id: str | None):
        self.asked += workspace_id is not None
        self.asked_by_itself += workspace_id is None
        return super()._borrow(workspace_id)


class Duties:
    """The sessions service as far as the queue asks it: what each session needs, and what was settled."""

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}
        self.needed: set[str] = set()
        self.settled: list[str] = []
        self.failed: list[str] = []
        # Of whom it was asked, and told.
        self.answered: list[str] = []
        self.is_away = False

    async def GetDuty(self, request: Any, **_options: Any) -> duties_pb2.GetDutyResponse:
        self._answer(request.session_id)
        return duties_pb2.GetDutyResponse(
            has_work=request.session_id in self.needed, waiting_call_id=self.waiting.get(request.session_id, "")
        )

    async def SettleCalls(self, request: Any, **_options: Any) -> duties_pb2.SettleCallsResponse:
        self._answer(request.session_id)
        self.settled.append(request.session_id)
        return duties_pb2.SettleCallsResponse()

    async def ReportFailedWork(self, request: Any, **_options: Any) -> duties_pb2.ReportFailedWorkResponse:
        self._answer(request.session_id)
        self.failed.append(request.session_id)
        self.needed.discard(request.session_id)
        return duties_pb2.ReportFailedWorkResponse()

    def _answer(self, session_id: str) -> None:
        if self.is_away:
            raise Unavailable("The sessions service is away.")
        if session_id.endswith("gone"):
            raise SessionGone("Session not found.")
        self.answered.append(session_id)


class Replica:
    """One process of the queue, and what workers of an environment say to it."""

    def __init__(self, channel: Channel, protocol: SessionProtocol, environment_id: str) -> None:
        self.channel, self.protocol = channel, protocol
        self.environment_id = environment_id
        self._stub = channel.stub(SessionWorkServiceStub)

    def of(self, environment_id: str) -> Replica:
        """The same process, for workers of another environment."""
        return Replica(self.channel, self.protocol, environment_id)

    def context(self, token: bytes = b"", *, role: str = "worker", environment_id: str = "") -> CallContext:
        """A worker of the environment, with the digest of a token if it has one; or an operator."""
        bound = "" if role != "worker" else environment_id or self.environment_id
        return CallContext(WORKSPACE, "req_1", "wkey_1", role=role, environment_id=bound, sessions_token_sha256=token)

    async def ask(self, name: str, request: Any, *, context: CallContext | None = None, seconds: float = 20.0) -> Any:
        """One rpc."""
        rpc = getattr(self._stub, name)
        return await rpc(request, context=context or self.context(), timeout_seconds=seconds)

    async def poll(
        self, worker_id: str = "w1", *, block: float = 0.0, reclaim: float = 5.0
    ) -> tuple[pb.SessionWork, bytes] | None:
        """An item, and the digest of its token."""
        request = pb.PollWorkRequest(
            environment_id=self.environment_id, worker_id=worker_id, block_seconds=block, reclaim_seconds=reclaim
        )
        answer = await self.ask("PollWork", request, seconds=block + 10)
        if not answer.HasField("work"):
            return None
        assert answer.sessions_token.startswith("mast_") and len(answer.sessions_token) > 40
        return answer.work, digest(answer.sessions_token)

    async def ack(self, work_id: str, context: CallContext | None = None) -> pb.SessionWork:
        request = pb.AckWorkRequest(environment_id=self.environment_id, work_id=work_id)
        return (await self.ask("AckWork", request, context=context)).work

    async def beat(self, work_id: str, expected: str | None = None, context: CallContext | None = None, **fields: Any):
        request = pb.HeartbeatWorkRequest(
            environment_id=self.environment_id, work_id=work_id, expected_last_heartbeat=expected, **fields
        )
        return (await self.ask("HeartbeatWork", request, context=context)).lease

    async def stop(self, work_id: str, context: CallContext | None = None, *, force: bool = False) -> pb.SessionWork:
        request = pb.StopWorkRequest(environment_id=self.environment_id, work_id=work_id, force=force)
        return (await self.ask("StopWork", request, context=context)).work

    async def get(self, work_id: str) -> pb.SessionWork:
        request = pb.GetWorkRequest(environment_id=self.environment_id, work_id=work_id)
        return (await self.ask("GetWork", request, context=self.context(role="member"))).work

    async def items(self) -> list[pb.SessionWork]:
        request = pb.ListWorkRequest(environment_id=self.environment_id, limit=100)
        return list((await self.ask("ListWork", request)).work)

    async def stats(self) -> pb.GetWorkStatsResponse:
        return await self.ask("GetWorkStats", pb.GetWorkStatsRequest(environment_id=self.environment_id))

    async def active(self, worker_id: str = "w1") -> tuple[str, bytes, str]:
        """An item that a worker serves: its id, the digest of the token, and the last heartbeat."""
        found = await self.poll(worker_id, block=10.0)
        assert found is not None
        work, token = found
        await self.ack(work.id, self.context(token))
        lease = await self.beat(work.id, "NO_HEARTBEAT", self.context(token))
        assert lease.lease_extended and lease.state == "active"
        return work.id, token, lease.last_heartbeat


class Ground:
    """What a test drives."""

    def __init__(self, nats_url: str, dsn: str, folder: Path, database: Database) -> None:
        self.nats_url, self.dsn, self.folder, self.database = nats_url, dsn, folder, database
        self.duties = Duties()
        self.environment_id = new_id("env")
        self.consumer_name = f"work-{folder.name}"
        self._nats: Any = None
        self._count = 0
        self._seq = 0
        self._connections: list[CountingDatabase] = []

    def anew(self) -> None:
        """An environment of its own for the next test."""
        self.environment_id = new_id("env")
        self.duties.is_away = False

    def count_statements(self) -> int:
        """How often the queue asked for a connection on behalf of polls."""
        return sum(each.asked for each in self._connections)

    def count_own(self) -> int:
        """How often the queue asked for one on behalf of nobody: its sweeps and its consumer."""
        return sum(each.asked_by_itself for each in self._connections)

    def settled(self) -> int:
        """How often calls of the test's sessions were settled."""
        return sum(self.environment_id in each for each in self.duties.settled)

    def name(self, session: str) -> str:
        """What a session is called that the test calls so: other tests have others."""
        return f"sess_{self.environment_id}_{session}"

    async def open(self) -> None:
        self._nats = await connect(self.nats_url, "test")
        jetstream = self._nats.jetstream()
        # As the relay of the sessions service makes it.
        try:
            await jetstream.stream_info("SESSIONS")
        except Exception:
            await jetstream.add_stream(name="SESSIONS", subjects=["sessions.log.>", "sessions.work.>"])
        else:
            await jetstream.update_stream(name="SESSIONS", subjects=["sessions.log.>", "sessions.work.>"])

    async def close(self) -> None:
        await self._nats.close()

    async def say(self, session_id: str, *, needed: bool, ended: bool = False, seq: int = 0) -> None:
        """What the sessions service announces of a session."""
        session_id = self.name(session_id)
        if needed:
            self.duties.needed.add(session_id)
        else:
            self.duties.needed.discard(session_id)
        self._seq += 1
        change = duties_pb2.DutyChanged(
            workspace_id=WORKSPACE,
            session_id=session_id,
            environment_id=self.environment_id,
            seq=seq or self._seq,
            has_work=needed,
            ended=ended,
        )
        await self._nats.jetstream().publish(
            f"{STREAM_SUBJECT}.{self.environment_id}",
            change.SerializeToString(),
            headers={"Nats-Msg-Id": new_id("sevt")},
        )

    @asynccontextmanager
    async def replica(self, *, ttl_seconds: int = 60) -> AsyncIterator[Replica]:
        """A process of the queue."""
        self._count += 1
        address = f"unix:{self.folder / f'q{self._count}'}"
        connections = CountingDatabase(self.dsn, SCHEMA)
        self._connections.append(connections)
        nats = await connect(self.nats_url, "queue")
        protocol = SessionProtocol(
            connections,
            nats,
            self.duties,
            ttl_seconds=ttl_seconds,
            consumer_name=self.consumer_name,
        )
        service, server = Service(f"queue {self._count}"), Server(address, service="queue")
        service.add("database", connections.open, connections.close)
        service.add("nats", stop=nats.close)
        protocol.add_to(service, server)
        service.add("rpc", server.start, server.stop)
        channel = Channel(address)
        await service.start()
        try:
            yield Replica(channel, protocol, self.environment_id)
        finally:
            await channel.close()
            await service.stop()


@asynccontextmanager
async def session_ground(databases: SweptDatabases, nats_url: str) -> AsyncIterator[Ground]:
    """A database of its own, and the stream."""
    # Short, since the path of a socket may not be long.
    with tempfile.TemporaryDirectory(prefix="ma-q-") as folder:
        async with databases.database(SCHEMA, MIGRATIONS) as dsn:
            connections = Database(dsn, SCHEMA)
            await connections.open()
            ground = Ground(nats_url, dsn, Path(folder), connections)
            await ground.open()
            try:
                yield ground
            finally:
                await ground.close()
                await connections.close()


def digest(token: str) -> bytes:
    """What the gateway knows of a token."""
    return hashlib.sha256(token.encode()).digest()


async def reason(waiting: Any) -> str:
    """Why a call is refused."""
    with pytest.raises(DomainError) as refused:
        await waiting
    return refused.value.reason


async def is_now(queue: Replica, work_id: str, state: str) -> bool:
    """Whether an item is in that state."""
    return (await queue.get(work_id)).state == state
