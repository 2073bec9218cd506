"""The composition root: settings in, a running HTTP server out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from kit import lifecycle, telemetry
from kit.config import load

from .admission.compatibility import Compatibility
from .admission.credentials import Authenticator
from .clients import Clients, connect
from .config import GatewaySettings
from .operation import Operation
from .operation.dispatch import build_routes, no_route
from .operation.openapi import document
from .operation.shell import Shell
from .routes import agents, environments, models
from .routes.runtime import RuntimeRoutes

TITLE = "managed-agents"


def build_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("managed-agents")
    except PackageNotFoundError:
        return "0"


def all_operations(settings: GatewaySettings) -> tuple[Operation, ...]:
    """Every route that this build serves."""
    runtime = RuntimeRoutes(version=build_version(), auth_enabled=settings.api_key is not None)
    return (*agents.OPERATIONS, *environments.OPERATIONS, *models.OPERATIONS, *runtime.operations())


def create_app(settings: GatewaySettings, clients: Clients, operations: Sequence[Operation]) -> ASGIApp:
    """The ASGI application over open clients; starts nothing."""
    api_key = settings.api_key.get_secret_value() if settings.api_key else None
    if api_key:
        telemetry.register_secret(api_key)
    authenticator = Authenticator(api_key)
    app = FastAPI(title=TITLE, version=build_version(), redoc_url=None, redirect_slashes=False)
    rendered: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not rendered:
            rendered.update(
                document(operations, title=TITLE, version=build_version(), authentication=authenticator.enabled)
            )
        return rendered

    app.openapi = openapi  # type: ignore[method-assign]
    app.router.routes[:0] = build_routes(operations, clients)
    app.router.default = no_route
    # The router alone: FastAPI's own error layers would answer before the shell does.
    return Shell(
        app.router,
        authenticator=authenticator,
        compatibility=Compatibility(settings.supported_versions()),
        allowed_origins=settings.allowed_origins(),
    )


class HttpServer:
    """uvicorn, run as one part of the process: no signal handlers, no lifespan of its own."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=max(1, int(settings.shutdown_seconds)),
                backlog=2048,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return once the port accepts."""
        self._task = asyncio.create_task(self._serve(), name="http")
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise RuntimeError("The HTTP server ended while it started.")
            await asyncio.sleep(0.005)

    async def wait(self) -> None:
        """Return when the server has ended."""
        assert self._task is not None
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Refuse new connections, let open requests end, then cut what remains."""
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _serve(self) -> None:
        # `serve` would replace the process's signal handlers; the lifecycle owns them.
        await self._server._serve()


async def build() -> lifecycle.Service:
    """Read the settings and join the parts in the order of their start."""
    settings = load(GatewaySettings)
    telemetry.setup("gateway", settings.log_level)
    clients = connect(settings.addresses(), token=settings.internal_token(), call_seconds=settings.call_seconds)
    server = HttpServer(create_app(settings, clients, all_operations(settings)), settings)
    service = lifecycle.Service()
    service.add("clients", _nothing, clients.close)
    service.add("http", server.start, server.stop)
    service.add_task("http", server.wait())
    return service


async def _nothing() -> None:
    return None
