"""Turns: from the POST of a message to `session.status_idle` on an open stream."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.client import Client, Listener, milliseconds, work
from bench.platform import Platform

Figures = dict[str, float]
PLAIN = "words 20"
TOOL = 'call bash {"command":"echo hi"}'
_TURNS_PER_SESSION = 10


async def plain(client: Client, platform: Platform, scale: float) -> Figures:
    """One, eight and 32 at a time, with the CPU of every process."""
    agent = await client.agent()
    await play_turns(client, agent, 40, 4, PLAIN)
    figures: Figures = {}
    for at_once, turns in ((1, 150), (8, 480), (32, 960)):
        await platform.settle()
        before = platform.cpu()
        count = max(at_once, int(turns * scale))
        whole, acknowledged, seconds = await play_turns(client, agent, count, at_once, PLAIN)
        spent = platform.cpu() - before
        name = f"turn_c{at_once}"
        figures |= {
            f"{name}_p50_ms": milliseconds(whole, 50),
            f"{name}_p99_ms": milliseconds(whole, 99),
            f"{name}_per_s": count / seconds,
            f"{name}_ack_p99_ms": milliseconds(acknowledged, 99),
            f"{name}_cpu_ms": spent.total() * 1000 / count,
        }
        figures |= {f"{name}_cpu_ms.{process}": one * 1000 / count for process, one in spent.items()}
    return figures


async def with_tool(client: Client, platform: Platform, scale: float) -> Figures:
    """Turns with one local tool call each."""
    agent = await client.agent()
    await play_turns(client, agent, 16, 8, TOOL)
    await platform.settle()
    before, count = platform.cpu(), max(16, int(160 * scale))
    whole, _, seconds = await play_turns(client, agent, count, 8, TOOL)
    return {
        "tool_turn_c8_per_s": count / seconds,
        "tool_turn_c8_p50_ms": milliseconds(whole, 50),
        "tool_turn_c8_cpu_ms": (platform.cpu() - before).total() * 1000 / count,
    }


async def long_session(client: Client, platform: Platform, scale: float) -> Figures:
    """Turns on a session of 5,000 events."""
    session = await client.session(await client.agent())
    await client.fill(session, 5000)
    await platform.settle()
    spent, whole = await turns_on(client, platform, session, 20)
    return {"long_turn_p50_ms": milliseconds(whole, 50), "long_turn_cpu_ms": spent * 1000}


async def turns_on(client: Client, platform: Platform, session: str, turns: int) -> tuple[float, list[float]]:
    """CPU seconds per turn and seconds of each, one after another on one session. The first is not counted."""
    async with _stream(client, session) as stream:
        await _turn(client, session, stream, PLAIN)
        before = platform.cpu().total()
        taken = [(await _turn(client, session, stream, PLAIN))[0] for _ in range(turns)]
    return (platform.cpu().total() - before) / turns, taken


async def play_turns(
    client: Client, agent: str, turns: int, at_once: int, text: str, environment: str = "env_default"
) -> tuple[list[float], list[float], float]:
    """Ten turns on each of enough sessions: seconds to idle, seconds to the POST's answer, seconds in all."""
    sessions = [await client.session(agent, environment) for _ in range(max(at_once, -(-turns // _TURNS_PER_SESSION)))]
    streams = [await client.listen(session) for session in sessions]
    whole: list[float] = []
    acknowledged: list[float] = []
    each = -(-turns // len(sessions))

    async def play(number: int) -> None:
        for _ in range(each):
            idle, answered = await _turn(client, sessions[number], streams[number], text)
            whole.append(idle)
            acknowledged.append(answered)

    _, seconds = await work(len(sessions), at_once, play)
    for stream in streams:
        stream.close()
    return whole, acknowledged, seconds * turns / len(whole)


async def _turn(client: Client, session: str, stream: Listener, text: str) -> tuple[float, float]:
    wanted, began = stream.idles + 1, time.perf_counter()
    await client.say(session, text)
    answered = time.perf_counter() - began
    await stream.until(lambda: stream.idles >= wanted)
    return time.perf_counter() - began, answered


@asynccontextmanager
async def _stream(client: Client, session: str) -> AsyncIterator[Listener]:
    stream = await client.listen(session)
    try:
        yield stream
    finally:
        stream.close()
