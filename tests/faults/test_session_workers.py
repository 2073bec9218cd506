"""Outside workers that serve whole sessions: each effect at most once, each call one result, each turn an end.

The platform and the worker programs are the real ones. Meanwhile workers are killed in the middle of calls, paused past
their lease and let go on, cut off, and restarted, and the queue is killed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from kit.ids import new_id
from kit.testing import await_until
from tests.faults.test_workers import DONE, SHORT_WAITS, Field, Harm, Ledger, field_of, workers_of
from tests.faults.workload import patiently
from tests.support.api import Api, Event, message, tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]
LEASE_SECONDS = 1
# As many as the workers have room for, since a session that rests stays with its worker for a while.
SESSIONS = 5
SHORT_TURNS, LONG_TURNS = 2, 20
HARM = ("kill", "pause", "kill", "cut", "queue", "dead line")
UNKNOWN = ("work_outcome_unknown", "not known")


class Beset(Harm):
    """The harm that tool workers get, done to those that hold sessions."""

    def _busy(self):
        return self._chance.choice(list(self._workers.values()))


async def test_whatever_happens_to_workers_that_serve_sessions(tmp_path: Path, kills: int, seed: int) -> None:
    chance, long = random.Random(seed), kills > 50
    turns = LONG_TURNS if long else SHORT_TURNS
    effects = Ledger(tmp_path / "effects.txt")
    lease = {"MANAGED_AGENTS_SESSION_WORK_SECONDS": str(LEASE_SECONDS), "MANAGED_AGENTS_INBOUND_RATE_LIMIT": "off"}
    async with field_of(tmp_path, SHORT_WAITS, **lease) as ground:
        await _serve_sessions(ground)
        async with workers_of(ground, "one", "two", "three") as workers:
            harm = Beset(ground, workers, chance)
            talks = [
                asyncio.create_task(_converse(ground.client, effects, ground.environment_id, turns))
                for _ in range(SESSIONS)
            ]
            struck = 0
            while not all(talk.done() for talk in talks) and struck < (kills if long else 3):
                await harm.strike(HARM[struck % len(HARM)])
                struck += 1
                await asyncio.sleep(chance.uniform(0.2, 0.8))
            found = [fault for talk in talks for fault in await talk]
            said = {name: worker.said[-3000:] for name, worker in workers.items()}
    twice = [name for name, count in effects.counts().items() if count > 1]
    assert not twice and not found, (twice, found, harm.done, said)
    assert effects.counts()


async def _serve_sessions(ground: Field) -> None:
    """Work in an environment of the session protocol instead."""
    body = {"name": "sessions", "config": {"type": "self_hosted"}}
    made = await ground.client.call("POST", "/v1/environments", body)
    keys = f"/v1/environments/{made['id']}/worker-keys"
    ground.environment_id = made["id"]
    ground.key = (await ground.client.call("POST", keys, {"name": "w"}))["secret_key"]


async def _converse(client: Api, effects: Ledger, environment_id: str, turns: int) -> list[str]:
    """A session whose model makes two calls in each turn; what is wrong with its log."""
    agent_id = await patiently(client.agent)
    body = {"agent": agent_id, "environment_id": environment_id}
    key = new_id("key")
    session_id = (await patiently(lambda: client.call("POST", "/v1/sessions", body, idempotency_key=key)))["id"]
    for turn in range(turns):
        names = [f"{session_id}-{turn}-{each}" for each in "ab"]
        commands = [f"echo {name} >> {effects.effects}; sleep 0.3; echo {DONE}{name}" for name in names]
        text = " ".join(tool("bash", command=command) for command in commands)
        sent = new_id("key")
        await patiently(lambda: client.send(session_id, message(text), key=sent))  # noqa: B023
        await await_until(lambda turn=turn: _turn_is_over(client, session_id, turn), timeout=120)
    log = await patiently(lambda: client.log(session_id))
    return _faults(session_id, log, effects.counts(), 2 * turns)


async def _turn_is_over(client: Api, session_id: str, turn: int) -> bool:
    log = await patiently(lambda: client.log(session_id))
    idles = [event for event in log if event["type"] == "session.status_idle"]
    return sum(event["stop_reason"]["type"] != "requires_action" for event in idles) > turn


def _faults(session_id: str, log: list[Event], counts: Counter[str], expected: int) -> list[str]:
    calls = {event["id"]: event for event in log if event["type"] == "agent.tool_use"}
    results = [event for event in log if event["type"] in ("user.tool_result", "agent.tool_result")]
    answered = Counter(event["tool_use_id"] for event in results)
    found = [f"{session_id}: {call} has {answered[call]} results" for call in calls if answered[call] != 1]
    if len(calls) != expected:
        found.append(f"{session_id} has {len(calls)} calls")
    for event in results:
        text = "".join(block["text"] for block in event["content"])
        name = calls[event["tool_use_id"]]["input"]["command"].split()[1]
        if f"{DONE}{name}" in text:
            if counts[name] != 1:
                found.append(f"{name} is told as done and took effect {counts[name]} times")
        elif not any(word in text for word in UNKNOWN):
            found.append(f"{name} ended as {text!r}")
    return found
