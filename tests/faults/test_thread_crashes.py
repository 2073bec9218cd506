"""A sessions service that kills itself between a coordinator and its threads doubles none and loses no answer.

The places: before the transaction that begins threads commits, before a session hears that a thread is done, and
around the commits of appends.
"""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path

import pytest

from kit.testing import await_until
from tests.e2e.leftovers import processes_of
from tests.faults.ground import Ground
from tests.faults.workload import patiently
from tests.support.api import Api, Event, api, message, tool

POINTS = {
    "before threads are begun": "sessions.threads.begun=kill@2",
    "before an answer is heard": "sessions.threads.before_hearing=kill@4",
    "around commits": "sessions.append.before_commit=kill@20,sessions.append.after_commit=kill@23",
}
TURNS = 4
THREADS = 3


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=[] if place == "around commits" else [pytest.mark.long]) for place in POINTS]
)
async def test_a_death_between_a_coordinator_and_its_threads(tmp_path: Path, place: str) -> None:
    ground = Ground(tmp_path / "data", failpoints=POINTS[place])
    try:
        await ground.until_ready()
        async with api(ground.platform.url) as client:
            session_id = await _team(client)
            for turn in range(TURNS):
                words = [f"answer {turn} {number}" for number in range(THREADS)]
                text = " ".join(tool("start_thread", agent="writer", message=each) for each in words)
                send = partial(client.send, session_id, message(text), key=uuid.uuid4().hex)
                await patiently(send)
                await await_until(lambda: _rests(client, session_id), timeout=60, message=f"turn {turn} is over")
            assert "ended with SIGKILL" in ground.platform.output(), "no point was reached"
            _check(await patiently(lambda: client.log(session_id)))
            listed = await patiently(lambda: client.call("GET", f"/v1/sessions/{session_id}/threads"))
            assert len(listed["data"]) == 1 + TURNS * THREADS
            assert {thread["status"] for thread in listed["data"]} == {"idle"}
    finally:
        ground.stop()
    await await_until(lambda: processes_of(ground.data_dir) == [], timeout=30)


async def _team(client: Api) -> str:
    """A session of a coordinator."""
    writer = await patiently(lambda: client.agent(name="writer", tools=[]))
    multiagent = {"type": "coordinator", "agents": [writer]}
    lead = await patiently(lambda: client.agent(name="lead", tools=[], multiagent=multiagent))
    return await patiently(lambda: client.session(lead))


async def _rests(client: Api, session_id: str) -> bool:
    session = await patiently(lambda: client.call("GET", f"/v1/sessions/{session_id}"))
    return session["status"] == "idle"


def _check(log: list[Event]) -> None:
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    calls = [event["id"] for event in log if event["type"] == "agent.tool_use"]
    results = [event for event in log if event["type"] == "agent.tool_result"]
    assert len(calls) == TURNS * THREADS
    assert sorted(event["tool_use_id"] for event in results) == sorted(calls)
    assert not any(event["is_error"] for event in results)
    made = [event for event in log if event["type"] == "session.thread_created"]
    heard = [event for event in log if event["type"] == "agent.thread_message_received"]
    assert len(made) == len(heard) == len(calls)
