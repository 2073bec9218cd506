"""After a restart of everything the model remembers the conversation, and what waited for an answer takes it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from kit.testing import await_until
from tests.faults.ground import RUNNERS, Ground
from tests.support.api import CUSTOM_TOOL, TOOLS, Event, Reader, api, message
from tests.support.chat import breaks_off, called, environment, said
from tests.support.vendor import Answer, Vendor, vendor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@asynccontextmanager
async def _ground(tmp_path: Path, *answers: Answer) -> AsyncIterator[tuple[Ground, Vendor]]:
    async with vendor(*answers) as scripted:
        ground = Ground(tmp_path / "data", environment=environment(scripted))
        try:
            await ground.until_ready()
            yield ground, scripted
        finally:
            await asyncio.to_thread(ground.stop)


def _is_idle(event: Event) -> bool:
    return event["type"] == "session.status_idle"


async def test_a_parked_session_outlives_the_end_of_everything(tmp_path: Path) -> None:
    answers = (called("bash", command="echo kept > mine.txt"), called("lookup", word="violet"), said("I remember."))
    async with _ground(tmp_path, *answers) as (ground, scripted), api(ground.platform.url) as client:
        session_id = await client.session(await client.agent(tools=[*TOOLS, CUSTOM_TOOL]))
        reader = Reader(client, session_id)
        await client.send(session_id, message("The word is violet."))
        assert await reader.follow(_is_idle)
        (call_id,) = reader.events[-1]["stop_reason"]["event_ids"]

        ground.kill_everything()
        await asyncio.to_thread(ground.start_again)
        await ground.until_ready()

        assert await client.status(session_id) == "requires_action"
        content = [{"type": "text", "text": "a colour"}]
        answer = {"type": "user.custom_tool_result", "custom_tool_use_id": call_id, "content": content}
        await client.send(session_id, answer)
        await reader.follow_over_failures(_is_idle)
        assert reader.events[-1]["stop_reason"] == {"type": "end_turn"}
        last = orjson.dumps(scripted.requests[-1]["messages"]).decode()
        assert all(word in last for word in ("The word is violet.", "echo kept", "lookup", "a colour"))
        workspace = ground.workspace(session_id)
        assert workspace is not None and (workspace / "mine.txt").read_text() == "kept\n"


async def test_a_model_request_that_dies_with_everything_is_asked_again(tmp_path: Path) -> None:
    answers = (breaks_off("Half an"), said("A whole answer."))
    async with _ground(tmp_path, *answers) as (ground, scripted), api(ground.platform.url) as client:
        session_id = await client.session(await client.agent())
        await client.send(session_id, message("Answer me."))
        await await_until(lambda: len(scripted.requests) == 1, timeout=20)

        ground.kill_everything()
        await asyncio.to_thread(ground.start_again)
        await ground.until_ready()

        reader = Reader(client, session_id)
        await reader.follow_over_failures(_is_idle)
        texts = [one["content"][0]["text"] for one in reader.events if one["type"] == "agent.message"]
        assert texts == ["A whole answer."]
        assert "session.status_rescheduled" in [event["type"] for event in reader.events]
        first, second = ([one for one in asked["messages"] if one["role"] == "user"] for asked in scripted.requests)
        assert first == second


async def test_a_message_that_no_runner_can_take_waits_for_one(tmp_path: Path) -> None:
    async with _ground(tmp_path, said("Here I am.")) as (ground, _), api(ground.platform.url) as client:
        agent_id = await client.agent()
        killed = {name: ground.signal(name, signal.SIGKILL) for name in RUNNERS}
        session_id = await client.session(agent_id, initial_events=[message("Anybody?")])
        assert await client.status(session_id) in ("running", "rescheduling")
        for name, pid in killed.items():
            await ground.until_back(name, pid)
        reader = Reader(client, session_id)
        await reader.follow_over_failures(_is_idle)
        assert reader.events[-1]["stop_reason"] == {"type": "end_turn"}


async def test_what_a_stream_has_shown_outlives_the_death_of_the_database(tmp_path: Path) -> None:
    """Markers as well: one that is lost leaves its seq to another event, and the stream is not the log any more."""
    async with _ground(tmp_path, breaks_off("Half an")) as (ground, _), api(ground.platform.url) as client:
        session_id = await client.session(await client.agent())
        reader = Reader(client, session_id)
        following = asyncio.create_task(reader.follow(lambda event: event["type"] == "span.model_request_start"))
        await client.send(session_id, message("Answer me."))
        assert await following
        killed = ground.signal("postgres", signal.SIGKILL)
        await ground.until_back("postgres", killed)
        log = await client.log(session_id)
        assert [event["id"] for event in log[: reader.last_seq]] == [event["id"] for event in reader.events]
