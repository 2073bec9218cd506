"""A coordinator and its threads share one budget: each pauses before its next request, and a raise resumes them all."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest

from kit.errors import DomainError
from kit.testing import await_until
from managed_agents.sessions.v1 import agents_pb2, sessions_pb2
from services.sessions.app import MIGRATIONS
from services.worker.runner.models.base import ModelDelta, ModelInfo, ModelRequest
from tests.integration.runner.harness import World, of, types, world
from tests.integration.runner.played import ASKING, TOOLSET, PlayedSandboxes, call, say
from tests.integration.runner.test_threads import thread_log, threads_of

# Only what the model says costs: a cent a token.
_PRICE = {"input": 0, "output": "10000", "cache_read": 0, "cache_write_5m": 0, "cache_write_1h": 0}
PAUSE = ["session.thread_status_idle", "session.usage", "session.status_idle"]
# What an answer with calls takes, however many they are, and what one without takes.
CALLED, SAID = 8, 5


class Cast:
    """The coordinator starts some threads, each writer runs a command where it has tools, and then they say so."""

    def __init__(self, writers: int = 1, meet: Callable[[], Awaitable[Any]] | None = None) -> None:
        self._writers = writers
        self._meet = meet
        self.asked_of_writers = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta, None]:
        """By who is asked, and whether its calls have their results."""
        is_first = not any(block["type"] == "tool_result" for each in request.messages for block in each.content)
        if request.system.startswith("You are the lead"):
            task = ("start_thread", {"agent": "writer", "message": "write"})
            parts = call(*[task] * self._writers) if is_first else say("all is written")
        else:
            self.asked_of_writers += 1
            if self._meet is not None:
                await self._meet()
            parts = call(("bash", {"command": "ls"})) if is_first and request.tools else say("written")
        for part in parts:
            assert isinstance(part, ModelDelta)
            yield part

    async def list_models(self) -> list[ModelInfo]:
        """None."""
        return []

    async def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
async def stage(make_database: Any, nats_url: str) -> AsyncIterator[World]:
    profile = orjson.dumps({"models": {"default": _PRICE}}).decode()
    async with world(await make_database("sessions", MIGRATIONS), nats_url, cost_profile=profile) as made:
        yield made


def cents(amount: int) -> dict[str, Any]:
    return {"type": "limit", "max_list_cost": {"amount": str(amount), "currency": "USD"}}


async def saved(stage: World, name: str, *tools: Any, **fields: Any) -> str:
    agent = {"name": name, "model": "default", "system": f"You are the {name}.", "tools": list(tools)} | fields
    request = agents_pb2.CreateAgentRequest(definition_json=orjson.dumps(agent))
    return (await stage.clients.agents.CreateAgent(request)).agent.id


async def team(stage: World, amount: int, *tools: Any, writer_model: str = "default") -> str:
    """A budgeted session of a coordinator whose writer has these tools."""
    writer = await saved(stage, "writer", *tools, model=writer_model)
    lead = await saved(stage, "lead", multiagent={"type": "coordinator", "agents": [writer]})
    body = {"agent": lead, "budget": cents(amount)}
    request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps(body))
    return (await stage.clients.sessions.CreateSession(request)).session.id


async def session_of(stage: World, session_id: str) -> sessions_pb2.Session:
    return (await stage.clients.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=session_id))).session


async def change(stage: World, session_id: str, budget: Any) -> None:
    patch = orjson.dumps({"budget": budget})
    await stage.clients.sessions.UpdateSession(
        sessions_pb2.UpdateSessionRequest(session_id=session_id, patch_json=patch)
    )


async def until_paused(stage: World, session_id: str) -> list[dict[str, Any]]:
    async def is_paused() -> bool:
        session = await session_of(stage, session_id)
        return session.status == sessions_pb2.SESSION_STATUS_IDLE and b"budget_reached" in session.stop_reason_json

    await await_until(is_paused)
    return await stage.clients.log(session_id)


async def until_done(stage: World, session_id: str) -> list[dict[str, Any]]:
    async def is_done() -> bool:
        session = await session_of(stage, session_id)
        return session.status == sessions_pb2.SESSION_STATUS_IDLE and b"end_turn" in session.stop_reason_json

    await await_until(is_done)
    return await stage.clients.log(session_id)


async def test_what_a_thread_spends_is_the_sessions_and_pauses_both(stage: World) -> None:
    # The coordinator's call stays below, the thread's own call goes over.
    session_id = await team(stage, CALLED + 1, TOOLSET)
    async with stage.runner(Cast(), PlayedSandboxes()):
        await stage.say(session_id, "go")
        log = await until_paused(stage, session_id)
        assert types(log)[-3:] == PAUSE
        assert [event["stop_reason"] for event in (log[-1], log[-3])] == [{"type": "budget_reached"}] * 2
        assert log[-2]["usage"]["list_cost"] == 2 * CALLED
        # The call of the coordinator still waits for the thread, which still has its answer to give.
        assert of(log, "agent.tool_result") == []
        (thread,) = await threads_of(stage, session_id)
        own = await thread_log(stage, session_id, thread.id)
        assert types(own)[-2:] == ["agent.tool_result", "session.thread_status_idle"]
        assert own[-1]["stop_reason"] == {"type": "budget_reached"}
        with pytest.raises(DomainError) as refused:
            await stage.say(session_id, "more")
        assert refused.value.reason == "BUDGET_REACHED"

        await change(stage, session_id, cents(100_000))
        log = await until_done(stage, session_id)
    assert len(of(log, "agent.thread_message_received")) == 1
    assert len(of(log, "agent.tool_result")) == 1
    assert of(log, "agent.message")


async def test_a_removal_resumes_threads_too(stage: World) -> None:
    session_id = await team(stage, CALLED + 1, TOOLSET)
    async with stage.runner(Cast(2), PlayedSandboxes()):
        await stage.say(session_id, "go")
        await until_paused(stage, session_id)
        await change(stage, session_id, None)
        log = await until_done(stage, session_id)
    assert len(of(log, "agent.thread_message_received")) == 2
    assert log[-2]["usage"]["list_cost"] == 3 * CALLED + 3 * SAID
    session = await session_of(stage, session_id)
    threads = await threads_of(stage, session_id)
    own = session.usage.output_tokens - sum(thread.usage.output_tokens for thread in threads)
    assert session.list_cost_cents == session.usage.output_tokens and own > 0


async def test_each_thread_pauses_before_its_next_request(stage: World) -> None:
    session_id = await team(stage, CALLED + 1, TOOLSET)
    cast = Cast(3, asyncio.Barrier(3).wait)
    async with stage.runner(cast, PlayedSandboxes()):
        await stage.say(session_id, "go")
        log = await until_paused(stage, session_id)
    # Three were in flight when the ceiling was crossed; not one more began.
    assert cast.asked_of_writers == 3
    assert log[-2]["usage"]["list_cost"] == 4 * CALLED
    for thread in await threads_of(stage, session_id):
        own = await thread_log(stage, session_id, thread.id)
        assert own[-1]["stop_reason"] == {"type": "budget_reached"}


async def test_a_thread_that_starts_at_the_ceiling_asks_nothing(stage: World) -> None:
    session_id = await team(stage, CALLED)
    async with stage.runner(Cast()):
        await stage.say(session_id, "go")
        await until_paused(stage, session_id)
        (thread,) = await threads_of(stage, session_id)
        assert of(await thread_log(stage, session_id, thread.id), "span.model_request_start") == []
        await change(stage, session_id, cents(100_000))
        log = await until_done(stage, session_id)
    assert len(of(log, "agent.thread_message_received")) == 1


async def test_a_threads_pending_confirmation_wins(stage: World) -> None:
    session_id = await team(stage, CALLED + 1, ASKING)
    async with stage.runner(Cast(), PlayedSandboxes()):
        await stage.say(session_id, "go")
        log = await stage.until(session_id, "requires_action")
        assert log[-1]["stop_reason"]["type"] == "requires_action"
        (call_id,) = log[-1]["stop_reason"]["event_ids"]
        answer = {"type": "user.tool_confirmation", "tool_use_id": call_id, "result": "allow"}
        await stage.clients.send(session_id, answer)
        log = await until_paused(stage, session_id)
        await change(stage, session_id, None)
        assert (await until_done(stage, session_id))[-1]["stop_reason"] == {"type": "end_turn"}


async def test_every_model_of_the_roster_needs_a_list_price(stage: World) -> None:
    with pytest.raises(DomainError) as refused:
        await team(stage, 500, writer_model="claude-unlisted")
    assert refused.value.reason == "BUDGET_MODEL_WITHOUT_LIST_PRICE"
    assert "claude-unlisted" in refused.value.message


async def test_a_paused_session_with_threads_can_be_ended(stage: World) -> None:
    session_id = await team(stage, CALLED + 1, TOOLSET)
    async with stage.runner(Cast(), PlayedSandboxes()):
        await stage.say(session_id, "go")
        await until_paused(stage, session_id)
        await stage.clients.sessions.ArchiveSession(sessions_pb2.ArchiveSessionRequest(session_id=session_id))
    log = await stage.clients.log(session_id)
    results = {event["tool_use_id"] for event in of(log, "agent.tool_result")}
    assert results == {event["id"] for event in of(log, "agent.tool_use")}
