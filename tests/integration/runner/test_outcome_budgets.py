"""An outcome stops at the spending ceiling: nothing more is spent on it, whatever it would have been."""

from __future__ import annotations

from typing import Any

import pytest

from services.worker.runner.loop.goal import END, START
from tests.integration.runner.harness import World, of, types
from tests.integration.runner.outcomes import NO_TOKENS, evaluations, outcome, results, revisions, verdict
from tests.integration.runner.played import Part, ScriptedModel, say
from tests.integration.runner.test_budgets import CALLED, PAUSE, SAID, budgeted, change, reason_of, sessions_settings

__all__ = ["sessions_settings"]
GRADED = CALLED


@pytest.mark.parametrize(
    ("amount", "asked", "expected"),
    [
        pytest.param(SAID, 1, [(0, "budget_reached")], id="before the grader"),
        pytest.param(SAID + GRADED, 2, [(0, "needs_revision"), (1, "budget_reached")], id="before the revision"),
        pytest.param(
            2 * SAID + GRADED, 3, [(0, "needs_revision"), (1, "budget_reached")], id="before the second grader"
        ),
        pytest.param(
            2 * SAID + 2 * GRADED,
            4,
            [(0, "needs_revision"), (1, "max_iterations_reached"), (1, "budget_reached")],
            id="before the settling answer",
        ),
    ],
)
async def test_nothing_more_is_spent_at_the_ceiling(
    platform: World, amount: int, asked: int, expected: list[tuple[int, str]]
) -> None:
    model = ScriptedModel([part for _ in range(5) for part in (say("try"), verdict("needs_revision", "Still 500."))])
    session_id = await budgeted(platform, amount)
    async with platform.runner(model):
        await platform.clients.send(session_id, outcome(max_iterations=2))
        log = await platform.until(session_id)
    assert len(model.requests) == asked
    assert results(log) == expected
    closing = of(log, END)[-1]
    assert (closing["outcome_evaluation_start_id"], closing["usage"]) == ("", NO_TOKENS)
    assert len(of(log, START)) == len(expected) - 1
    assert types(log)[-4:] == [END, *PAUSE]
    assert reason_of(log) == "budget_reached"
    assert of(log, "session.usage")[-1]["usage"]["list_cost"] == amount
    assert "session.error" not in types(log)
    (shown,) = await evaluations(platform, session_id)
    assert shown["result"] == "budget_reached" and shown["completed_at"]


async def test_at_the_ceiling_no_outcome_is_taken(platform: World) -> None:
    session_id = await budgeted(platform, SAID)
    async with platform.runner(ScriptedModel([say("hello")])):
        await platform.say(session_id, "hi")
        await platform.until(session_id)
        with pytest.raises(Exception, match="budget"):
            await platform.clients.send(session_id, outcome())


async def test_a_raise_does_not_take_a_closed_outcome_up_again(platform: World) -> None:
    session_id = await budgeted(platform, SAID)
    parts: list[list[Part]] = [say("try"), say("again"), verdict("satisfied")]
    model = ScriptedModel(parts)
    async with platform.runner(model):
        await platform.clients.send(session_id, outcome())
        await platform.until(session_id)
        await change(platform, session_id, _limit(1000))
        await platform.until_logged(session_id, "session.status_idle", 2)
        assert results(await platform.clients.log(session_id)) == [(0, "budget_reached")]
        assert len(model.requests) == 1
        await platform.clients.send(session_id, outcome())
        await platform.until_logged(session_id, "session.status_idle", 3)
        log = await platform.clients.log(session_id)
    assert results(log) == [(0, "budget_reached"), (0, "satisfied")]
    assert revisions(log) == []


def _limit(amount: int) -> dict[str, Any]:
    return {"type": "limit", "max_list_cost": {"amount": str(amount), "currency": "USD"}}


async def test_an_outcome_within_its_budget_is_none_the_worse(platform: World) -> None:
    session_id = await budgeted(platform, 1000)
    async with platform.runner(ScriptedModel([say("try"), verdict("satisfied")])):
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "satisfied")]
    assert reason_of(log) == "end_turn"
    assert of(log, "session.usage")[-1]["usage"]["list_cost"] == SAID + GRADED
