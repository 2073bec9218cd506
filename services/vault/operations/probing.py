"""Trying an OAuth credential at its MCP server: `initialize`, then `tools/list`, as any client begins.

A server that answers 401 gets a second try with a renewed token, where it can be renewed.
What a server says is told without secrets; that it says nothing is told too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from services.vault.operations.outward import Outward, Reply, Unreachable

VALID, INVALID, UNKNOWN = "valid", "invalid", "unknown"
PROTOCOL_VERSION = "2025-06-18"
REFUSALS = (401, 403)
_HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_SESSION = "mcp-session-id"


@dataclass(frozen=True, slots=True)
class Probe:
    """How far a try came. `failed_method` is empty where nothing failed; `reply` is the answer that failed it."""

    failed_method: str = ""
    reply: Reply | None = None

    @property
    def status(self) -> str:
        """What it says of the token."""
        if not self.failed_method:
            return VALID
        return INVALID if self.reply is not None and self.reply.status in REFUSALS else UNKNOWN

    @property
    def is_unauthorized(self) -> bool:
        """Whether another token may help."""
        return self.reply is not None and self.reply.status == 401


async def probe(outward: Outward, url: str, token: str) -> Probe:
    """Begins as a client does, and asks for the tools."""
    headers = {**_HEADERS, "authorization": f"Bearer {token}"}
    hello = {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "managed-agents", "version": "1"},
    }
    try:
        first = await outward.post(url, headers=headers, content=_call(1, "initialize", hello))
    except Unreachable:
        return Probe("initialize")
    if not _is_result(first):
        return Probe("initialize", first)
    headers["mcp-protocol-version"] = PROTOCOL_VERSION
    if session := first.headers.get(_SESSION):
        headers[_SESSION] = session
    try:
        ready = orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await outward.post(url, headers=headers, content=ready)
        second = await outward.post(url, headers=headers, content=_call(2, "tools/list", {}))
    except Unreachable:
        return Probe("tools/list")
    return Probe() if _is_result(second) else Probe("tools/list", second)


def _call(number: int, method: str, params: dict[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def _is_result(reply: Reply) -> bool:
    """Whether it is a result of JSON-RPC, by itself or as an event of a stream."""
    if not reply.is_success:
        return False
    body = reply.body
    if reply.content_type.startswith("text/event-stream"):
        lines = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
        body = lines[0] if lines else b""
    try:
        answer = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(answer, dict) and "result" in answer
