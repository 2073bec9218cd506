"""Requests without turns: appending, creating, listing, paging, replaying."""

import asyncio
import time

import orjson

from bench.client import Client, milliseconds, work
from bench.platform import Platform

Figures = dict[str, float]
_LOG_EVENTS = 5000


async def appends(client: Client, platform: Platform, scale: float) -> Figures:
    """One event per request, on eight idle sessions."""
    agent = await client.agent()
    sessions = [await client.session(agent) for _ in range(8)]
    await platform.settle()
    each, seconds = await work(int(1600 * scale), 8, lambda number: client.interrupt(sessions[number % 8]))
    return {"append_c8_per_s": len(each) / seconds, "append_c8_p99_ms": milliseconds(each, 99)}


async def agents(client: Client, platform: Platform, scale: float) -> Figures:
    """Creating agents while their number grows, reading them, listing them."""
    made: list[str] = []

    async def make(number: int) -> None:
        made.append(await client.agent(f"bench {number}"))

    first, first_seconds = await work(int(400 * scale), 8, make)
    last, last_seconds = await work(int(400 * scale), 8, make)
    await platform.settle()
    read, seconds = await work(
        int(1600 * scale), 8, lambda number: client.get(f"/v1/agents/{made[number % len(made)]}")
    )
    listed, _ = await work(int(100 * scale), 1, lambda _: client.get("/v1/agents?limit=20"))
    return {
        "agent_create_c8_per_s": len(first) / first_seconds,
        "agent_create_growth": (len(last) / last_seconds) / (len(first) / first_seconds),
        "agent_read_c8_per_s": len(read) / seconds,
        "agent_list_p50_ms": milliseconds(listed, 50),
    }


async def sessions(client: Client, platform: Platform, scale: float) -> Figures:
    """Creating sessions up to 10,000, and listing them then."""
    agent = await client.agent()
    made, seconds = await work(int(10_000 * scale), 8, lambda _: client.session(agent))
    await platform.settle()
    figures = await listing(client, scale)
    return {"session_create_c8_per_s": len(made) / seconds, **figures}


async def listing(client: Client, scale: float = 1.0) -> Figures:
    """A page of 20 sessions among those that there are."""
    alone, _ = await work(int(200 * scale), 1, lambda _: client.get("/v1/sessions?limit=20"))
    together, seconds = await work(int(1200 * scale), 8, lambda _: client.get("/v1/sessions?limit=20"))
    return {"session_list_p50_ms": milliseconds(alone, 50), "session_list_c8_per_s": len(together) / seconds}


async def reading(client: Client, platform: Platform, scale: float) -> Figures:
    """Pages of 100 through a log of 5,000 events, and replays of it."""
    session = await client.session(await client.agent())
    await client.fill(session, _LOG_EVENTS)
    await platform.settle()
    return {**await pages(client, session, max(2, int(10 * scale))), **await replays(client, session, scale)}


async def pages(client: Client, session: str, walks: int) -> Figures:
    """Through the whole log, page after page, by one reader that decodes what it reads."""
    events, each, began = 0, [], time.perf_counter()
    for _ in range(walks):
        start, cursor = f"/v1/sessions/{session}/events?limit=100", ""
        while cursor is not None:
            asked = time.perf_counter()
            page = orjson.loads(await client.get(f"{start}&page={cursor}" if cursor else start))
            each.append(time.perf_counter() - asked)
            events += len(page["data"])
            cursor = page["next_page"]
    return {"page_events_per_s": events / (time.perf_counter() - began), "page_p50_ms": milliseconds(each, 50)}


async def replays(client: Client, session: str, scale: float) -> Figures:
    """The whole log over a stream, alone and eight at once."""

    async def replay() -> float:
        began = time.perf_counter()
        stream = await client.listen(session, after=0, last=_LOG_EVENTS)
        await stream.until(lambda: stream.reached)
        taken = time.perf_counter() - began
        assert stream.count() == _LOG_EVENTS, f"{stream.count()} of {_LOG_EVENTS} events came"
        stream.close()
        return taken

    alone = [await replay() for _ in range(max(2, int(5 * scale)))]
    rounds, began = max(2, int(6 * scale)), time.perf_counter()
    for _ in range(rounds):
        await asyncio.gather(*(replay() for _ in range(8)))
    seconds = time.perf_counter() - began
    return {
        "replay_c1_events_per_s": _LOG_EVENTS * len(alone) / sum(alone),
        "replay_c8_events_per_s": _LOG_EVENTS * 8 * rounds / seconds,
    }
