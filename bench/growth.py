"""How cost grows with what is there: tables for README.md, made once in a while (`--growth`)."""

from bench.client import Client, milliseconds, work
from bench.platform import Platform
from bench.records import listing, pages
from bench.streams import idle_cost
from bench.turns import turns_on

Row = dict[str, float]


async def by_sessions(client: Client, platform: Platform) -> list[Row]:
    """10 to 10,000 sessions."""
    agent, present, rows = await client.agent(), 0, []
    for size in (10, 100, 1000, 10_000):
        made, seconds = await work(size - present, 8, lambda _: client.session(agent))
        present = size
        await platform.settle()
        rows.append({"sessions": size, "create_c8_per_s": len(made) / seconds, **await listing(client)})
    return rows


async def by_events(client: Client, platform: Platform) -> list[Row]:
    """100 to 100,000 events in one session."""
    agent, rows = await client.agent(), []
    for size in (100, 1000, 10_000, 100_000):
        session = await client.session(agent)
        await client.fill(session, size)
        await platform.settle()
        spent, taken = await turns_on(client, platform, session, 15)
        row = {"events": size, "turn_p50_ms": milliseconds(taken, 50), "turn_cpu_ms": spent * 1000}
        rows.append(row | await pages(client, session, 2))
    return rows


async def by_streams(client: Client, platform: Platform) -> list[Row]:
    """1 to 2,000 idle streams on one session."""
    session, rows = await client.session(await client.agent()), []
    for size in (1, 100, 500, 2000):
        rows.append({"streams": size, **await idle_cost(client, platform, session, size)})
    return rows


TABLES = {"sessions": by_sessions, "events": by_events, "streams": by_streams}
