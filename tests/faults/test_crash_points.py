"""A process that kills itself at the worst places of a write loses nothing and does nothing twice.

The places: before and after the commit of an append, after a grant, between the relay's publish and its commit, in a
runner before an append, in a model request and in a tool, and between a summary of the context and its append.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from kit.testing import await_until
from tests.e2e.leftovers import processes_of
from tests.faults.ground import Ground
from tests.faults.test_kills import check_outbox, check_session
from tests.faults.workload import Client
from tests.support.api import CUSTOM_TOOL, TOOLS, api

# Each life of a process passes a point this often before it dies there: a few deaths a test, since the supervisor
# waits longer before each new start.
POINTS = {
    "before a commit, after a publish": ("sessions.append.before_commit=kill@30", "outbox.published=kill@12"),
    "after a commit, after a grant": ("sessions.append.after_commit=kill@30", "turns.grant.after_commit=kill@5"),
    "in a runner": ("runner.before_append=kill@7", "runner.model.mid_request=kill@4", "runner.tool.running=kill@2"),
    "with a summary": ("runner.compaction.answered=kill@2",),
}
# So small that a session is compacted in nearly every turn.
WINDOWS = {"with a summary": {"MANAGED_AGENTS_CONTEXT_WINDOW_TOKENS": "250"}}
TURNS = 3
LONG = ("after a commit, after a grant", "with a summary")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=[pytest.mark.long] if place in LONG else []) for place in POINTS]
)
async def test_a_death_in_the_worst_moment_loses_and_repeats_nothing(tmp_path: Path, place: str, seed: int) -> None:
    ground = Ground(tmp_path / "data", failpoints=",".join(POINTS[place]), environment=WINDOWS.get(place))
    try:
        await ground.until_ready()
        async with api(ground.platform.url) as client:
            agent_id = await client.agent(tools=[*TOOLS, CUSTOM_TOOL])
            clients = [Client(client, random.Random(f"{seed} {number}"), agent_id) for number in range(3)]
            await asyncio.gather(*(one.run(lambda one=one: one.turns >= TURNS) for one in clients))
            assert "ended with SIGKILL" in ground.platform.output(), "no point was reached"
            faults = [fault for one in clients for fault in await check_session(ground, client, one)]
            assert not faults, "\n".join(faults)
            await check_outbox(ground, {one.told.session_id: await client.log(one.told.session_id) for one in clients})
    finally:
        ground.stop()
    await await_until(lambda: processes_of(ground.data_dir) == [], timeout=30)
