"""What a runner answers to whoever rotated a secret: at once what it has to do, then what did not come back."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kit.nats import Nats
from kit.waiting import within
from services.worker.runner.mcp import rotation
from services.worker.runner.mcp.session import SessionServers
from tests.integration.runner.played import PlayedInjections
from tests.integration.runner.test_mcp_connections import named, session_servers
from tests.support.mcp_server import mcp_server


async def answers_to(nats: Nats, reconnecting: dict[str, SessionServers], count: int) -> list[dict[str, Any]]:
    """What somebody who asked over the bus is told."""
    inbox, found = nats.client.new_inbox(), asyncio.Queue[Any]()
    subscription = await nats.subscribe(inbox, found.put)
    subject = f"vault.rotated.{inbox}"
    asked: asyncio.Queue[Any] = asyncio.Queue()
    hearing = await nats.subscribe(subject, asked.put)
    await nats.client.publish(subject, b"{}", reply=inbox)
    await rotation.answer(await asked.get(), "runner_1", reconnecting)
    told = [orjson.loads((await within(found.get(), 30)).data) for _ in range(count)]
    for each in (subscription, hearing):
        await each.unsubscribe()
    return told


async def test_a_runner_without_such_sessions_says_so(nats: Nats) -> None:
    assert await answers_to(nats, {}, 1) == [{"runner_id": "runner_1", "sessions": 0}]


@pytest.mark.parametrize("comes_back", [True, False])
async def test_what_did_not_come_back_is_named(nats: Nats, comes_back: bool) -> None:
    vault = PlayedInjections()
    async with mcp_server() as server:
        vault.tokens[server.url] = "old-token-of-tests"
        async with session_servers(named(server.url), vault=vault) as servers:
            await servers.ensure("tested")
            vault.tokens[server.url], server.tokens = "new-token-of-tests", {"new-token-of-tests"}
            if not comes_back:
                server.tokens = {"another"}
            servers.reconnect()
            begun, done = await answers_to(nats, {"sess_1": servers}, 2)
    assert begun == {"runner_id": "runner_1", "sessions": 1}
    assert [(each["session_id"], each["server"]) for each in done["failed"]] == (
        [] if comes_back else [("sess_1", "tested")]
    )
    assert comes_back or (done["failed"][0]["error"] and "token-of-tests" not in done["failed"][0]["error"])


async def test_nothing_is_told_where_nobody_asked(nats: Nats) -> None:
    asked: asyncio.Queue[Any] = asyncio.Queue()
    subject = f"vault.rotated.{nats.client.new_inbox()}"
    hearing = await nats.subscribe(subject, asked.put)
    await nats.publish(subject, b"{}")
    await rotation.answer(await within(asked.get(), 30), "runner_1", {})
    await hearing.unsubscribe()
