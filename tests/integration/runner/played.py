"""What stands in for the model, vault and the tools in tests of the runner."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.errors import FailedPrecondition
from kit.ids import new_id
from managed_agents.vault.v1.injections_pb2 import (
    INJECTION_TARGET_KIND_PROCESS,
    Injection,
    ListInjectionsResponse,
    RefreshInjectionResponse,
    ResolveInjectionsResponse,
)
from managed_agents.vault.v1.injections_pb2_grpc import InjectionServiceServicer
from managed_agents.vault.v1.vault_pb2 import GetModelAccessResponse
from managed_agents.vault.v1.vault_pb2_grpc import SettingsServiceServicer
from services.worker.runner.models.base import (
    ModelDelta,
    ModelInfo,
    ModelRequest,
    Stop,
    StopReason,
    TextDelta,
    TokenUsage,
    ToolCall,
    UsageReport,
)
from services.worker.tools import ToolOutcome

TOOLSET = {"type": "agent_toolset_20260401"}
ASKING = {"type": "agent_toolset_20260401", "default_config": {"permission_policy": {"type": "always_ask"}}}
CUSTOM = {
    "type": "custom",
    "name": "lookup",
    "description": "Looks a name up.",
    "input_schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}

Part = ModelDelta | Exception | Callable[[], Awaitable[None]]


class Gate:
    """A place where a model or tool of a test waits until the test opens it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, *_arguments: Any) -> ToolOutcome:
        """Wait here."""
        self.reached.set()
        await self.opened.wait()
        return ToolOutcome("passed the gate")


def wait_at(gate: Gate) -> Part:
    """A place in an answer where the model waits."""

    async def wait() -> None:
        await gate()

    return wait


def say(text: str, *, input_tokens: int = 10, output_tokens: int = 5) -> list[Part]:
    """A plain answer."""
    usage = UsageReport(TokenUsage(input_tokens, output_tokens))
    return [TextDelta(text), usage, Stop(StopReason.END_TURN)]


def call(*calls: tuple[str, dict[str, Any]]) -> list[Part]:
    """An answer that calls tools."""
    made: list[Part] = [ToolCall(new_id("toolu"), name, arguments) for name, arguments in calls]
    return [*made, UsageReport(TokenUsage(10, 8)), Stop(StopReason.TOOL_USE)]


@dataclass
class ScriptedModel:
    """Gives its answers in order and remembers what it was asked; the last answer is repeated."""

    answers: list[list[Part]]
    requests: list[ModelRequest] = field(default_factory=list)
    closed: int = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta, None]:
        """Play the next answer."""
        self.requests.append(request)
        parts = self.answers[min(len(self.requests), len(self.answers)) - 1]
        try:
            for part in parts:
                if isinstance(part, Exception):
                    raise part
                if callable(part):
                    await part()
                else:
                    yield part
        finally:
            self.closed += 1

    async def list_models(self) -> list[ModelInfo]:
        """One."""
        return [ModelInfo("scripted", "Scripted")]

    async def close(self) -> None:
        """Nothing is held."""


class PlayedSandboxes:
    """Stands in for the sandboxes: `run` is what every tool does."""

    providers = ("local",)

    def __init__(self, run: Callable[[str, Any], Awaitable[ToolOutcome]] | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.interrupts = 0
        self._run = run

    def session(self, session_id: str, environment: Any, thread_id: str = "", roots: Any = ()) -> "PlayedSandboxes":
        """All sessions share one."""
        return self

    def folder(self, session_id: str, environment: Any, roots: Any = ()) -> Path:
        """One that is nobody's: nothing is in it."""
        return Path("/var/empty/none")

    async def run_tool(self, name: str, value: Any) -> ToolOutcome:
        """Note the call, and do what the test says."""
        self.calls.append((name, value))
        return await self._run(name, value) if self._run else ToolOutcome(f"ran {name}")

    async def close(self, session_id: str) -> None:
        """There is nothing to let go of."""

    async def remove(self, session_id: str) -> None:
        """There is nothing to remove."""

    def interrupt(self) -> bool:
        """Count."""
        self.interrupts += 1
        return True

    async def aclose(self) -> None:
        """Nothing is held."""


class PlayedVault(SettingsServiceServicer):
    """Hands out one access, which a test may change."""

    def __init__(self) -> None:
        self.answer = GetModelAccessResponse(vendor="demo", default_model="demo", revision=1, options_json=b"{}")
        self.asked = 0

    async def GetModelAccess(self, request: Any, context: Any) -> GetModelAccessResponse:
        """As the test left it."""
        self.asked += 1
        return self.answer


class RefreshFailed(FailedPrecondition):
    """As the vault says it."""

    reason = "CREDENTIAL_REFRESH_FAILED"


@dataclass
class PlayedInjections(InjectionServiceServicer):
    """Holds a token for a URL, and variables for processes. `renewals` are the tokens that refreshes bring."""

    tokens: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    renewals: list[str] = field(default_factory=list)
    version: int = 1
    refreshed: int = 0
    asked: list[Any] = field(default_factory=list)

    async def ListInjections(self, request: Any, *_: Any, **__: Any) -> ListInjectionsResponse:
        """The variables, without their values."""
        return ListInjectionsResponse(injections=[self._variable(name) for name in self.variables])

    async def ResolveInjections(self, request: Any, *_: Any, **__: Any) -> ResolveInjectionsResponse:
        """What there is for the target."""
        self.asked.append(request)
        if request.target == INJECTION_TARGET_KIND_PROCESS:
            found = [self._variable(name, value) for name, value in self.variables.items()]
            return ResolveInjectionsResponse(injections=found)
        token = self.tokens.get(request.url)
        return ResolveInjectionsResponse(injections=[self._injection(token)] if token else [])

    async def RefreshInjection(self, request: Any, *_: Any, **__: Any) -> RefreshInjectionResponse:
        """The next renewal, once for each version; FAILED_PRECONDITION where there is none."""
        if request.secret_version == self.version:
            if not self.renewals:
                raise RefreshFailed("There is nothing to refresh with.")
            self.refreshed += 1
            self.version += 1
            renewed = self.renewals.pop(0)
            self.tokens = dict.fromkeys(self.tokens, renewed)
        return RefreshInjectionResponse(injection=self._injection(next(iter(self.tokens.values()))))

    def _variable(self, name: str, value: str = "") -> Injection:
        return Injection(
            credential_id="vcrd_v",
            vault_id="vlt_1",
            type="environment_variable",
            name=name,
            value=value,
            unrestricted=True,
            in_headers=True,
            in_body=True,
        )

    def _injection(self, token: str) -> Injection:
        return Injection(
            credential_id="vcrd_1", vault_id="vlt_1", type="mcp_oauth", value=token, secret_version=self.version
        )
