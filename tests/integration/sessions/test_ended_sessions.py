"""A session that is ended while a call is open has a result for it in its log, whether its runner lives or not."""

from typing import Any

import pytest

from kit.testing import await_until
from managed_agents.sessions.v1 import sessions_pb2, turns_pb2
from tests.integration.sessions.turn_driver import Replica, call, end, event, lapse, user

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def _open_call(one: Replica, dsn: str, where: str) -> tuple[str, turns_pb2.TurnEvent]:
    """A session with a call whose result is missing, and the call."""
    session_id = await one.create_session(user())
    asked = call("agent.tool_use", "toolu_1")
    async with one.runner() as runner:
        grant = await runner.granted()
        await one.append(grant, event("span.model_request_start"), asked)
        if where == "parked":
            await one.append(grant, end=end("REQUIRES_ACTION", event_ids=[asked.id]))
        elif where == "running":
            return session_id, asked
    if where == "runner died":
        await lapse(dsn, session_id)

        async def taken_back() -> bool:
            return await one.status(session_id) == "rescheduling"

        await await_until(taken_back)
    return session_id, asked


@pytest.mark.parametrize("where", ["running", "runner died", "parked"])
async def test_a_stop_gives_open_calls_their_results(one: Replica, dsn: str, where: str) -> None:
    session_id, asked = await _open_call(one, dsn, where)
    await one.sessions.StopSession(sessions_pb2.StopSessionRequest(session_id=session_id))
    _check(await one.log(session_id), asked, last="session.status_terminated")
    await one.sessions.StopSession(sessions_pb2.StopSessionRequest(session_id=session_id))
    _check(await one.log(session_id), asked, last="session.status_terminated")


async def test_an_archive_gives_parked_calls_their_results(one: Replica, dsn: str) -> None:
    session_id, asked = await _open_call(one, dsn, "parked")
    await one.sessions.ArchiveSession(sessions_pb2.ArchiveSessionRequest(session_id=session_id))
    _check(await one.log(session_id), asked, last="agent.tool_result")


def _check(log: list[dict[str, Any]], asked: turns_pb2.TurnEvent, *, last: str) -> None:
    results = [entry for entry in log if entry["type"] == "agent.tool_result"]
    assert [(entry["tool_use_id"], entry["is_error"]) for entry in results] == [(asked.id, True)]
    assert results[0]["content"][0]["text"].startswith("Interrupted")
    assert results[0]["metadata"] == {"tool_use_id": "toolu_1"}
    ended = [entry for entry in log if entry["type"] == "span.model_request_end"]
    assert [entry["is_error"] for entry in ended] == [True]
    assert log[-1]["type"] == last
