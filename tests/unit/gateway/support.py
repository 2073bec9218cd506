"""The gateway's application over stand-in stubs, for tests of what the gateway itself decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from kit.nats import Nats
from managed_agents.sessions.v1 import agents_pb2, environments_pb2
from services.gateway.app import all_operations, create_app
from services.gateway.clients import Clients
from services.gateway.config import GatewaySettings
from services.gateway.operation import Operation
from services.gateway.streams import Hub

PUBLISHED = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
CREATED_AT = "2026-07-12T00:00:00.000000Z"


class Stub:
    """Answers rpcs by name and keeps what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[tuple[str, Any, dict[str, Any]]] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name not in self._answers:
            raise AttributeError(name)

        async def rpc(request: Any, **options: Any) -> Any:
            self.asked.append((name, request, options))
            answer = self._answers[name]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return rpc


def agent(**changes: Any) -> agents_pb2.Agent:
    """An agent as sessions sends it."""
    fields: dict[str, Any] = {
        "id": "agent_1",
        "version": 3,
        "document_json": b'{"name":"a","description":null,"system":"s","tools":[],"mcp_servers":[],"skills":[],'
        b'"metadata":{},"multiagent":null,"execution_identity":{"type":"service_account"}}',
        "model_json": b'{"id":"m","speed":"standard"}',
        "model_id": "m",
        "created_at": CREATED_AT,
        "updated_at": CREATED_AT,
    }
    return agents_pb2.Agent(**(fields | changes))


def environment(**changes: Any) -> environments_pb2.Environment:
    """An environment as sessions sends it."""
    fields: dict[str, Any] = {
        "id": "env_1",
        "name": "e",
        "metadata_json": b"{}",
        "config_json": b'{"type":"cloud","networking":{"type":"unrestricted"},"packages":'
        b'{"type":"packages","apt":[],"cargo":[],"gem":[],"go":[],"npm":[],"pip":[]}}',
        "hosting_type": "local",
        "sandbox_provider": "local",
        "network_json": b'{"type":"unrestricted"}',
        "packages_json": b"[]",
        "scope": "organization",
        "created_at": CREATED_AT,
        "updated_at": CREATED_AT,
    }
    return environments_pb2.Environment(**(fields | changes))


def settings(**changes: Any) -> GatewaySettings:
    """Settings that name services nobody calls."""
    return GatewaySettings(sessions_address="unix:/s", vault_address="unix:/v", runner_address="unix:/r", **changes)


def clients(**stubs: Any) -> Clients:
    """Clients with a stub for each named service and an empty one for the rest."""
    names = [each.name for each in dataclasses.fields(Clients) if each.default_factory is dataclasses.MISSING]
    return Clients(**{name: stubs.get(name, Stub()) for name in names})


def http(
    *,
    operations: tuple[Operation, ...] = (),
    api_key: str | None = None,
    cors_origins: str = "",
    host: str = "127.0.0.1",
    changes: dict[str, Any] | None = None,
    **stubs: Any,
) -> httpx2.AsyncClient:
    """An HTTP client of an application with all routes plus the given ones."""
    configured = settings(**({"api_key": api_key, "cors_origins": cors_origins, "host": host} | (changes or {})))
    app = create_app(configured, clients(**stubs), (*operations, *all_operations(configured, hub())))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1")


def hub() -> Hub:
    """A hub for tests that open no stream."""
    return Hub(Nats("nats://127.0.0.1:9", "test"), None)
