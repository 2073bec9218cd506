"""Composition root of the work queue."""

from __future__ import annotations

from pathlib import Path

from kit.lifecycle import Service
from kit.migrate import migrate
from kit.postgres import Database
from kit.rpc.server import Server
from managed_agents.worker.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from services.worker.queue.config import QueueSettings, load_settings
from services.worker.queue.handlers.queue import QueueHandler

SCHEMA = "worker"
MIGRATIONS = Path(__file__).parent / "migrations"


async def build() -> Service:
    """The queue as the process environment describes it."""
    return compose(load_settings())


def compose(settings: QueueSettings) -> Service:
    """Wires the queue."""
    dsn = settings.database_dsn()
    database = Database(dsn, SCHEMA)
    server = Server(settings.listen_address(), service="queue", internal_token=settings.internal_token())
    server.add(add_QueueServiceServicer_to_server, QueueHandler(database))

    async def prepare() -> None:
        await migrate(dsn, SCHEMA, MIGRATIONS)
        await database.open()

    service = Service.from_settings("queue", settings)
    service.add("database", prepare, database.close)
    service.add("rpc", server.start, server.stop)
    return service
