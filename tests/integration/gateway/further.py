"""A further gateway over the services of a fixture's: with settings, and connections to vault and NATS, of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from kit.nats import connect as connect_nats
from services.gateway.admission.keyring import KeyRing
from services.gateway.app import HttpServer, all_operations, create_app
from services.gateway.clients import connect
from services.gateway.config import GatewaySettings
from services.gateway.streams import Hub
from tests.integration.gateway.conftest import Gateway


@asynccontextmanager
async def another(gateway: Gateway, nats_url: str, **changes: Any) -> AsyncIterator[tuple[httpx2.AsyncClient, KeyRing]]:
    """A client of a further gateway, and that gateway's key ring."""
    named = {f"{name}_address": at for name, at in gateway.addresses.items()}
    settings = GatewaySettings(port=0, shutdown_seconds=2, **(named | changes))
    clients = connect(settings.addresses(), token=None, call_seconds=settings.call_seconds)
    nats = await connect_nats(nats_url, "another gateway")
    hub, ring = Hub(nats, clients.events), KeyRing(clients.keys)
    await ring.listen(nats)
    server = HttpServer(create_app(settings, clients, all_operations(settings, hub, ring), ring), settings)
    await server.start()
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30, verify=False) as client:
            yield client, ring
    finally:
        await hub.close()
        await server.stop()
        await ring.close()
        await nats.close()
        await clients.close()
