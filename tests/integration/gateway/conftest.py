"""A real gateway over a real sessions service and a real vault; the runner is a small stand-in behind gRPC."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kit.nats import connect as connect_nats
from kit.rpc.server import Server
from managed_agents.worker.v1 import runner_pb2
from managed_agents.worker.v1.runner_pb2_grpc import RunnerServiceServicer, add_RunnerServiceServicer_to_server
from services.gateway.admission.keyring import KeyRing
from services.gateway.app import HttpServer, all_operations, create_app
from services.gateway.clients import Clients, connect
from services.gateway.config import GatewaySettings
from services.gateway.streams import Hub
from services.sessions.app import MIGRATIONS
from services.sessions.app import build as build_sessions
from services.sessions.config import Settings as SessionsSettings
from services.vault import app as vault_app
from services.vault.config import VaultSettings
from services.worker.queue import app as queue_app
from services.worker.queue.config import QueueSettings

MODEL_KEY = "canary-of-the-gateways-tests"
MODEL_ENVIRONMENT = {
    "MANAGED_AGENTS_MODEL_VENDOR": "openai",
    "MANAGED_AGENTS_MODEL_API_KEY": MODEL_KEY,
    "MANAGED_AGENTS_MODEL": "m",
}


class StandInRunner(RunnerServiceServicer):
    """Offers two models and says what a runner can do."""

    async def ListModels(self, request: Any, context: Any) -> runner_pb2.ListModelsResponse:
        models = [
            runner_pb2.Model(id="vendor/new:1b", display_name="New", created_at="2026-05-01T00:00:00Z"),
            runner_pb2.Model(id="old", max_input_tokens=1000, max_output_tokens=100),
        ]
        return runner_pb2.ListModelsResponse(models=models)

    async def DescribeRunner(self, request: Any, context: Any) -> runner_pb2.DescribeRunnerResponse:
        return runner_pb2.DescribeRunnerResponse(
            runner_id="runner_1", capacity=4, sandbox_kind="process", tools=["bash"], sandbox_providers=["local"]
        )


@dataclass
class Gateway:
    """A listening gateway."""

    url: str
    clients: Clients
    server: HttpServer
    services: dict[str, Any] = field(default_factory=dict)
    sessions_address: str = ""
    # Where the sessions service keeps bytes.
    data_dir: Path = Path()
    # Its database, for what would take too long over REST.
    database_url: str = ""
    # What is held open there.
    hub: Hub | None = None


@pytest.fixture
async def gateway(make_database: Any, nats_url: str) -> AsyncIterator[Gateway]:
    """Sessions on a fresh database, the stand-ins, and the gateway on a port of its own."""
    async with serving(make_database, nats_url) as listening:
        yield listening


@asynccontextmanager
async def serving(make_database: Any, nats_url: str) -> AsyncIterator[Gateway]:
    """The same, for as long as its user wants it."""
    with tempfile.TemporaryDirectory(prefix="ma-gw-") as folder:
        addresses = {name: f"unix:{Path(folder) / name}" for name in ("sessions", "vault", "runner", "queue")}
        dsn = await make_database("sessions", MIGRATIONS)
        sessions = await build_sessions(
            SessionsSettings(
                listen=addresses["sessions"],
                vault_address=addresses["vault"],
                database_url=dsn,
                nats_url=nats_url,
                data_dir=Path(folder) / "data",
            )
        )
        vault_dsn = await make_database(vault_app.SCHEMA, vault_app.MIGRATIONS)
        vault = vault_app.compose(
            VaultSettings(listen=addresses["vault"], database_url=vault_dsn, secret_key="a secret of enough length"),
            MODEL_ENVIRONMENT,
        )
        queue = queue_app.compose(
            QueueSettings(
                listen=addresses["queue"],
                sessions_address=addresses["sessions"],
                database_url=await make_database(queue_app.SCHEMA, queue_app.MIGRATIONS),
            ),
            await connect_nats(nats_url, "queue"),
            consumers={name: f"{name}-{Path(folder).name}" for name in queue_app.CONSUMERS},
        )
        runner = Server(addresses["runner"], service="runner")
        runner.add(add_RunnerServiceServicer_to_server, StandInRunner())
        named = {f"{name}_address": value for name, value in addresses.items()}
        settings = GatewaySettings(port=0, shutdown_seconds=2, **named)
        clients = connect(settings.addresses(), token=None, call_seconds=settings.call_seconds)
        nats = await connect_nats(nats_url, "gateway")
        hub = Hub(nats, clients.events)
        ring = KeyRing(clients.keys)
        await ring.listen(nats)
        server = HttpServer(create_app(settings, clients, all_operations(settings, hub, ring), ring), settings)
        parts = {"vault": vault, "runner": runner, "sessions": sessions, "queue": queue, "http": server}
        try:
            for part in parts.values():
                await part.start()
            yield Gateway(
                f"http://127.0.0.1:{server.port}",
                clients,
                server,
                parts,
                addresses["sessions"],
                Path(folder) / "data",
                dsn,
                hub,
            )
        finally:
            await hub.close()
            for part in reversed(parts.values()):
                await part.stop()
            await ring.close()
            await nats.close()
            await clients.close()


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A plain caller."""
    async with httpx2.AsyncClient(base_url=gateway.url) as client:
        yield client
