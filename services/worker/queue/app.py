"""Composition root of the work queue."""

from __future__ import annotations

from pathlib import Path

from kit.lifecycle import Service
from kit.migrate import migrate
from kit.nats import Nats, connect
from kit.postgres import Database
from kit.rpc.client import Channel
from kit.rpc.server import Server
from managed_agents.sessions.v1.duties_pb2_grpc import DutiesServiceStub
from managed_agents.worker.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from services.worker.queue.config import QueueSettings, load_settings
from services.worker.queue.handlers.queue import QueueHandler
from services.worker.queue.session_protocol import SessionProtocol

SCHEMA = "worker"
MIGRATIONS = Path(__file__).parent / "migrations"


async def build() -> Service:
    """The queue as the process environment describes it."""
    settings = load_settings()
    return compose(settings, await connect(settings.nats_server(), "queue"))


def compose(settings: QueueSettings, nats: Nats) -> Service:
    """Wires the queue."""
    dsn = settings.database_dsn()
    database = Database(dsn, SCHEMA)
    sessions = Channel(settings.sessions_address, token=settings.internal_token())
    server = Server(settings.listen_address(), service="queue", internal_token=settings.internal_token())
    server.add(add_QueueServiceServicer_to_server, QueueHandler(database))
    protocol = SessionProtocol(
        database, nats, sessions.stub(DutiesServiceStub), ttl_seconds=settings.session_work_seconds
    )

    async def prepare() -> None:
        await migrate(dsn, SCHEMA, MIGRATIONS)
        await database.open()

    service = Service.from_settings("queue", settings)
    service.add("database", prepare, database.close)
    service.add("nats", stop=nats.close)
    service.add("sessions", stop=sessions.close)
    protocol.add_to(service, server)
    service.add("rpc", server.start, server.stop)
    return service
