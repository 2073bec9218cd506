"""Puts one replica of the sessions service together."""

from pathlib import Path
from typing import Any

from kit.buffers import keep_buffers
from kit.clock import SystemClock
from kit.config import load
from kit.lifecycle import Service
from kit.migrate import migrate
from kit.nats import Nats, connect
from kit.postgres import Database
from kit.relay import Relay
from kit.rpc.client import Channel
from kit.rpc.server import Server
from managed_agents.sessions.v1.agents_pb2_grpc import add_AgentsServiceServicer_to_server
from managed_agents.sessions.v1.duties_pb2_grpc import add_DutiesServiceServicer_to_server
from managed_agents.sessions.v1.environments_pb2_grpc import add_EnvironmentsServiceServicer_to_server
from managed_agents.sessions.v1.files_pb2_grpc import add_FilesServiceServicer_to_server
from managed_agents.sessions.v1.gateway_pb2_grpc import add_SessionGatewayServiceServicer_to_server
from managed_agents.sessions.v1.memory_pb2_grpc import add_MemoryServiceServicer_to_server
from managed_agents.sessions.v1.outcomes_pb2_grpc import add_OutcomesServiceServicer_to_server
from managed_agents.sessions.v1.resources_pb2_grpc import add_ResourcesServiceServicer_to_server
from managed_agents.sessions.v1.sessions_pb2_grpc import (
    add_EventsServiceServicer_to_server,
    add_SessionsServiceServicer_to_server,
)
from managed_agents.sessions.v1.skills_pb2_grpc import add_SkillsServiceServicer_to_server
from managed_agents.sessions.v1.states_pb2_grpc import add_SessionStatesServiceServicer_to_server
from managed_agents.sessions.v1.steps_pb2_grpc import add_StepsServiceServicer_to_server
from managed_agents.sessions.v1.threads_pb2_grpc import add_ThreadsServiceServicer_to_server
from managed_agents.sessions.v1.turns_pb2_grpc import add_TurnsServiceServicer_to_server
from services.sessions.blobs.choice import Blobs, choice_reader
from services.sessions.config import Settings
from services.sessions.handlers.agents import AgentsHandler
from services.sessions.handlers.duties import DutiesHandlers
from services.sessions.handlers.environments import EnvironmentsHandler
from services.sessions.handlers.events import EventsHandlers
from services.sessions.handlers.files import FilesHandler
from services.sessions.handlers.gateway import GatewayHandlers
from services.sessions.handlers.memory_folders import MemoryHandlers
from services.sessions.handlers.outcomes import OutcomesHandler
from services.sessions.handlers.resources import ResourcesHandlers
from services.sessions.handlers.session_messages import session_message
from services.sessions.handlers.session_states import SessionStatesHandler
from services.sessions.handlers.sessions import SessionsHandlers
from services.sessions.handlers.skills import SkillsHandler
from services.sessions.handlers.steps import StepsHandlers
from services.sessions.handlers.threads import ThreadsHandlers
from services.sessions.handlers.turns import TurnsHandlers
from services.sessions.operations.announcer import TURN_READY, Announcer
from services.sessions.operations.blob_holds import BlobSweep
from services.sessions.operations.claims import Claims
from services.sessions.operations.core import Operations
from services.sessions.operations.default_engines import DefaultEngines, engine_reader
from services.sessions.operations.repository_tokens import RepositoryTokens
from services.sessions.operations.session_vaults import vault_checker
from services.sessions.operations.token_sweep import TokenSweep
from services.sessions.operations.waiting_room import WaitingRoom
from services.sessions.operations.waits import Waits, bound_reader
from services.sessions.sweeper import Sweeper

SCHEMA = "sessions"
MIGRATIONS = Path(__file__).parent / "migrations"


async def build(settings: Settings | None = None) -> Service:
    """One replica, in the order in which its parts start."""
    settings = settings or load(Settings)
    dsn, prices, has_grader = settings.database_dsn(), settings.prices(), settings.has_grader()
    keep_buffers()
    clock = SystemClock()
    database = Database(dsn, SCHEMA, max_connections=settings.database_connections)
    nats = await connect(settings.nats_server(), SCHEMA)
    relay = Relay(database, nats, stream="SESSIONS", subjects=["sessions.log.>", "sessions.work.>"])
    room = WaitingRoom()
    operations = Operations(
        database, clock, room, Announcer(nats, relay), session_message, lease_seconds=settings.lease_seconds
    )
    vault = Channel(settings.vault_address, token=settings.internal_token()) if settings.vault_address else None
    waits = Waits(operations, bound_reader(vault)) if vault is not None else None
    blobs = Blobs(settings.files_folder(), choice_reader(vault) if vault is not None else None)
    server = Server(settings.listen_address(), service=SCHEMA, internal_token=settings.internal_token())
    server.add(add_AgentsServiceServicer_to_server, AgentsHandler(database, clock, has_search=settings.has_search()))
    server.add(add_EnvironmentsServiceServicer_to_server, EnvironmentsHandler(database, clock))
    tokens = RepositoryTokens(vault)
    engines = DefaultEngines(engine_reader(vault) if vault is not None else None)
    sessions = SessionsHandlers(
        operations,
        prices=prices,
        has_grader=has_grader,
        check_vaults=vault_checker(vault),
        tokens=tokens,
        has_search=settings.has_search(),
        default_engines=engines,
    )
    _serve_sessions(server, operations, sessions, EventsHandlers(operations, has_grader=has_grader))
    server.add(add_ResourcesServiceServicer_to_server, ResourcesHandlers(operations, tokens))
    server.add(add_ThreadsServiceServicer_to_server, ThreadsHandlers(operations))
    server.add(add_OutcomesServiceServicer_to_server, OutcomesHandler(database, clock))
    server.add(add_MemoryServiceServicer_to_server, MemoryHandlers(database, clock, nats))
    _serve_blobs(server, settings, database, blobs)
    server.add(add_TurnsServiceServicer_to_server, TurnsHandlers(operations, prices))

    async def hear_hints() -> None:
        async def hinted(_message: Any) -> None:
            room.turns_wait()

        await nats.subscribe_eventually(TURN_READY, hinted)

    async def seat_nobody_while_stopping() -> None:
        await server.stopping.wait()
        room.close()

    service = Service.from_settings(SCHEMA, settings)
    service.add("migrations", lambda: migrate(dsn, SCHEMA, MIGRATIONS))
    service.add("database", database.open, database.close)
    service.add("nats", stop=nats.close)
    service.add("relay", relay.start, relay.stop)
    service.add("hints", hear_hints)
    _add_blobs(service, settings, blobs, BlobSweep(database, clock, blobs, settings.blob_grace()), nats)
    service.add("default engines", engines.follow(nats))
    service.add("operations", stop=operations.stop)
    service.add_task("claims", Claims(operations).run)
    if vault is not None:
        service.add("vault", stop=vault.close)
        service.add_task("token sweep", TokenSweep(database, tokens).run)
    service.add_task("sweeper", Sweeper(operations, settings.sweep_seconds, waits).run)
    service.add_task("waiting room", seat_nobody_while_stopping)
    service.add("rpc", server.start, server.stop)
    return service


def _serve_sessions(server: Server, operations: Operations, sessions: SessionsHandlers, events: EventsHandlers) -> None:
    """Sessions and the doors to them."""
    server.add(add_SessionsServiceServicer_to_server, sessions)
    server.add(add_EventsServiceServicer_to_server, events)
    server.add(add_SessionStatesServiceServicer_to_server, SessionStatesHandler(operations.database))
    server.add(add_DutiesServiceServicer_to_server, DutiesHandlers(operations))
    server.add(add_SessionGatewayServiceServicer_to_server, GatewayHandlers(operations, sessions, events))
    server.add(add_StepsServiceServicer_to_server, StepsHandlers(operations, sessions, events))


def _serve_blobs(server: Server, settings: Settings, database: Database, blobs: Blobs) -> None:
    """What is kept as bytes beside its row."""
    clock, quota_bytes = SystemClock(), settings.storage_quota_bytes
    server.add(add_FilesServiceServicer_to_server, FilesHandler(database, clock, blobs, quota_bytes=quota_bytes))
    server.add(add_SkillsServiceServicer_to_server, SkillsHandler(database, clock, blobs))


def _add_blobs(service: Service, settings: Settings, blobs: Blobs, sweep: BlobSweep, nats: Nats) -> None:
    """The stores of bytes: they hear when settings choose another one, and are swept."""

    async def hear_of_settings() -> None:
        async def saved(message: Any) -> None:
            blobs.forget(message.subject.rpartition(".")[2])

        await nats.subscribe_eventually("settings.saved.*", saved)

    service.add("blobs", stop=blobs.close)
    service.add("news of settings", hear_of_settings)
    service.add_task("blob sweep", lambda: sweep.run(settings.blob_sweep_seconds))
