"""An operator's bound on waiting, on a whole platform and over a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.api import CUSTOM_TOOL, Reader, Refused, api, message, tool
from tests.support.platform import running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

BOUND = {"MANAGED_AGENTS_REQUIRES_ACTION_TIMEOUT_SECONDS": "1"}
ENDED = ["session.error", "session.thread_status_terminated", "session.status_terminated"]
PUBLISHED = {"anthropic_version": "2023-06-01", "anthropic_beta": "managed-agents-2026-04-01"}


def test_a_session_that_waited_before_the_restart_is_ended_after_it(tmp_path: Path) -> None:
    with running_platform(tmp_path / "data") as unbounded:
        session_id = asyncio.run(_park(unbounded.url))
    with running_platform(tmp_path / "data", environment=BOUND) as bounded:
        asyncio.run(_see_it_ended(bounded.url, session_id))


async def _park(url: str) -> str:
    async with api(url) as client:
        session_id = await client.session(await client.agent(tools=[CUSTOM_TOOL]))
        await client.send(session_id, message(tool("lookup", word="w")))
        assert await Reader(client, session_id).follow(lambda event: event["type"] == "session.status_idle")
        assert await client.status(session_id) == "requires_action"
        return session_id


async def _see_it_ended(url: str, session_id: str) -> None:
    async with api(url) as client:
        reader = Reader(client, session_id)
        assert await reader.follow(lambda event: event["type"] == "session.status_terminated")
        assert [event["type"] for event in reader.events[-3:]] == ENDED
        error = reader.events[-3]["error"]
        assert error["type"] == "requires_action_timeout" and error["retry_status"] == "not_retryable"
        assert await client.status(session_id) == "timed_out"
        with pytest.raises(Refused) as refused:
            await client.send(session_id, message("Too late."))
        assert refused.value.body["error"]["code"] == "session_ended"
        assert (await client.call("GET", f"/v1/sessions/{session_id}", **PUBLISHED))["status"] == "terminated"
        log = (await client.call("GET", f"/v1/sessions/{session_id}/events", **PUBLISHED))["data"]
        assert log[-3]["error"]["retry_status"] == {"type": "terminal"}
