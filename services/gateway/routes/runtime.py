"""The runtime about itself: health, state, capabilities. Outside the published contract."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from kit.errors import DomainError, Unavailable
from managed_agents.vault.v1.vault_pb2 import GetSettingsRequest
from managed_agents.worker.v1.runner_pb2 import DescribeRunnerRequest

from ..admission.principal import ANONYMOUS
from ..operation import Call, Operation, flag
from ..render.runtime import render_capabilities, render_health, render_runtime
from ..schemas.runtime import Capabilities, Health, Runtime

TAG = "Runtime"
# A part that does not answer within this is told as unreachable, not waited for.
PART_SECONDS = 2.0


class RuntimeRoutes:
    """Routes that tell about the installation, so they know how it was composed."""

    def __init__(self, *, version: str) -> None:
        self._version = version

    async def get_health(self, call: Call) -> bytes:
        """GET /v1/x/health."""
        if not call.query["ready"]:
            return render_health(version=self._version, checks=None)
        checks = await call.clients.check(PART_SECONDS)
        if missing := [name for name, state in checks.items() if state != "ok"]:
            raise Unavailable(
                f"Not ready: {', '.join(sorted(missing))} can't be reached or is not serving.",
                details=orjson.dumps({"checks": checks}).decode(),
            )
        return render_health(version=self._version, checks=checks)

    async def get_runtime(self, call: Call) -> bytes:
        """GET /v1/x/runtime."""
        services, settings, runner = await asyncio.gather(
            call.clients.check(PART_SECONDS),
            _try(call, call.clients.settings.GetSettings, GetSettingsRequest()),
            _try(call, call.clients.runner.DescribeRunner, DescribeRunnerRequest()),
        )
        return render_runtime(
            version=self._version,
            # Whoever comes without a key where none is needed is nobody in particular.
            auth_enabled=call.admitted.principal is not ANONYMOUS,
            services=services,
            settings=orjson.loads(settings.document_json) if settings is not None else None,
            runner=runner,
        )

    async def get_capabilities(self, call: Call) -> bytes:
        """GET /v1/x/capabilities."""
        return render_capabilities(await _try(call, call.clients.runner.DescribeRunner, DescribeRunnerRequest()))

    def operations(self) -> tuple[Operation, ...]:
        """The operations of this module."""
        return (
            Operation(
                "GET",
                "/v1/x/health",
                self.get_health,
                tag=TAG,
                summary="Tell whether the gateway lives, or with ready=true whether everything behind it serves",
                query=(flag("ready", description="Ask the services too; 503 where one does not serve."),),
                response=Health,
                needs_credential=False,
            ),
            Operation(
                "GET",
                "/v1/x/runtime",
                self.get_runtime,
                tag=TAG,
                summary="Describe the installation, without secrets",
                response=Runtime,
            ),
            Operation(
                "GET",
                "/v1/x/capabilities",
                self.get_capabilities,
                tag=TAG,
                summary="List what can be executed here, and how much of the contract is served",
                response=Capabilities,
            ),
        )


async def _try(call: Call, rpc: Any, request: Any) -> Any:
    """The answer of a part, or None where it fails: these routes report, they don't depend."""
    try:
        return await call.ask(rpc, request, seconds=PART_SECONDS)
    except DomainError:
        return None
