"""A real gateway over a real sessions service and a real vault; the runner is a small stand-in behind gRPC.

One platform serves all tests here. Each test is alone on it since it has a workspace of its own: whoever comes without
a key is in that one while the test runs. A test that needs more of its own takes one of these instead:

    own_vault      a gateway and a vault of its own over the shared services, for what keys and settings change; its
                   callers without a key are in the default workspace
    fresh_gateway  everything of its own, also in the default workspace, for services that are stopped or have runners
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from kit.ids import new_id
from kit.nats import connect as connect_nats
from kit.rpc.server import Server
from kit.testing.fixtures import MakeDatabase
from kit.testing.swept import SweptDatabases
from managed_agents.worker.v1 import runner_pb2
from managed_agents.worker.v1.runner_pb2_grpc import RunnerServiceServicer, add_RunnerServiceServicer_to_server
from services.gateway.admission.keyring import KeyRing
from services.gateway.admission.principal import ANONYMOUS, DEFAULT_WORKSPACE
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
    # Where the services listen.
    addresses: dict[str, str] = field(default_factory=dict)
    # Of whoever comes without a key.
    workspace_id: str = DEFAULT_WORKSPACE


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def platform(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[Gateway]:
    """What all tests here share."""
    async with swept_databases.maker() as make, serving(make, nats_url) as listening:
        yield listening


@pytest.fixture
def workspace() -> Iterator[str]:
    """A workspace that nobody else is in, which is that of every caller without a key as long as the test runs."""
    mine = new_id("wrkspc")
    # The principal itself, since the gateway asks whether somebody is that one.
    object.__setattr__(ANONYMOUS, "workspace_id", mine)
    try:
        yield mine
    finally:
        object.__setattr__(ANONYMOUS, "workspace_id", DEFAULT_WORKSPACE)


@pytest.fixture
def gateway(platform: Gateway, workspace: str) -> Gateway:
    """The shared platform as a caller without a key sees it who has a workspace for themselves."""
    return replace(platform, workspace_id=workspace)


@pytest_asyncio.fixture(loop_scope="package")
async def fresh_gateway(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[Gateway]:
    """Everything on databases of its own, and the gateway on a port of its own."""
    async with swept_databases.maker() as make, serving(make, nats_url) as listening:
        yield listening


@pytest_asyncio.fixture(loop_scope="package")
async def own_vault(platform: Gateway, swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[Gateway]:
    """A gateway and a vault of its own."""
    async with swept_databases.maker() as make, beside(platform, make, nats_url) as listening:
        yield listening


@asynccontextmanager
async def serving(make_database: MakeDatabase, nats_url: str) -> AsyncIterator[Gateway]:
    """All services and a gateway, for as long as its user wants it."""
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
        vault = await _vault(addresses["vault"], make_database)
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
        parts = {"vault": vault, "runner": runner, "sessions": sessions, "queue": queue}
        kept = {"data_dir": Path(folder) / "data", "database_url": dsn}
        async with _listening(parts, addresses, nats_url, **kept) as gateway:
            yield gateway


@asynccontextmanager
async def beside(platform: Gateway, make_database: MakeDatabase, nats_url: str) -> AsyncIterator[Gateway]:
    """A gateway with a vault of its own over the other services of a platform."""
    with tempfile.TemporaryDirectory(prefix="ma-gw-") as folder:
        addresses = platform.addresses | {"vault": f"unix:{Path(folder) / 'vault'}"}
        vault = await _vault(addresses["vault"], make_database)
        kept = {"data_dir": platform.data_dir, "database_url": platform.database_url}
        async with _listening({"vault": vault}, addresses, nats_url, **kept) as gateway:
            yield gateway


async def _vault(address: str, make_database: MakeDatabase) -> Any:
    dsn = await make_database(vault_app.SCHEMA, vault_app.MIGRATIONS)
    settings = VaultSettings(listen=address, database_url=dsn, secret_key="a secret of enough length")
    return vault_app.compose(settings, MODEL_ENVIRONMENT)


@asynccontextmanager
async def _listening(
    parts: dict[str, Any], addresses: dict[str, str], nats_url: str, **kept: Any
) -> AsyncIterator[Gateway]:
    """A gateway over the services with these addresses; those of `parts` are started before and stopped after it."""
    settings = GatewaySettings(port=0, shutdown_seconds=2, **{f"{name}_address": at for name, at in addresses.items()})
    clients = connect(settings.addresses(), token=None, call_seconds=settings.call_seconds)
    nats = await connect_nats(nats_url, "gateway")
    hub = Hub(nats, clients.events)
    ring = KeyRing(clients.keys)
    await ring.listen(nats)
    server = HttpServer(create_app(settings, clients, all_operations(settings, hub, ring), ring), settings)
    parts = {**parts, "http": server}
    try:
        for part in parts.values():
            await part.start()
        url = f"http://127.0.0.1:{server.port}"
        yield Gateway(url, clients, server, parts, addresses["sessions"], hub=hub, addresses=addresses, **kept)
    finally:
        await hub.close()
        for part in reversed(parts.values()):
            await part.stop()
        await ring.close()
        await nats.close()
        await clients.close()


@asynccontextmanager
async def calling(gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A plain caller. It speaks to this machine alone: the trusted certificates are not worth being read each time."""
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=30, verify=False) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="package")
async def http(gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A plain caller."""
    async with calling(gateway) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="package")
async def fresh_http(fresh_gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    """The same where everything is fresh."""
    async with calling(fresh_gateway) as client:
        yield client
