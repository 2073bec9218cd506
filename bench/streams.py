"""Many streams: how soon each hears of an event, and what one costs that hears nothing."""

import asyncio

from bench.client import Client, Listener, milliseconds, work
from bench.platform import Platform

Figures = dict[str, float]
_IDLE_SECONDS = 5.0


async def fan_out(client: Client, platform: Platform, scale: float) -> Figures:
    """500 streams on one session, then on 50, while turns run."""
    agent = await client.agent()
    figures: Figures = {}
    for name, sessions, turns in (("fan_500_on_1", 1, 20), ("fan_500_on_50", 50, 4)):
        made = [await client.session(agent) for _ in range(sessions)]
        streams = await open_streams(client, made, 500)
        await platform.settle()
        before, each = platform.cpu().total(), max(2, int(turns * scale))
        drivers = [await client.listen(session) for session in made]

        async def drive(number: int, made=made, drivers=drivers, each=each) -> None:
            for turn in range(1, each + 1):
                await client.say(made[number], "words 1")
                await drivers[number].until(lambda turn=turn: drivers[number].idles >= turn)

        await work(sessions, min(8, sessions), drive)
        for stream in streams:
            await stream.until(lambda stream=stream, each=each: stream.idles >= each)
        delays = [delay for stream in streams for delay in stream.delays()]
        figures |= {
            f"{name}_p50_ms": milliseconds(delays, 50),
            f"{name}_p99_ms": milliseconds(delays, 99),
            f"{name}_cpu_us_per_delivery": (platform.cpu().total() - before) * 1e6 / len(delays),
        }
        for stream in (*streams, *drivers):
            stream.close()
    return figures


async def idle(client: Client, platform: Platform, scale: float) -> Figures:
    """Memory and CPU of streams on which nothing happens."""
    session = await client.session(await client.agent())
    return await idle_cost(client, platform, session, int(1000 * scale))


async def idle_cost(client: Client, platform: Platform, session: str, streams: int) -> Figures:
    """Opened twice: the first time fills the pools that any number of later streams use again."""
    warm = await open_streams(client, [session], min(streams, 200))
    for stream in warm:
        stream.close()
    await platform.settle()
    without, resting = platform.memory()["python_rss"], await _cpu_share(platform)
    opened = await open_streams(client, [session], streams)
    await platform.settle()
    grown, busy = platform.memory()["python_rss"] - without, await _cpu_share(platform)
    for stream in opened:
        stream.close()
    return {
        "idle_stream_kb": grown * 1024 / streams,
        "idle_streams_cpu_percent": max(0.0, busy - resting) * 100,
    }


async def open_streams(client: Client, sessions: list[str], number: int) -> list[Listener]:
    """So many streams, spread over the sessions."""
    streams: list[Listener] = []

    async def open_one(index: int) -> None:
        streams.append(await client.listen(sessions[index % len(sessions)]))

    await work(number, 50, open_one)
    return streams


async def _cpu_share(platform: Platform) -> float:
    """Of the gateway, which alone knows of streams: the database may be tidying up at any time."""
    before = platform.cpu()["gateway"]
    await asyncio.sleep(_IDLE_SECONDS)
    return (platform.cpu()["gateway"] - before) / _IDLE_SECONDS
