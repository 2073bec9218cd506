"""Shapes of the runtime's own state."""

from __future__ import annotations

from typing import Any, Literal

from .shapes import Rendered


class Health(Rendered):
    """The process answers; with `ready=true` also everything behind it."""

    type: Literal["health"]
    status: Literal["ok"]
    version: str
    checks: dict[str, str] | None


class RuntimeModel(Rendered):
    """One configured model; never its secrets."""

    name: str
    provider: str
    model: str
    api_key_state: Literal["configured", "not_set"]
    base_url_state: Literal["configured", "not_set"]


class Runtime(Rendered):
    """What this installation looks like from outside."""

    type: Literal["runtime"]
    status: Literal["running", "degraded"]
    version: str
    models: list[RuntimeModel]
    auth_enabled: bool
    services: dict[str, str]
    runner: dict[str, Any] | None


class Capability(Rendered):
    """Whether something can be executed here and now."""

    id: str
    kind: Literal["tool", "sandbox_provider", "loop_engine", "model_vendor"]
    status: Literal["available", "unavailable"]


class Capabilities(Rendered):
    """What can be executed, and how much of the contract is served."""

    type: Literal["capability_inventory"]
    capabilities: list[Capability]
    contract: dict[str, Any]
