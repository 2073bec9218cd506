"""Whoever is killed, a client of the session gateway is told one story: each index once, the same at each reconnect."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.faults.chatting import ENDS, Person
from tests.faults.conftest import SHORT_KILLS
from tests.faults.nemesis import Nemesis
from tests.faults.test_steps import grounded, play

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]
ASKING = [{"type": "agent_toolset_20260401", "default_config": {"permission_policy": {"type": "always_ask"}}}]
# One harm for so many of the other fault tests.
KILLS = 5
KINDS = ("mid request", "gateway", "sessions", "pause", "postgres", "nats", "everything", "unpublished", "vault")
SHORT = 2


async def test_one_story_under_kills(tmp_path: Path, kills: int, sessions: int, seed: int) -> None:
    strikes = SHORT if kills <= SHORT_KILLS else kills // KILLS
    async with grounded(tmp_path) as (ground, client):
        agent_id = await client.agent(tools=ASKING)
        people = [
            Person(client, random.Random(f"{seed} {number}"), agent_id, f"p{number}") for number in range(sessions)
        ]
        nemesis = Nemesis(ground, random.Random(seed), None)  # type: ignore[arg-type]

        async def strike() -> None:
            for number in range(strikes):
                await nemesis.strike(KINDS[number % len(KINDS)])

        await play(people, asyncio.create_task(strike()), lambda: all(one.messages > 1 for one in people))
        for one in people:
            told = one.told()
            assert await one.whole() == [one.frames[index] for index in range(len(one.frames))]
            begun = [event["runId"] for event in told if event["type"] == "started" and "resumed" not in event]
            ended = [event["runId"] for event in told if event["type"] in ENDS]
            assert begun == ended and len(begun) == len(set(begun)) == one.messages, one.session_id
            log = await client.log(one.session_id)
            assert sum(event["type"] == "user.message" for event in log) == one.messages
        assert len({one.session_id for one in people}) == len(people)
        counts = sum(one.messages for one in people), sum(one.reconnects for one in people)
        print(f"seed {seed}: {dict(nemesis.done)}, {counts[0]} runs, {counts[1]} reconnects")
