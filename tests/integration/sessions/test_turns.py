"""Turns over real servers: grants, order of events, queued input, fencing, two replicas."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.sessions.turn_driver import MIGRATIONS, Replica, answer, end, replica, types, user


@pytest.fixture
def folder() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ma-") as name:
        yield Path(name)


@pytest.fixture
async def dsn(make_database) -> str:
    return await make_database("sessions", MIGRATIONS)


@pytest.fixture
async def one(dsn: str, nats_url: str, folder: Path) -> AsyncIterator[Replica]:
    async with replica(dsn, nats_url, folder, sweep_seconds=0.1) as clients:
        yield clients


async def test_a_plain_turn_is_granted_at_once_and_written_in_order(one: Replica) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        stored = await one.send(session_id, user("hello"))
        grant = await runner.granted()
        assert (grant.session.id, grant.epoch, grant.attempt) == (session_id, 1, 1)
        assert [entry.type for entry in grant.context] == ["user.message"]
        assert grant.context_complete
        ended = await one.append(grant, *answer(), end=end())
        assert ended.ended
    log = await one.log(session_id)
    assert types(log) == [
        "user.message",
        "session.status_running",
        "session.thread_status_running",
        "span.model_request_start",
        "agent.message",
        "span.model_request_end",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]
    assert [entry["seq"] for entry in log] == list(range(1, 10))
    assert log[-1]["stop_reason"] == {"type": "end_turn"}
    assert [entry.id for entry in stored.events] == [log[0]["id"]]
    assert await one.status(session_id) == "idle"
