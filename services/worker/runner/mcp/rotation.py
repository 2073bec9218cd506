"""Answering whoever rotated a secret: at once how many sessions connect anew, then which of them did not come back.

The vault sends its hint with an address for answers while somebody waits for them. A runner
without such sessions says so too, so that nobody waits for it.
"""

import asyncio
from collections.abc import Mapping

import orjson
from nats.aio.msg import Msg

from kit.telemetry import log
from services.worker.runner.mcp.session import SessionServers

SETTLE_SECONDS = 5.0
_LOOK_SECONDS = 0.05


async def answer(message: Msg, runner_id: str, reconnecting: Mapping[str, SessionServers]) -> None:
    """Tell what becomes of the connections of these sessions; nothing is told where nobody asked."""
    if not message.reply:
        return
    try:
        await message.respond(orjson.dumps({"runner_id": runner_id, "sessions": len(reconnecting)}))
        if reconnecting:
            failed = await _settled(reconnecting)
            await message.respond(orjson.dumps({"runner_id": runner_id, "failed": failed}))
    except Exception as lost:
        log.debug("nobody hears how a rotation went", error=repr(lost))


async def _settled(reconnecting: Mapping[str, SessionServers]) -> list[dict[str, str]]:
    """The servers that did not come back, once all have settled or their time is over."""
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        if all(told["status"] != "connecting" for servers in reconnecting.values() for told in servers.descriptions()):
            break
        await asyncio.sleep(_LOOK_SECONDS)
    return [
        {"session_id": session_id, "server": told["name"], "error": _why(told)}
        for session_id, servers in reconnecting.items()
        for told in servers.descriptions()
        if told["status"] in ("connecting", "failed")
    ]


def _why(told: Mapping[str, object]) -> str:
    error = told["error"]
    return str(error["message"]) if isinstance(error, Mapping) else "it did not answer in time"
