"""Public JSON of how a session's MCP servers stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

_NOT_CONNECTED: Mapping[str, Any] = {"status": "not_connected", "error": None, "tools": [], "connected_at": None}
_TOLD = tuple(_NOT_CONNECTED)


def render_status(session_id: str, agent: Mapping[str, Any], held: Sequence[Mapping[str, Any]]) -> bytes:
    """The servers that the session's agent declares, with what the runner that holds them says of each."""
    by_name = {server["name"]: server for server in held}
    servers = []
    for declared in agent.get("mcp_servers") or ():
        known = by_name.get(declared["name"], {})
        # What was connected before the agent's servers were replaced is no longer the session's.
        is_same = known.get("type") == declared["type"] and known.get("url") == declared.get("url")
        state = {key: known[key] for key in _TOLD} if is_same else dict(_NOT_CONNECTED)
        shown = {key: declared[key] for key in ("name", "type", "url") if key in declared}
        servers.append(shown | state)
    return orjson.dumps({"session_id": session_id, "servers": servers})
