"""The published client works with outcomes under strict validation, without a key: declare, revise, interrupt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from kit.testing import await_until
from tests.contract.client_flow import Flow, user
from tests.support.platform import Platform

pytestmark = [pytest.mark.timeout(120)]

# The demo agent repeats the beginning of what it is told, so that the last point takes it a revision.
REVISED = "- It mentions the outcome\n" * 20 + "- It mentions zebras"
MISSING = "The record does not show:\n- It mentions zebras"


@pytest.fixture
async def flow(platform: Platform) -> AsyncIterator[Flow]:
    async with anthropic.AsyncAnthropic(
        api_key="any", base_url=platform.url, max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield Flow(client)


def outcome(rubric: str, **fields: Any) -> dict[str, Any]:
    """A declaration."""
    text = {"type": "text", "content": rubric}
    return {"type": "user.define_outcome", "description": "Describe a zoo.", "rubric": text, **fields}


async def idle(flow: Flow, session_id: str, times: int = 1) -> None:
    """Waits until the session has come to rest so many times."""

    async def rests() -> bool:
        log = await log_of(flow, session_id)
        return sum(event.type == "session.status_idle" for event in log) >= times

    await await_until(rests, timeout=30)


async def log_of(flow: Flow, session_id: str) -> list[Any]:
    """The whole log."""
    return [event async for event in flow.sessions.events.list(session_id, limit=100)]


def ends(log: list[Any]) -> list[Any]:
    """The ends of evaluations."""
    return [event for event in log if event.type == "span.outcome_evaluation_end"]


async def test_an_outcome_from_its_declaration_to_its_result(flow: Flow) -> None:
    agent = await flow.client.beta.agents.create(name="a", model="default", system="s")
    session = await flow.sessions.create(agent=agent.id, environment_id=flow.environment)
    heard: list[Any] = []
    async with await flow.sessions.events.stream(session.id) as stream:
        sent = await flow.sessions.events.send(session.id, events=[outcome(REVISED)])
        async for event in stream:
            heard.append(event)
            if event.type == "session.status_idle":
                break
    (declared,) = sent.data
    assert (declared.description, declared.rubric.content, declared.max_iterations) == ("Describe a zoo.", REVISED, 3)
    assert [event.id for event in heard] == [event.id for event in await log_of(flow, session.id)]
    first, last = ends(heard)
    assert [(end.outcome_id, end.iteration, end.result) for end in (first, last)] == [
        (declared.outcome_id, 0, "needs_revision"),
        (declared.outcome_id, 1, "satisfied"),
    ]
    starts = [event for event in heard if event.type == "span.outcome_evaluation_start"]
    assert [start.id for start in starts] == [end.outcome_evaluation_start_id for end in (first, last)]
    assert sum(event.type == "span.outcome_evaluation_ongoing" for event in heard) == 2
    assert first.usage.input_tokens > 0
    (revision,) = [event for event in heard if event.type == "user.message"]
    assert revision.content[0].text == first.explanation == MISSING
    assert heard[-1].stop_reason.type == "end_turn"
    (shown,) = (await flow.sessions.retrieve(session.id)).outcome_evaluations
    assert (shown.outcome_id, shown.result, shown.iteration) == (declared.outcome_id, "satisfied", 1)
    assert shown.completed_at is not None and shown.description == "Describe a zoo."


async def test_the_last_evaluation_and_what_follows_it(flow: Flow) -> None:
    agent = await flow.client.beta.agents.create(name="a", model="default", system="s")
    session = await flow.sessions.create(
        agent=agent.id,
        environment_id=flow.environment,
        initial_events=[user("Be quick."), outcome("GRADE:needs_revision", max_iterations=1)],
    )
    assert session.status == "running"
    assert [shown.result for shown in session.outcome_evaluations] == ["pending"]
    await idle(flow, session.id)
    log = await log_of(flow, session.id)
    (end,) = ends(log)
    assert (end.iteration, end.result) == (0, "max_iterations_reached")
    after = [event.type for event in log if event.processed_at > end.processed_at]
    assert "agent.message" in after and "span.outcome_evaluation_start" not in after


async def test_an_interrupt_and_a_rubric_that_is_not_there(flow: Flow) -> None:
    agent = await flow.client.beta.agents.create(name="a", model="default", system="s")
    slow = {**outcome("It is done."), "description": "LEN:4 DELAY:500"}
    session = await flow.sessions.create(agent=agent.id, environment_id=flow.environment, initial_events=[slow])
    await flow.sessions.events.send(session.id, events=[{"type": "user.interrupt"}])
    await idle(flow, session.id)
    (end,) = ends(await log_of(flow, session.id))
    assert (end.result, end.outcome_evaluation_start_id) == ("interrupted", "")
    filed = {**outcome("x"), "rubric": {"type": "file", "file_id": "file_none"}}
    await flow.sessions.events.send(session.id, events=[filed])
    await idle(flow, session.id, 2)
    log = await log_of(flow, session.id)
    assert [each.result for each in ends(log)] == ["interrupted", "failed"]
    (error,) = [event for event in log if event.type == "session.error"]
    assert error.error.type == "unknown_error" and "file_none" in error.error.message
    shown = (await flow.sessions.retrieve(session.id)).outcome_evaluations
    assert [each.result for each in shown] == ["interrupted", "failed"]
    with pytest.raises(anthropic.BadRequestError) as malformed:
        await flow.sessions.events.send(session.id, events=[outcome("x", max_iterations=21)])
    assert malformed.value.body["error"]["code"] == "invalid_define_outcome"
