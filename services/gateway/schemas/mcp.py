"""Shapes of the state of MCP servers."""

from __future__ import annotations

from typing import Literal

from .shapes import Rendered


class McpTool(Rendered):
    """A tool as its server names it."""

    name: str
    description: str


class McpError(Rendered):
    """Why a server can't be used."""

    type: Literal["mcp_connection_failed_error", "mcp_authentication_failed_error"]
    message: str


class McpServer(Rendered):
    """One server of the session's agent; `url` only where it has one."""

    name: str
    type: Literal["url", "stdio"]
    url: str = ""
    status: Literal["connected", "connecting", "failed", "not_connected"]
    error: McpError | None
    tools: list[McpTool]
    connected_at: str | None


class McpStatus(Rendered):
    """The servers of one session, in the order in which its agent declares them."""

    session_id: str
    servers: list[McpServer]
