"""Composition root of the work queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kit.buffers import keep_buffers
from kit.lifecycle import Service
from kit.migrate import migrate
from kit.nats import Nats, connect
from kit.postgres import Database
from kit.rpc.client import Channel
from kit.rpc.server import Server
from managed_agents.sessions.v1.duties_pb2_grpc import DutiesServiceStub
from services.worker.queue.config import QueueSettings, load_settings
from services.worker.queue.session_protocol import SessionProtocol
from services.worker.queue.tool_protocol import ToolProtocol

SCHEMA = "worker"
# All replicas share what these read of the sessions' log.
CONSUMERS = {"ends": "session_ends", "work": "session_work"}
MIGRATIONS = Path(__file__).parent / "migrations"


async def build() -> Service:
    """The queue as the process environment describes it."""
    settings = load_settings()
    keep_buffers()
    return compose(settings, await connect(settings.nats_server(), "queue"))


def compose(settings: QueueSettings, nats: Nats, *, consumers: Mapping[str, str] = CONSUMERS) -> Service:
    """Wires the queue; tests name consumers of their own."""
    dsn = settings.database_dsn()
    database = Database(dsn, SCHEMA)
    sessions = Channel(settings.sessions_address, token=settings.internal_token(), exchange=True)
    server = Server(settings.listen_address(), service="queue", internal_token=settings.internal_token())
    tools = ToolProtocol(
        database,
        nats,
        sessions,
        lease_seconds=settings.work_lease_seconds,
        keep_seconds=settings.work_keep_seconds,
        sweep_seconds=settings.work_sweep_seconds,
        silence_seconds=settings.work_silence_seconds,
    )
    whole_sessions = SessionProtocol(
        database,
        nats,
        sessions.stub(DutiesServiceStub),
        ttl_seconds=settings.session_work_seconds,
        consumer_name=consumers["work"],
    )

    async def prepare() -> None:
        await migrate(dsn, SCHEMA, MIGRATIONS)
        await database.open()

    service = Service.from_settings("queue", settings)
    service.add("database", prepare, database.close)
    service.add("nats", stop=nats.close)
    service.add("sessions", stop=sessions.close)
    tools.add_to(service, server)
    tools.hear_ends(service, consumers["ends"])
    tools.sweeping.also.append(whole_sessions.consumer.forget_old)
    whole_sessions.add_to(service, server)
    service.add("rpc", server.start, server.stop)
    return service
