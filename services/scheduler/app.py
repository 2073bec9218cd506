"""Composition root of the scheduler."""

from __future__ import annotations

from pathlib import Path

from kit.ids import new_id
from kit.lifecycle import Service
from kit.migrate import migrate
from kit.postgres import Database
from kit.rpc.server import Server
from managed_agents.scheduler.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from services.scheduler.config import SchedulerSettings, load_settings
from services.scheduler.handlers.scheduler import SchedulerHandler
from services.scheduler.ticker import Ticker

SCHEMA = "scheduler"
MIGRATIONS = Path(__file__).parent / "migrations"


async def build() -> Service:
    """The scheduler as the process environment describes it."""
    return compose(load_settings())


def compose(settings: SchedulerSettings) -> Service:
    """Wires the scheduler under a holder name of its own."""
    dsn, holder = settings.database_dsn(), new_id("scheduler")
    database = Database(dsn, SCHEMA)
    ticker = Ticker(database, holder)
    server = Server(settings.listen_address(), service=SCHEMA, internal_token=settings.internal_token())
    server.add(add_SchedulerServiceServicer_to_server, SchedulerHandler(database, holder))

    async def prepare() -> None:
        await migrate(dsn, SCHEMA, MIGRATIONS)
        await database.open()

    service = Service.from_settings(SCHEMA, settings)
    service.add("database", prepare, database.close)
    service.add("rpc", server.start, server.stop)
    service.add_task("ticker", ticker.run)
    service.add("ticker lease", stop=ticker.stop)
    return service
