"""Many sessions work at once, late streams replay all, and a client that is cut off fifty times loses nothing."""

from __future__ import annotations

import asyncio
import random

import pytest

from kit.testing import await_until
from tests.support.api import Api, Event, Reader, api, assert_same, message, tool
from tests.support.platform import Platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SESSIONS = 20
RECONNECTS = 50


def _is_idle(event: Event) -> bool:
    return event["type"] == "session.status_idle"


async def _turn(client: Api, reader: Reader, text: str) -> None:
    await client.send(reader.session_id, message(text))
    assert await reader.follow(_is_idle)


async def _work(client: Api, agent_id: str, number: int) -> Reader:
    """Two turns: one writes a file, the next finds it, in a sandbox of its own."""
    reader = Reader(client, await client.session(agent_id))
    await _turn(client, reader, tool("write", file_path="mine.txt", content=f"session {number}\n"))
    await _turn(client, reader, tool("bash", command="cat mine.txt; ls | wc -l"))
    return reader


def _results(events: list[Event]) -> list[str]:
    return [event["content"][0]["text"] for event in events if event["type"] == "agent.tool_result"]


async def test_twenty_sessions_with_tools_finish_at_once_and_late_streams_replay_all(platform: Platform) -> None:
    async with api(platform.url, timeout=90) as client:
        agent_id = await client.agent()
        readers = await asyncio.gather(*(_work(client, agent_id, number) for number in range(SESSIONS)))
        for number, live in enumerate(readers):
            log = await client.log(live.session_id, limit=7)
            assert_same(live.events, log)
            assert _results(log)[-1].split() == ["session", str(number), "1"]
            assert not [event for event in log if event["type"] == "session.error"]
            assert [event["stop_reason"] for event in log if _is_idle(event)] == [{"type": "end_turn"}] * 2
            assert await client.status(live.session_id) == "idle"
            late = Reader(client, live.session_id)
            assert await late.follow(lambda event: event["seq"] == len(log))  # noqa: B023
            assert late.events == log
            behind = Reader(client, live.session_id)
            behind.events = log[:5]
            assert await behind.follow(lambda event: event["seq"] == len(log))  # noqa: B023
            assert behind.events == log


async def test_fifty_reconnects_at_random_bytes_miss_and_double_nothing(platform: Platform) -> None:
    chance = random.Random(20261129)
    async with api(platform.url, timeout=90) as client:
        session_id = await client.session(await client.agent())
        reader = Reader(client, session_id)
        finished = asyncio.Event()

        async def write() -> None:
            writer = Reader(client, session_id)
            while reader.connections <= RECONNECTS:
                # The second message mostly waits for the turn of the first, so it is announced twice.
                await client.send(session_id, message("one " + tool("bash", command="echo hello")))
                await client.send(session_id, message("two"))
                assert await writer.follow(_is_idle)
            # That may have been the idle before the last message's own turn.
            await await_until(lambda: _rests(client, session_id), timeout=30)
            finished.set()

        async def read() -> None:
            while not finished.is_set() or reader.last_seq < len(await client.log(session_id, limit=1000)):
                await reader.follow(lambda _: False, cut_after_bytes=chance.randint(1, 2500))

        writing = asyncio.create_task(write())
        reading = asyncio.create_task(read())
        await writing
        # A connection that waits for bytes that never come has nothing left to miss.
        log = await client.log(session_id, limit=1000)
        while reader.last_seq < len(log):
            await asyncio.wait({reading}, timeout=0.05)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert reader.connections > RECONNECTS
        assert_same(reader.events, log)


async def _rests(client: Api, session_id: str) -> bool:
    return await client.status(session_id) == "idle"
