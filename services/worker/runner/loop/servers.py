"""MCP servers, as a turn uses them: where their processes run, what is told in the log, and how a call gets there."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop import retry
from services.worker.runner.loop.agent import BUILT_IN_TOOLS, AgentProfile
from services.worker.runner.loop.calls import SEND_TO_THREAD, START_THREAD, Call
from services.worker.runner.mcp.registry import McpServers
from services.worker.runner.mcp.turn import TurnServers
from services.worker.tools import ToolOutcome, limit_text
from services.worker.tools.overflow import LIMIT_CHARS

_RESERVED = frozenset((*BUILT_IN_TOOLS, START_THREAD, SEND_TO_THREAD))


def servers_for(
    registry: McpServers | None,
    grant: TurnGrant,
    profile: AgentProfile,
    sandbox: Callable[[], Any],
    write: Callable[[str, Mapping[str, Any]], object],
) -> TurnServers | None:
    """The servers of a turn's agent; None for an agent without. `sandbox` gives the session's, when it is needed."""
    if registry is None or profile.servers is None:
        return None

    def tell(server_name: str, kind: str, message: str) -> None:
        # The next turn tries again.
        fields = retry.error_fields(kind, message, asks_again=True)
        fields["error"]["mcp_server_name"] = server_name
        write("session.error", fields)

    def limit(text: str, is_error: bool) -> ToolOutcome:
        if len(text) <= LIMIT_CHARS:
            return limit_text(text, None, is_error=is_error)
        outcome: ToolOutcome = sandbox().limit_output(text, is_error=is_error)
        return outcome

    taken = _RESERVED | profile.custom_tools.keys()
    return registry.begin_turn(grant, profile.servers, host=sandbox, taken=taken, tell=tell, limit=limit)


@contextmanager
def using(servers: TurnServers | None) -> Iterator[None]:
    """Keep the servers' connections for as long as the turn runs."""
    if servers is None:
        yield
        return
    servers.enter()
    try:
        yield
    finally:
        servers.leave()


class ServerPlace:
    """Where one call of a server's tool runs, in the place of a sandbox."""

    def __init__(self, servers: TurnServers | None, call: Call) -> None:
        self._servers = servers
        self._call = call

    async def run_tool(self, name: str, value: Any) -> ToolOutcome:
        """Have the server run it, under the name that it knows."""
        if self._servers is None:
            return ToolOutcome(f"The agent has no MCP servers any more, so {name} was not called.", is_error=True)
        return await self._servers.call(self._call.server_name, self._call.server_tool, value)

    def interrupt(self) -> bool:
        """The server was told that nobody waits any more; the session's shell is not concerned."""
        return False
