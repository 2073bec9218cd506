"""Nothing acknowledged is lost and nothing runs twice, whatever is killed with -9 or paused past its lease."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from kit.testing import await_until
from managed_agents.sessions.v1.events_pb2 import EventsAppended
from tests.e2e.leftovers import processes_of
from tests.faults.census import census, grown
from tests.faults.durable import DurableConsumer, stream_of
from tests.faults.ground import RUNNERS, Ground, seen
from tests.faults.history import epoch_faults, faults_of, line_faults, stream_faults
from tests.faults.nemesis import KINDS, Nemesis
from tests.faults.workload import Client
from tests.support.api import CUSTOM_TOOL, TOOLS, Api, Event, api, message, tool
from tests.support.rows import database_of, turns_under_way

pytestmark = [pytest.mark.slow]
QUIET_SECONDS = 60
# An event whose writer was killed before its line reached the log stays without a witness.
WITNESSED = 0.5


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
    streamed = stream_faults(one.reader.events, log)
    workspace = ground.workspace(told.session_id)
    runs = workspace / "runs.txt" if workspace else None
    lines = runs.read_text().split() if runs is not None and runs.exists() else []
    found = streamed + faults_of(log, told.acknowledged, told.unsure) + line_faults(log, told.lines, lines)
    if await client.status(told.session_id) != "idle":
        found.append("the session is not idle")
    if found:
        found += [f"{event['seq']} {event['type']} {event.get('stop_reason', '')}" for event in log]
    return [f"{told.session_id}: {fault}" for fault in found]


async def check_outbox(ground: Ground, logs: dict[str, list[Event]]) -> set[str]:
    """Each append reached the stream, and reached it once. Answers with the ids of all messages."""
    with database_of(ground.platform) as rows:
        await await_until(lambda: rows.execute("SELECT count(*) FROM sessions.outbox").fetchone() == (0,), timeout=30)
    announced: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    async for sent in stream_of(ground.data_dir):
        messages[sent.headers["Nats-Msg-Id"]] += 1
        announced.update(reference.id for reference in EventsAppended.FromString(sent.data).events)
    assert max(messages.values(), default=1) == 1, messages.most_common(5)
    for session_id, log in logs.items():
        counts = {event["id"]: announced[event["id"]] for event in log if announced[event["id"]] != 1}
        assert not counts, f"{session_id}: {counts}"
    return set(messages)


async def _check_durable(durable: DurableConsumer, messages: set[str]) -> None:
    """Each message reached the consumer, and had its effect once."""
    assert not durable.ended()
    with suppress(AssertionError):
        await await_until(lambda: set(durable.effects()) >= messages, timeout=QUIET_SECONDS)
    effects = durable.effects()
    assert set(effects) == messages
    assert max(effects.values()) == 1, effects.most_common(5)


def _check_epochs(ground: Ground, logs: dict[str, list[Event]]) -> None:
    wrote = ground.appends()
    of_runners = [one["id"] for log in logs.values() for one in log if one["type"].startswith(("agent.", "span."))]
    assert sum(name in wrote for name in of_runners) > WITNESSED * len(of_runners), "runners did not tell what they did"
    faults = [f"{session_id}: {fault}" for session_id, log in logs.items() for fault in epoch_faults(log, wrote)]
    assert not faults, "\n".join(faults)


async def _settled_census(ground: Ground) -> Counter[str]:
    """What is held once a few sessions have come and gone, and each runner has run a tool: it begins with that."""
    async with api(ground.platform.url) as client:
        agent_id = await client.agent(tools=[*TOOLS, CUSTOM_TOOL])
        clients = [Client(client, random.Random(number), agent_id) for number in range(4)]
        await asyncio.gather(*(one.run(lambda one=one: one.turns >= 2) for one in clients))
        await _delete(client, [one.told.session_id for one in clients])
        begin = [message(tool("bash", command="sleep 1"))]
        ids = await asyncio.gather(*(client.session(agent_id, initial_events=begin) for _ in range(len(RUNNERS) * 2)))
        for session_id in ids:
            await seen(lambda name=session_id: ground.idle(name), QUIET_SECONDS, "a first tool has run")
        await _delete(client, ids)
        used = {runner for runner, _ in ground.appends().values()}
        assert used == set(RUNNERS), f"only {used} got turns"
    last: list[Counter[str]] = [Counter()]

    async def is_still() -> bool:
        last.append(await census(ground))
        # The durable one, the one that the runners of a host share, and the two of the queue.
        whole = last[-1]["consumers of the stream"] == 4
        # Each runner follows deletions from its first look at the stream on, the second one maybe later.
        alike = last[-1]["subscriptions of runner"] % len(RUNNERS) == 0
        return last[-1] == last[-2] and whole and alike

    await await_until(is_still, QUIET_SECONDS, "nothing comes or goes any more")
    return last[-1]


async def _delete(client: Api, session_ids: list[str]) -> None:
    for session_id in session_ids:
        await client.call("DELETE", f"/v1/sessions/{session_id}")


async def _check_leaks(ground: Ground, before: Counter[str]) -> None:
    """Nobody holds on to anything once all sessions are gone."""
    with database_of(ground.platform) as rows:
        assert turns_under_way(rows) == 0
    more: dict[str, tuple[int, int]] = {}

    async def nothing_grew() -> bool:
        more.clear()
        more.update(grown(before, await census(ground)))
        return not more

    with suppress(AssertionError):
        await await_until(nothing_grew, QUIET_SECONDS)
    assert not more, f"held before and after the run: {more}"


@pytest.mark.timeout(0)
async def test_whatever_is_killed_nothing_is_lost_and_nothing_runs_twice(
    tmp_path: Path, kills: int, sessions: int, seed: int
) -> None:
    ground = Ground(tmp_path / "data", environment={"MANAGED_AGENTS_LOG_LEVEL": "debug"})
    durable = DurableConsumer(ground.data_dir)
    try:
        await ground.until_ready()
        durable.prepare()
        before = await _settled_census(ground)
        nemesis = Nemesis(ground, random.Random(seed), durable)
        async with api(ground.platform.url) as client:
            striking = asyncio.create_task(nemesis.strike_at_random(kills))
            clients = await _work_under(striking, client, sessions, seed)
            assert nemesis.done.total() == kills and set(KINDS[:kills]) <= set(nemesis.done)
            faults = [fault for one in clients for fault in await check_session(ground, client, one)]
            assert not faults, "\n".join(faults)
            assert all(one.turns >= 2 for one in clients)
            logs = {one.told.session_id: await client.log(one.told.session_id) for one in clients}
            _check_epochs(ground, logs)
            await _check_durable(durable, await check_outbox(ground, logs))
            await _delete(client, list(logs))
        await _check_leaks(ground, before)
        print(f"seed {seed}: {dict(nemesis.done)}, {sum(map(len, logs.values()))} events in {len(logs)} sessions")
    finally:
        durable.kill()
        ground.stop()
    with suppress(AssertionError):
        await await_until(lambda: processes_of(ground.data_dir) == [], timeout=30)
    assert processes_of(ground.data_dir) == []
