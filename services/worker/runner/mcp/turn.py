"""The servers of one turn: what the model is offered of them, and calls.

Before each model request the turn has every server connected, and offers the tools that the servers have then. A
server that fails is told of once, and the turn goes on without it; the next turn tries again.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.worker.runner.mcp.errors import CallRefused, OutcomeUnknown, ServerFailed
from services.worker.runner.mcp.naming import visible_names
from services.worker.runner.mcp.offers import definition
from services.worker.runner.mcp.results import render
from services.worker.runner.mcp.session import UNKNOWN, SessionServers
from services.worker.runner.mcp.spec import Servers
from services.worker.runner.models.base import ToolDefinition
from services.worker.tools import ToolOutcome

# Applies the contract for output that is too long; text and whether it is an error.
LimitOutput = Callable[[str, bool], ToolOutcome]


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool that the model is offered, and whose it is."""

    server_name: str
    name: str
    policy: str


class TurnServers:
    """What one turn has of a session's servers. `leave` it when the turn is over."""

    def __init__(
        self,
        servers: Servers,
        session: SessionServers,
        taken: Collection[str],
        tell: Callable[[str, str, str], None],
        limit: LimitOutput,
    ) -> None:
        """`taken` are names of other tools; `tell` gets server name, error type and message for the log."""
        self._servers = servers
        self._session = session
        self._taken = frozenset(taken)
        self._tell = tell
        self._limit = limit
        self._given_up: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._known: Any = None
        self._offered: dict[str, ServerTool] = {}
        self.definitions: list[ToolDefinition] = []

    @property
    def needs_sandbox(self) -> bool:
        """Whether a server is a process of the session's sandbox."""
        return any(server.type != "url" for server in self._servers.servers)

    def enter(self) -> None:
        """The turn begins."""
        self._session.users += 1

    def leave(self) -> None:
        """The turn is over."""
        self._session.users -= 1
        self._session.used_at = asyncio.get_running_loop().time()

    def find(self, visible_name: str) -> ServerTool | None:
        """The tool that a model calls by this name, as it was offered last."""
        return self._offered.get(visible_name)

    async def ready(self) -> None:
        """Have the servers connected and the tools as they are now."""
        names = [server.name for server in self._servers.servers if server.name not in self._given_up]
        await asyncio.gather(*(self._ensure(name) for name in names))
        self._offer()

    async def _ensure(self, name: str) -> None:
        try:
            await self._session.ensure(name)
        except ServerFailed as failed:
            self._give_up(name, failed)

    def _give_up(self, name: str, failed: ServerFailed) -> None:
        self._given_up.add(name)
        if (name, failed.kind) not in self._told:
            self._told.add((name, failed.kind))
            self._tell(name, failed.kind, f"The MCP server {name} can't be used: {failed.message}")

    def _offer(self) -> None:
        lists = tuple(self._session.tools(server.name) for server in self._servers.servers)
        if lists == self._known:
            return
        self._known = lists
        admitted = {
            (server.name, tool.name): (tool, policy)
            for server, tools in zip(self._servers.servers, lists, strict=True)
            for tool in tools
            if (policy := self._servers.policy_of(server.name, tool.name))
        }
        named = visible_names(admitted, self._taken)
        scrub = self._session.credentials.scrubber
        self._offered = {name: ServerTool(*tool, admitted[tool][1]) for name, tool in named.items()}
        self.definitions = [
            definition(name, scrub.text(admitted[tool][0].description), scrub.value(admitted[tool][0].input_schema))
            for name, tool in named.items()
        ]

    async def call(self, server_name: str, tool_name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Call a tool of a server; whatever goes wrong is the outcome."""
        try:
            result = await self._session.call(server_name, tool_name, arguments)
        except ServerFailed as failed:
            self._give_up(server_name, failed)
            return self._outcome(f"The MCP server {server_name} can't be used: {failed.message} Nothing was called.")
        except CallRefused as refused:
            return self._outcome(f"The MCP server {server_name} refused the call: {refused}")
        except OutcomeUnknown as unknown:
            return self._outcome(UNKNOWN.format(unknown))
        rendered = render(result)
        return self._outcome(rendered.text, is_error=rendered.is_error, pictures=rendered.pictures)

    def _outcome(self, text: str, *, is_error: bool = True, pictures: Collection[Any] = ()) -> ToolOutcome:
        # Before anything of it is written to a file of the sandbox.
        outcome = self._limit(self._session.credentials.scrubber.text(text), is_error)
        return replace(outcome, pictures=tuple(pictures)) if pictures else outcome
