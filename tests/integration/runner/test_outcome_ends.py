"""What ends an outcome, or does not: interrupts, clients that are waited for, failures, crashes."""

from __future__ import annotations

from typing import Any

import pytest

from kit.waiting import within
from services.worker.runner.models.base import ModelError, ModelErrorKind
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.runner.outcomes import (
    END,
    ENDING,
    NO_TOKENS,
    ONGOING,
    START,
    Team,
    evaluations,
    outcome,
    results,
    revisions,
    verdict,
)
from tests.integration.runner.played import (
    ASKING,
    CUSTOM,
    Gate,
    ScriptedModel,
    call,
    say,
    wait_at,
)
from tests.integration.runner.test_threads import team


@pytest.mark.parametrize("place", ["in the first turn", "in the grader", "in a revision"])
async def test_an_interrupt_closes_the_outcome(platform: World, place: str) -> None:
    gate = Gate()
    answers = {
        "in the first turn": [[wait_at(gate), *say("never")]],
        "in the grader": [say("first"), [wait_at(gate), *verdict("satisfied")]],
        "in a revision": [say("first"), verdict("needs_revision"), [wait_at(gate), *say("never")]],
    }[place]
    async with platform.runner(ScriptedModel(answers)):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        await gate.reached.wait()
        await platform.clients.send(session_id, {"type": "user.interrupt"})
        log = await platform.until(session_id)
    ends = of(log, END)
    iteration = 1 if place == "in a revision" else 0
    assert (ends[-1]["iteration"], ends[-1]["result"]) == (iteration, "interrupted")
    assert ends[-1]["outcome_evaluation_start_id"] == ""
    assert ends[-1]["usage"] == NO_TOKENS
    assert [end["result"] for end in ends].count("interrupted") == 1
    assert "session.error" not in types(log)
    assert types(log)[-4:] == [END, *ENDING]
    assert log[-1]["stop_reason"] == {"type": "end_turn"}
    (shown,) = await evaluations(platform, session_id)
    assert shown["result"] == "interrupted" and shown["completed_at"]


@pytest.mark.parametrize("tool", [ASKING, CUSTOM])
async def test_a_revision_that_waits_for_a_client_ends_the_outcome(platform: World, tool: dict[str, Any]) -> None:
    asked = call(("lookup", {"name": "x"})) if tool is CUSTOM else call(("bash", {"command": "ls"}))
    model = ScriptedModel([say("first"), verdict("needs_revision"), asked, say("after the answer")])
    async with platform.runner(model):
        session_id = await platform.session(tool)
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id, "requires_action")
        assert results(log) == [(0, "needs_revision"), (1, "interrupted")]
        assert of(log, END)[-1]["outcome_evaluation_start_id"] == ""
        assert types(log)[-4:] == [END, *ENDING]
        assert log[-1]["stop_reason"]["type"] == "requires_action"
        (waiting,) = log[-1]["stop_reason"]["event_ids"]
        await platform.clients.send(session_id, _answer(tool, waiting))
        log = await platform.until(session_id)
    assert len(of(log, END)) == 2
    assert text_of(of(log, "agent.message")[-1]) == "after the answer"


async def test_the_first_turn_may_wait_for_a_client_and_is_measured_afterwards(platform: World) -> None:
    model = ScriptedModel([call(("bash", {"command": "ls"})), say("first"), verdict("satisfied")])
    async with platform.runner(model):
        session_id = await platform.session(ASKING)
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id, "requires_action")
        assert END not in types(log)
        assert [shown["result"] for shown in await evaluations(platform, session_id)] == ["running"]
        await platform.clients.send(session_id, _answer(ASKING, log[-1]["stop_reason"]["event_ids"][0]))
        log = await platform.until(session_id)
    assert results(log) == [(0, "satisfied")]


def _answer(tool: dict[str, Any], event_id: str) -> dict[str, Any]:
    if tool is CUSTOM:
        return {"type": "user.custom_tool_result", "custom_tool_use_id": event_id, "content": "found"}
    return {"type": "user.tool_confirmation", "tool_use_id": event_id, "result": "allow"}


async def test_a_turn_that_fails_closes_its_outcome(platform: World) -> None:
    refused = ModelError(ModelErrorKind.INVALID_REQUEST, "no such thing", status=400)
    async with platform.runner(ScriptedModel([[refused]])):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "failed")]
    assert of(log, END)[0]["outcome_evaluation_start_id"] == ""
    assert len(of(log, "session.error")) == 1


async def test_a_runner_that_stops_hands_the_outcome_over(platform: World) -> None:
    gate = Gate()
    first = ScriptedModel([say("first"), [wait_at(gate), *verdict("failed")]])
    session_id = await platform.session()
    await platform.clients.send(session_id, outcome())
    async with platform.runner(first, runner_drain_seconds=0.0):
        await gate.reached.wait()
    async with platform.runner(ScriptedModel([verdict("satisfied")])):
        log = await platform.until(session_id)
    assert results(log) == [(0, "satisfied")]
    assert [len(of(log, kind)) for kind in (START, ONGOING)] == [1, 1]
    assert of(log, END)[0]["outcome_evaluation_start_id"] == of(log, START)[0]["id"]


@pytest.fixture
def sessions_settings() -> dict:
    """Leases that lapse soon, for crashes."""
    return {"lease_seconds": 1.0}


@pytest.mark.parametrize(
    ("point", "count"), [("runner.outcome.mid_grading", 1), *(("runner.before_append", count) for count in range(1, 7))]
)
async def test_a_crash_anywhere_leaves_one_sound_outcome(platform: World, point: str, count: int) -> None:
    session_id = await platform.session()
    # The demo agent repeats no more than the beginning of what it is told: it needs a revision.
    rubric = "- It mentions outcome\n" * 20 + "- It mentions zebras"
    async with platform.runner_process(f"{point}=kill@{count}", LEASE_SECONDS="1") as doomed:
        await platform.clients.send(session_id, outcome(rubric))
        await within(doomed.wait(), 20)
    async with platform.runner():
        log = await platform.until(session_id, seconds=20)
    rounds = len(of(log, END))
    assert [result for _, result in results(log)] == ["needs_revision"] * (rounds - 1) + ["satisfied"]
    assert [iteration for iteration, _ in results(log)] == list(range(rounds))
    assert [len(of(log, kind)) for kind in (START, ONGOING)] == [rounds, rounds]
    assert len(revisions(log)) == rounds - 1
    (shown,) = await evaluations(platform, session_id)
    assert (shown["result"], shown["iteration"]) == ("satisfied", rounds - 1)


async def test_a_session_that_is_stopped_closes_its_outcome(platform: World) -> None:
    gate = Gate()
    async with platform.runner(ScriptedModel([[wait_at(gate), *say("never")]])):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        await gate.reached.wait()
        await platform.clients.stop(session_id)
        log = await platform.until(session_id, "terminated")
    assert results(log) == [(0, "interrupted")]
    assert types(log)[-3:] == [END, "session.thread_status_terminated", "session.status_terminated"]


async def test_a_revision_whose_thread_waits_for_a_client_ends_the_outcome(platform: World) -> None:
    start = call(("start_thread", {"agent": "writer", "message": "write"}))
    model = Team(
        lead=[say("first"), start, say("all is written")],
        writer=[call(("lookup", {"name": "x"})), say("a text")],
        grader=[verdict("needs_revision")],
    )
    async with platform.runner(model):
        session_id = await team(platform, CUSTOM)
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id, "requires_action")
        assert results(log) == [(0, "needs_revision"), (1, "interrupted")]
        assert log.index(of(log, END)[-1]) < log.index(of(log, "session.status_idle")[-1])
        (waiting,) = log[-1]["stop_reason"]["event_ids"]
        await platform.clients.send(session_id, _answer(CUSTOM, waiting))
        log = await platform.until(session_id)
    assert len(of(log, END)) == 2
    assert text_of(of(log, "agent.message")[-1]) == "all is written"
