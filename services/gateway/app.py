"""The composition root: settings in, a running HTTP server out."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from kit import lifecycle, telemetry
from kit.buffers import keep_buffers
from kit.config import ConfigError, load
from kit.nats import connect as connect_nats

from .admission.browsers import Browsers
from .admission.compatibility import Compatibility
from .admission.credentials import Authenticator
from .admission.holders import SessionsTokens
from .admission.hosts import is_loopback
from .admission.keyring import KeyRing
from .admission.limits import RateLimiter
from .clients import Clients, connect
from .config import GatewaySettings
from .operation import Operation
from .operation.dispatch import build_routes, no_route
from .operation.docs import page as reference_page
from .operation.openapi import document
from .operation.shell import Shell
from .routes import (
    agents,
    environments,
    examples,
    files,
    memory_stores,
    models,
    outcomes,
    publications,
    resources,
    sessions,
    skills,
    vaults,
)
from .routes.browsers import BrowserRoutes
from .routes.console import PATH, console, dashboard
from .routes.events import EventRoutes
from .routes.gateway import GatewayRoutes
from .routes.keys import KeyRoutes
from .routes.mcp import McpRoutes
from .routes.runs import RunRoutes
from .routes.runtime import RuntimeRoutes
from .routes.session_work import SessionWorkRoutes
from .routes.settings import SettingsRoutes
from .routes.steps import StepRoutes
from .routes.threads import ThreadRoutes
from .routes.worker import WorkerRoutes
from .streams import Hub, StreamProtocol

TITLE = "managed-agents"


def build_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("managed-agents")
    except PackageNotFoundError:
        return "0"


def all_operations(settings: GatewaySettings, hub: Hub, ring: KeyRing | None = None) -> tuple[Operation, ...]:
    """Every route that this build serves."""
    runtime = RuntimeRoutes(version=build_version())
    configured = settings.api_key.get_secret_value() if settings.api_key else None
    return (
        # First, since paths are matched in their order and workers ask most often.
        *WorkerRoutes(Authenticator(configured, ring), hub.when_closing).operations(),
        *SessionWorkRoutes().operations(),
        *agents.OPERATIONS,
        *publications.OPERATIONS,
        *environments.OPERATIONS,
        *sessions.OPERATIONS,
        *resources.OPERATIONS,
        *EventRoutes(hub).operations(),
        *RunRoutes(hub).operations(),
        *StepRoutes(hub).operations(),
        *ThreadRoutes(hub).operations(),
        *GatewayRoutes(hub).operations(),
        *BrowserRoutes(_browsers(settings)).operations(),
        *files.OPERATIONS,
        *skills.OPERATIONS,
        *outcomes.OPERATIONS,
        *vaults.OPERATIONS,
        *memory_stores.OPERATIONS,
        *models.OPERATIONS,
        *runtime.operations(),
        *McpRoutes(hub.nats).operations(),
        *SettingsRoutes(hub.nats).operations(),
        *KeyRoutes(hub.nats, ring, configured).operations(),
    )


def _browsers(settings: GatewaySettings) -> Browsers:
    return Browsers(settings.internal_token(), settings.allowed_origins())


def create_app(
    settings: GatewaySettings, clients: Clients, operations: Sequence[Operation], ring: KeyRing | None = None
) -> ASGIApp:
    """The ASGI application over open clients; starts nothing. Without a key ring only the configured key counts."""
    api_key = settings.api_key.get_secret_value() if settings.api_key else None
    if api_key:
        telemetry.register_secret(api_key)
    authenticator = Authenticator(api_key, ring, _browsers(settings), SessionsTokens(clients.session_work))
    app = FastAPI(title=TITLE, version=build_version(), docs_url=None, redoc_url=None, redirect_slashes=False)

    @cache
    def rendered(authentication: bool) -> dict[str, Any]:
        return document(operations, title=TITLE, version=build_version(), authentication=authentication)

    def openapi() -> dict[str, Any]:
        return rendered(authenticator.enabled)

    async def docs(_request: Request) -> Response:
        return Response(reference_page(openapi()), media_type="text/html")

    app.openapi = openapi  # type: ignore[method-assign]
    app.add_route("/docs", docs, include_in_schema=False)
    app.add_route(PATH, console, include_in_schema=False)
    app.add_route("/dashboard", dashboard, include_in_schema=False)
    for path, endpoint in examples.PAGES.items():
        app.add_route(path, endpoint, include_in_schema=False)
    app.router.routes.insert(0, build_routes(operations, clients))
    app.router.default = no_route
    # The router alone: FastAPI's own error layers would answer before the shell does.
    return Shell(
        app.router,
        authenticator=authenticator,
        compatibility=Compatibility(settings.supported_versions()),
        allowed_origins=settings.allowed_origins(),
        limiter=RateLimiter(
            mode=settings.rate_limit_mode(),
            reads=settings.inbound_rate_limit_read,
            writes=settings.inbound_rate_limit_write,
        ),
        listens_on_loopback=is_loopback(settings.host),
        keys_in_bodies={operation.path for operation in operations if operation.key_in_body},
    )


class _Server(uvicorn.Server):
    """uvicorn as one part of a process: signals belong to the lifecycle, and start is an event."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()


class HttpServer:
    """The HTTP listener."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._address = (settings.host, settings.port)
        self._server = _Server(
            uvicorn.Config(
                app,
                loop="none",
                http=StreamProtocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=math.ceil(settings.shutdown_seconds),
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.port = settings.port

    async def start(self) -> None:
        """Return once the port accepts; ConfigError where it can't be had."""
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family, backlog=2048)
        except OSError as error:
            raise ConfigError(f"{host}:{port} can't be listened on: {error.strerror}.") from None
        # Connections inherit it. Without it a body that follows its headers waits 40 ms for an acknowledgement,
        # wherever the event loop does not see to it itself.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve([listener]), name="http")
        accepting = asyncio.create_task(self._server.accepting.wait())
        await asyncio.wait({accepting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        accepting.cancel()
        if self._task.done():
            self._task.result()
            raise RuntimeError("The HTTP server ended while it started.")
        telemetry.log.info("listening", host=host, port=self.port)

    async def watch(self) -> None:
        """Raise if the listener ends by itself, so that the process does too."""
        assert self._task is not None
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Refuse new connections, let open requests end, then cut what remains."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task


async def build() -> lifecycle.Service:
    """Read the settings and join the parts in the order of their start."""
    settings = load(GatewaySettings)
    keep_buffers()
    service = lifecycle.Service.from_settings("gateway", settings)
    clients = connect(settings.addresses(), token=settings.internal_token(), call_seconds=settings.call_seconds)
    nats = await connect_nats(settings.nats_server(), "gateway")
    hub = Hub(nats, clients.events)
    ring = KeyRing(clients.keys)
    await ring.listen(nats)
    server = HttpServer(create_app(settings, clients, all_operations(settings, hub, ring), ring), settings)
    service.add("clients", stop=clients.close)
    service.add("nats", stop=nats.close)
    service.add("keys", stop=ring.close)
    service.add_task("streams", hub.run)
    service.add("http", server.start, server.stop)
    # Stopped first: a listener waits for its open streams, so they have to end before it.
    service.add("stream ends", stop=hub.close)
    service.add_task("http watch", server.watch)
    return service
