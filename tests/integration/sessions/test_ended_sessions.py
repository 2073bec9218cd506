"""A session that is ended while a call is open has a result for it in its log, whether its runner lives or not."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.testing import await_until
from managed_agents.sessions.v1 import sessions_pb2, turns_pb2
from tests.integration.sessions.turn_driver import MIGRATIONS, Replica, call, end, event, replica, user

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package")
async def short(make_database: Any, nats_url: str) -> AsyncIterator[Replica]:
    """A replica whose leases are short."""
    dsn = await make_database("sessions", MIGRATIONS)
    with tempfile.TemporaryDirectory(prefix="ma-") as folder:
        async with replica(dsn, nats_url, Path(folder), lease_seconds=0.5, sweep_seconds=0.05) as clients:
            yield clients


async def _open_call(short: Replica, where: str) -> tuple[str, turns_pb2.TurnEvent]:
    """A session with a call whose result is missing, and the call."""
    session_id = await short.create_session(user())
    asked = call("agent.tool_use", "toolu_1")
    async with short.runner() as runner:
        grant = await runner.granted()
        await short.append(grant, event("span.model_request_start"), asked)
        if where == "parked":
            await short.append(grant, end=end("REQUIRES_ACTION", event_ids=[asked.id]))
        elif where == "running":
            return session_id, asked
    if where == "runner died":

        async def taken_back() -> bool:
            return await short.status(session_id) == "rescheduling"

        await await_until(taken_back)
    return session_id, asked


@pytest.mark.parametrize("where", ["running", "runner died", "parked"])
async def test_a_stop_gives_open_calls_their_results(short: Replica, where: str) -> None:
    session_id, asked = await _open_call(short, where)
    await short.sessions.StopSession(sessions_pb2.StopSessionRequest(session_id=session_id))
    _check(await short.log(session_id), asked, last="session.status_terminated")
    await short.sessions.StopSession(sessions_pb2.StopSessionRequest(session_id=session_id))
    _check(await short.log(session_id), asked, last="session.status_terminated")


async def test_an_archive_gives_parked_calls_their_results(short: Replica) -> None:
    session_id, asked = await _open_call(short, "parked")
    await short.sessions.ArchiveSession(sessions_pb2.ArchiveSessionRequest(session_id=session_id))
    _check(await short.log(session_id), asked, last="agent.tool_result")


def _check(log: list[dict[str, Any]], asked: turns_pb2.TurnEvent, *, last: str) -> None:
    results = [entry for entry in log if entry["type"] == "agent.tool_result"]
    assert [(entry["tool_use_id"], entry["is_error"]) for entry in results] == [(asked.id, True)]
    assert results[0]["content"][0]["text"].startswith("Interrupted")
    assert results[0]["metadata"] == {"tool_use_id": "toolu_1"}
    ended = [entry for entry in log if entry["type"] == "span.model_request_end"]
    assert [entry["is_error"] for entry in ended] == [True]
    assert log[-1]["type"] == last
