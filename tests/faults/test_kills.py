"""Nothing acknowledged is lost and nothing runs twice, whatever is killed with -9 or paused past its lease."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from kit.embedded.nats import EmbeddedNats
from kit.nats import connect
from kit.testing import await_until
from managed_agents.sessions.v1.events_pb2 import EventsAppended
from tests.e2e.leftovers import processes_of
from tests.faults.ground import Ground
from tests.faults.history import faults_of, line_faults
from tests.faults.nemesis import KINDS, Nemesis
from tests.faults.workload import Client
from tests.support.api import CUSTOM_TOOL, TOOLS, Api, Event, api, assert_same
from tests.support.rows import database_of, turns_under_way

pytestmark = [pytest.mark.slow]


async def _work_under(nemesis: asyncio.Task[None], client: Api, sessions: int, seed: int) -> list[Client]:
    agent_id = await client.agent(tools=[*TOOLS, CUSTOM_TOOL])
    stop = asyncio.Event()
    clients = [Client(client, random.Random(f"{seed} {number}"), agent_id) for number in range(sessions)]
    working = [asyncio.create_task(one.run(stop.is_set)) for one in clients]
    try:
        await asyncio.wait({nemesis, *working}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        if nemesis.done():
            nemesis.result()
        await asyncio.gather(*working)
    finally:
        for task in (nemesis, *working):
            task.cancel()
        await asyncio.gather(nemesis, *working, return_exceptions=True)
    return clients


async def check_session(ground: Ground, client: Api, one: Client) -> list[str]:
    """Everything that is wrong with a session whose client has finished."""
    told = one.told
    log = await client.log(told.session_id)
    assert_same(one.reader.events, log)
    workspace = ground.workspace(told.session_id)
    runs = workspace / "runs.txt" if workspace else None
    lines = runs.read_text().split() if runs is not None and runs.exists() else []
    found = faults_of(log, told.acknowledged, told.unsure) + line_faults(log, told.lines, lines)
    if await client.status(told.session_id) != "idle":
        found.append("the session is not idle")
    if found:
        found += [f"{event['seq']} {event['type']} {event.get('stop_reason', '')}" for event in log]
    return [f"{told.session_id}: {fault}" for fault in found]


async def _delivered(ground: Ground) -> AsyncIterator[EventsAppended]:
    """What a durable consumer gets, from the first message on."""
    nats = await connect(EmbeddedNats(ground.data_dir / "nats").address(), "faults")
    try:
        stream = nats.client.jetstream()
        last = (await stream.stream_info("SESSIONS")).state.messages
        subscription = await stream.subscribe("sessions.log.>", ordered_consumer=True)
        for _ in range(last):
            message = await subscription.next_msg(timeout=20)
            yield EventsAppended.FromString(message.data)
        await subscription.unsubscribe()
    finally:
        await nats.close()


async def check_outbox(ground: Ground, logs: dict[str, list[Event]]) -> None:
    """Each append reached the stream, and reached it once."""
    with database_of(ground.platform) as rows:
        await await_until(lambda: rows.execute("SELECT count(*) FROM sessions.outbox").fetchone() == (0,), timeout=30)
    seen: Counter[str] = Counter()
    async for appended in _delivered(ground):
        seen.update(reference.id for reference in appended.events)
    for session_id, log in logs.items():
        counts = {event["id"]: seen[event["id"]] for event in log if seen[event["id"]] != 1}
        assert not counts, f"{session_id}: {counts}"


async def _check_rest(ground: Ground) -> None:
    """Nobody holds on to anything once all is quiet."""
    with database_of(ground.platform) as rows:
        assert turns_under_way(rows) == 0
        idle = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
        await await_until(lambda: rows.execute(idle).fetchone() == (0,), timeout=30)
        connections = rows.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        assert connections.fetchone()[0] < 60


@pytest.mark.timeout(0)
async def test_whatever_is_killed_nothing_is_lost_and_nothing_runs_twice(
    tmp_path: Path, kills: int, sessions: int, seed: int
) -> None:
    ground = Ground(tmp_path / "data")
    try:
        await ground.until_ready()
        nemesis = Nemesis(ground, random.Random(seed))
        async with api(ground.platform.url) as client:
            striking = asyncio.create_task(nemesis.strike_at_random(kills))
            clients = await _work_under(striking, client, sessions, seed)
            assert nemesis.done.total() == kills and set(KINDS[:kills]) <= set(nemesis.done)
            faults = [fault for one in clients for fault in await check_session(ground, client, one)]
            assert not faults, "\n".join(faults)
            assert all(one.turns >= 2 for one in clients)
            await check_outbox(ground, {one.told.session_id: await client.log(one.told.session_id) for one in clients})
            await _check_rest(ground)
    finally:
        ground.stop()
    with suppress(AssertionError):
        await await_until(lambda: processes_of(ground.data_dir) == [], timeout=10)
    assert processes_of(ground.data_dir) == []
