"""A turn that is given up leaves nothing open: its model request has an end and its calls have results before idle."""

from typing import Any

import pytest

from kit.testing import await_until
from tests.integration.sessions.turn_driver import Replica, call, event, lapse, user

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def _lose_three_times(one: Replica, dsn: str, *last_words: Any) -> list[dict[str, Any]]:
    session_id = await one.create_session(user())

    async def gone() -> bool:
        return await one.status(session_id) == "idle"

    for attempt in range(1, 4):
        async with one.runner() as runner:
            grant = await runner.granted()
            if attempt == 3:
                await one.append(grant, *last_words)
        await lapse(dsn, session_id)
    await await_until(gone)
    return await one.log(session_id)


async def test_the_model_request_of_a_turn_that_is_given_up_ends(one: Replica, dsn: str) -> None:
    start = event("span.model_request_start")
    log = await _lose_three_times(one, dsn, start)
    ends = [entry for entry in log if entry["type"] == "span.model_request_end"]
    assert [(entry["model_request_start_id"], entry["is_error"]) for entry in ends] == [(start.id, True)]
    assert ends[0]["seq"] < log[-1]["seq"] and log[-1]["type"] == "session.status_idle"


async def test_the_calls_of_a_turn_that_is_given_up_get_results(one: Replica, dsn: str) -> None:
    asked = call("agent.tool_use", "toolu_1")
    log = await _lose_three_times(one, dsn, asked)
    results = [entry for entry in log if entry["type"] == "agent.tool_result"]
    assert [(entry["tool_use_id"], entry["is_error"]) for entry in results] == [(asked.id, True)]
    assert results[0]["seq"] < log[-1]["seq"]
