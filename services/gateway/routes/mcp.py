"""How the MCP servers of a session stand. Outside the published contract.

Connections are held by the runner that had the session's turns last. It listens on the bus, on a subject of the
session, for as long as it holds any; where nobody does, the bus says so at once, and no server is connected.
"""

from __future__ import annotations

from typing import Any

import nats.errors
import orjson

from kit.errors import Unavailable
from kit.nats import Nats
from managed_agents.sessions.v1.sessions_pb2 import GetSessionRequest

from ..errors import InvalidRequest
from ..operation import Call, Operation, text
from ..render.mcp import render_status
from ..schemas.mcp import McpStatus

TAG = "Runtime"
# A runner that does not answer within this is told as away.
RUNNER_SECONDS = 2.0


class McpRoutes:
    """The route, with the bus over which runners are asked."""

    def __init__(self, bus: Nats) -> None:
        self._bus = bus

    async def status(self, call: Call) -> bytes:
        """GET /v1/x/mcp/status."""
        session_id = call.query["session_id"]
        if not session_id:
            raise InvalidRequest("session_id is required: the id of the session to ask after.", field="session_id")
        answer = await call.ask(call.clients.sessions.GetSession, GetSessionRequest(session_id=session_id))
        agent = orjson.loads(answer.session.agent.document_json or b"{}")
        return render_status(session_id, agent, await self._held(session_id) if agent.get("mcp_servers") else [])

    async def _held(self, session_id: str) -> list[dict[str, Any]]:
        """What the runner that holds the session says of its servers; nothing where none does."""
        try:
            answer = await self._bus.request(f"mcp.sessions.{session_id}", b"{}", RUNNER_SECONDS)
        except nats.errors.NoRespondersError:
            return []
        except (nats.errors.Error, TimeoutError) as failed:
            raise Unavailable("The runner that holds the session does not answer now. Try again shortly.") from failed
        servers: list[dict[str, Any]] = orjson.loads(answer.data)["servers"]
        return servers

    def operations(self) -> tuple[Operation, ...]:
        """The operations of this module."""
        return (
            Operation(
                "GET",
                "/v1/x/mcp/status",
                self.status,
                tag=TAG,
                summary="Tell how the MCP servers of a session stand",
                description="Servers are connected with the session's first turn, and closed when it has been idle for"
                " some minutes. `tools` is what a server offers, whether or not the agent may use it.",
                query=(text("session_id", max_length=128, description="The session; required."),),
                response=McpStatus,
            ),
        )
