"""Interleaved conversations over the HTTP agent protocol lose and double nothing, whatever of ours is killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.testing import await_until
from tests.e2e.leftovers import processes_of
from tests.faults.conftest import SHORT_KILLS
from tests.faults.ground import Ground
from tests.faults.nemesis import Nemesis
from tests.faults.stepping import Caller, check_conversation
from tests.faults.test_kills import check_outbox
from tests.support.api import Api, api

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

# For each session of the other fault tests so many conversations, and one harm for so many of theirs.
CONVERSATIONS, KILLS = 4, 5
KINDS = ("mid request", "gateway", "sessions", "mid tool", "postgres", "pause", "nats", "everything", "unpublished")
# Each life of a process passes a point so often before it dies there; the supervisor waits longer each time.
POINTS = "sessions.step.before_commit=kill@20,gateway.step.taken=kill@30,gateway.step.answered=kill@15"
DEATHS = 3


@asynccontextmanager
async def grounded(folder: Path, **options: Any) -> AsyncIterator[tuple[Ground, Api]]:
    ground = Ground(folder / "data", **options)
    try:
        await ground.until_ready()
        async with api(ground.platform.url, timeout=120) as client:
            yield ground, client
    finally:
        ground.stop()
    await await_until(lambda: processes_of(ground.data_dir) == [], timeout=30)


async def callers(client: Api, count: int, seed: int) -> list[Caller]:
    agent_id = await client.agent()
    # Many of them on two cores: they take their time.
    pause = max(0.1, count / 100)
    return [
        Caller(client, random.Random(f"{seed} {number}"), agent_id, f"run-{seed}/case#{number}", pause_seconds=pause)
        for number in range(count)
    ]


async def play(playing: list[Caller], harm: asyncio.Task[None], enough: Callable[[], bool]) -> None:
    """All conversations at once, until harm has been done and it is enough."""
    stop = asyncio.Event()
    working = [asyncio.create_task(one.run(stop.is_set)) for one in playing]
    try:
        await asyncio.wait({harm, *working}, return_when=asyncio.FIRST_COMPLETED)
        if harm.done():
            harm.result()
            await await_until(lambda: enough() or any(each.done() for each in working), timeout=120)
        stop.set()
        await asyncio.gather(*working)
    finally:
        for task in (harm, *working):
            task.cancel()
        await asyncio.gather(harm, *working, return_exceptions=True)


async def check(ground: Ground, client: Api, playing: list[Caller]) -> None:
    faults = [fault for one in playing for fault in await check_conversation(ground, client, one)]
    assert not faults, "\n".join(faults)
    assert len({one.told.session_id for one in playing}) == len(playing)
    await check_outbox(ground, {one.told.session_id: await client.log(one.told.session_id) for one in playing})


async def test_interleaved_conversations_under_kills(tmp_path: Path, kills: int, sessions: int, seed: int) -> None:
    """In short, processes die in the worst moments of a step; at length, everything is killed and paused."""
    is_short = kills <= SHORT_KILLS
    async with grounded(tmp_path, failpoints=POINTS if is_short else "") as (ground, client):
        playing = await callers(client, sessions * (1 if is_short else CONVERSATIONS), seed)
        nemesis = Nemesis(ground, random.Random(seed), None)  # type: ignore[arg-type]

        async def strike() -> None:
            for number in range(kills // KILLS):
                await nemesis.strike(KINDS[number % len(KINDS)])

        async def deaths() -> None:
            died = "no point was reached"
            await await_until(lambda: ground.platform.output().count("ended with SIGKILL") >= DEATHS, 60, died)

        harm = asyncio.create_task(deaths() if is_short else strike())
        await play(playing, harm, lambda: all(one.turns for one in playing))
        await check(ground, client, playing)
        taken = sum(len(one.told.steps) for one in playing)
        print(f"seed {seed}: {dict(nemesis.done)}, {taken} steps in {len(playing)} conversations")
