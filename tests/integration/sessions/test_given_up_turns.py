"""A turn that is given up leaves nothing open: its model request has an end and its calls have results before idle."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.testing import await_until
from tests.integration.sessions.turn_driver import MIGRATIONS, Replica, call, event, replica, user

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package")
async def short(make_database: Any, nats_url: str) -> AsyncIterator[Replica]:
    """A replica whose leases are short."""
    dsn = await make_database("sessions", MIGRATIONS)
    with tempfile.TemporaryDirectory(prefix="ma-") as folder:
        async with replica(dsn, nats_url, Path(folder), lease_seconds=0.4, sweep_seconds=0.05) as clients:
            yield clients


async def _lose_three_times(short: Replica, *last_words: Any) -> list[dict[str, Any]]:
    session_id = await short.create_session(user())

    async def gone() -> bool:
        return await short.status(session_id) == "idle"

    for attempt in range(1, 4):
        async with short.runner() as runner:
            grant = await runner.granted()
            if attempt == 3:
                await short.append(grant, *last_words)
    await await_until(gone)
    return await short.log(session_id)


async def test_the_model_request_of_a_turn_that_is_given_up_ends(short: Replica) -> None:
    start = event("span.model_request_start")
    log = await _lose_three_times(short, start)
    ends = [entry for entry in log if entry["type"] == "span.model_request_end"]
    assert [(entry["model_request_start_id"], entry["is_error"]) for entry in ends] == [(start.id, True)]
    assert ends[0]["seq"] < log[-1]["seq"] and log[-1]["type"] == "session.status_idle"


async def test_the_calls_of_a_turn_that_is_given_up_get_results(short: Replica) -> None:
    asked = call("agent.tool_use", "toolu_1")
    log = await _lose_three_times(short, asked)
    results = [entry for entry in log if entry["type"] == "agent.tool_result"]
    assert [(entry["tool_use_id"], entry["is_error"]) for entry in results] == [(asked.id, True)]
    assert results[0]["seq"] < log[-1]["seq"]
