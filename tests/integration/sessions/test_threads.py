"""Threads of a coordinator: started, answered, awaited, counted, and ended with their session."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.sessions.thread_driver import coordinator
from tests.integration.sessions.turn_driver import MIGRATIONS, Replica, answer, end, replica, types


@pytest.fixture
async def one(make_database: Any, nats_url: str) -> AsyncIterator[Replica]:
    """A replica of the sessions service."""
    with tempfile.TemporaryDirectory(prefix="ma-") as folder:
        dsn = await make_database("sessions", MIGRATIONS)
        async with replica(dsn, nats_url, Path(folder), sweep_seconds=0.1) as clients:
            yield clients


async def test_a_thread_answers_the_call_that_started_it(one: Replica) -> None:
    async with coordinator(one) as lead:
        grant = await lead.begin()
        (thread_id,) = await lead.start(grant, "writer")
        assert await lead.status() == "running"
        await lead.finish(thread_id, "a poem")

        again = await lead.turn_of(lead.id)
        log = await lead.log()

        assert types(log)[3:] == [
            "agent.tool_use",
            "session.thread_created",
            "agent.thread_message_sent",
            "session.thread_status_running",
            "agent.thread_message_received",
            "session.thread_status_idle",
            "agent.tool_result",
        ]
        result = log[-1]
        assert result["tool_use_id"] == log[3]["id"]
        assert [block["text"] for block in result["content"]] == [f"Thread {thread_id} (writer):", "a poem"]
        await one.append(again, *answer(), end=end())
        assert types(await lead.log())[-3:] == [
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
        ]
        assert types(await lead.thread_log(thread_id)) == [
            "agent.thread_message_received",
            "session.thread_status_running",
            "span.model_request_start",
            "agent.message",
            "span.model_request_end",
            "agent.thread_message_sent",
            "session.thread_status_idle",
        ]
