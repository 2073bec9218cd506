"""Outcomes over a real log: measured after the turn, revised, settled, and closed whatever ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from kit.testing import await_until
from services.worker.runner.loop import goal as goals
from services.worker.runner.loop.grading import MOST_RECORD_CHARS, SYSTEM
from services.worker.runner.models.base import VERDICT_TOOL, ModelDelta, ModelError, ModelErrorKind, ModelRequest
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.runner.played import (
    ASKING,
    CUSTOM,
    TOOLSET,
    Gate,
    Part,
    PlayedSandboxes,
    ScriptedModel,
    call,
    say,
    wait_at,
)
from tests.integration.runner.test_threads import team
from tests.integration.sessions.turn_driver import user

START, ONGOING, END = goals.START, goals.ONGOING, goals.END
ENDING = ["session.thread_status_idle", "session.usage", "session.status_idle"]
NO_TOKENS = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 0,
}


def outcome(rubric: Any = "The endpoint returns 200", **fields: Any) -> dict[str, Any]:
    """A declaration."""
    rubric = {"type": "text", "content": rubric} if isinstance(rubric, str) else rubric
    return {"type": "user.define_outcome", "description": "Ship a working endpoint", "rubric": rubric, **fields}


def verdict(result: str, explanation: str = "because") -> list[Part]:
    """A grader's answer."""
    return call((VERDICT_TOOL, {"result": result, "explanation": explanation}))


def is_grading(request: ModelRequest) -> bool:
    """Whether the grader is asked, and not the agent."""
    return [tool.name for tool in request.tools] == [VERDICT_TOOL]


def results(log: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """What the evaluations of a log say."""
    return [(event["iteration"], event["result"]) for event in of(log, END)]


def revisions(log: list[dict[str, Any]]) -> list[str]:
    """What the runtime told the agent."""
    return [text_of(event) for event in of(log, "user.message") if (event.get("metadata") or {}).get("outcome_id")]


async def evaluations(platform: World, session_id: str) -> list[dict[str, Any]]:
    """What the session says of its outcomes."""
    return await platform.clients.evaluations(session_id)


async def test_an_outcome_is_measured_when_its_turn_is_done(platform: World) -> None:
    model = ScriptedModel([say("It returns 200."), verdict("satisfied", "It does.")])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert types(log) == [
        "user.define_outcome",
        "session.status_running",
        "session.thread_status_running",
        "span.model_request_start",
        "agent.message",
        "span.model_request_end",
        START,
        ONGOING,
        END,
        *ENDING,
    ]
    declared, start, ongoing, end = log[0], *log[6:9]
    assert declared["outcome_id"].startswith("outc_")
    assert declared["processed_at"]
    about = {"outcome_id": declared["outcome_id"], "iteration": 0}
    assert {key: start[key] for key in about} == {key: ongoing[key] for key in about} == about
    assert {key: end[key] for key in (*about, "result", "explanation", "outcome_evaluation_start_id")} == about | {
        "result": "satisfied",
        "explanation": "It does.",
        "outcome_evaluation_start_id": start["id"],
    }
    assert end["usage"] == NO_TOKENS | {"input_tokens": 10, "output_tokens": 8}
    assert log[-1]["stop_reason"] == {"type": "end_turn"}
    (shown,) = await evaluations(platform, session_id)
    assert shown.pop("completed_at")
    assert shown == {
        "type": "outcome_evaluation",
        "outcome_id": declared["outcome_id"],
        "description": "Ship a working endpoint",
        "iteration": 0,
        "result": "satisfied",
        "explanation": "It does.",
    }


async def test_the_declaration_is_the_instruction(platform: World) -> None:
    model = ScriptedModel([say("done"), verdict("satisfied")])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        await platform.until(session_id)
    (message,) = model.requests[0].messages
    assert message.role == "user"
    assert "Ship a working endpoint" in message.content[0]["text"]
    assert "The endpoint returns 200" in message.content[0]["text"]


async def test_a_verdict_drives_revisions_as_real_messages(platform: World) -> None:
    model = ScriptedModel(
        [
            say("first"),
            verdict("needs_revision", "It returns 500."),
            say("second"),
            verdict("needs_revision", "It returns 404."),
            say("third"),
            verdict("satisfied"),
        ]
    )
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "needs_revision"), (1, "needs_revision"), (2, "satisfied")]
    assert revisions(log) == ["It returns 500.", "It returns 404."]
    assert [event["processed_at"] is not None for event in of(log, "user.message")] == [True, True]
    assert [len(of(log, kind)) for kind in (START, ONGOING, END)] == [3, 3, 3]
    assert [event["id"] for event in of(log, START)] == [event["outcome_evaluation_start_id"] for event in of(log, END)]
    # One turn: the session runs throughout.
    assert types(log).count("session.status_running") == types(log).count("session.status_idle") == 1
    asked = [request for request in model.requests if not is_grading(request)]
    assert [block["text"] for block in asked[2].messages[-1].content] == ["It returns 404."]
    assert [message.role for message in asked[2].messages] == ["user", "assistant", "user", "assistant", "user"]


async def test_the_grader_reads_what_the_agent_produced_and_nothing_else(platform: World) -> None:
    model = ScriptedModel(
        [
            say("earlier work"),
            call(("bash", {"command": "curl localhost"})),
            say("first answer"),
            verdict("needs_revision", "an earlier verdict"),
            say("second answer"),
            verdict("satisfied"),
        ]
    )
    async with platform.runner(model):
        session_id = await platform.session(TOOLSET, system="A secret prompt.")
        await platform.say(session_id, "what a person wrote")
        await platform.until(session_id)
        await platform.clients.send(session_id, outcome())
        await platform.until_logged(session_id, END, 2)
        await platform.until(session_id)
    first, second = [request for request in model.requests if is_grading(request)]
    assert second.system == first.system == SYSTEM
    (message,) = second.messages
    asked = "\n".join(block["text"] for block in message.content)
    for told in ("Ship a working endpoint", "The endpoint returns 200", "earlier work", "curl localhost", "ran bash"):
        assert told in asked
    assert "first answer" in asked and "second answer" in asked
    for hidden in ("A secret prompt.", "an earlier verdict", "what a person wrote"):
        assert hidden not in asked
    agents = [request for request in model.requests if not is_grading(request)]
    assert VERDICT_TOOL not in str(agents[-1].messages) and SYSTEM not in str(agents[-1].messages)


async def test_a_record_that_is_too_long_keeps_what_is_newest(platform: World) -> None:
    texts = [f"part {number} " + "x" * 11_000 for number in range(30)]
    model = ScriptedModel([*(say(text) for text in texts), say("the end"), verdict("satisfied")])
    async with platform.runner(model):
        session_id = await platform.session()
        for number, _ in enumerate(texts):
            await platform.say(session_id, "on")
            await platform.until_logged(session_id, "session.status_idle", number + 1)
        await platform.clients.send(session_id, outcome())
        await platform.until_logged(session_id, END)
    record = model.requests[-1].messages[0].content[2]["text"]
    assert len(record) < MOST_RECORD_CHARS + 1000
    assert "the end" in record and "part 29 " in record and "part 0 " not in record and "left out" in record


@pytest.mark.parametrize("most", [1, 2])
async def test_the_last_evaluation_leaves_one_answer_to_settle(platform: World, most: int) -> None:
    answers = [part for _ in range(most) for part in (say("try"), verdict("needs_revision", "Still 500."))]
    model = ScriptedModel([*answers, say("I could not do it.")])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome(max_iterations=most))
        log = await platform.until(session_id)
    assert [result for _, result in results(log)] == ["needs_revision"] * (most - 1) + ["max_iterations_reached"]
    assert of(log, END)[-1]["explanation"] == "Still 500."
    assert len(revisions(log)) == most - 1
    assert text_of(of(log, "agent.message")[-1]) == "I could not do it."
    after = types(log)[types(log).index("agent.message", log.index(of(log, END)[-1])) :]
    assert after == ["agent.message", "span.model_request_end", *ENDING]
    assert "Still 500." in model.requests[-1].messages[-1].content[0]["text"]
    (shown,) = await evaluations(platform, session_id)
    assert (shown["result"], shown["iteration"]) == ("max_iterations_reached", most - 1)


async def test_a_failed_verdict_ends_the_outcome(platform: World) -> None:
    model = ScriptedModel([say("a poem"), verdict("failed", "The rubric is about an endpoint.")])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "failed")]
    assert "session.error" not in types(log)


async def test_what_a_session_shows_while_it_works(platform: World) -> None:
    working, grading = Gate(), Gate()
    model = ScriptedModel([[wait_at(working), *say("first")], [wait_at(grading), *verdict("satisfied")]])
    session_id = await platform.session()
    await platform.clients.send(session_id, outcome())
    assert [shown["result"] for shown in await evaluations(platform, session_id)] == ["pending"]
    async with platform.runner(model):
        await working.reached.wait()
        await platform.until_logged(session_id, "span.model_request_start")
        (shown,) = await evaluations(platform, session_id)
        assert (shown["result"], shown["completed_at"], shown["explanation"]) == ("running", None, None)
        working.opened.set()
        await grading.reached.wait()
        assert [shown["result"] for shown in await evaluations(platform, session_id)] == ["evaluating"]
        grading.opened.set()
        await platform.until(session_id)


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


async def test_a_message_during_the_grading_is_read_by_the_revision(platform: World) -> None:
    gate = Gate()
    model = ScriptedModel(
        [say("first"), [wait_at(gate), *verdict("needs_revision", "Still 500.")], say("second"), verdict("satisfied")]
    )
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        await gate.reached.wait()
        await platform.say(session_id, "Use port 80.")
        gate.opened.set()
        log = await platform.until(session_id)
    assert results(log) == [(0, "needs_revision"), (1, "satisfied")]
    read = [block["text"] for block in model.requests[2].messages[-1].content]
    assert read == [text_of(event) for event in of(log, "user.message")] == ["Use port 80.", "Still 500."]


async def test_a_message_before_the_grading_is_answered_first(platform: World) -> None:
    gate = Gate()
    model = ScriptedModel([[wait_at(gate), *say("first")], say("second"), verdict("satisfied")])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        await gate.reached.wait()
        await platform.say(session_id, "Use port 80.")
        gate.opened.set()
        log = await platform.until(session_id)
    assert results(log) == [(0, "satisfied")]
    assert types(log).index(START) > log.index(of(log, "agent.message")[1])


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


async def test_a_file_rubric_that_cannot_be_read_is_told(platform: World) -> None:
    model = ScriptedModel([say("first")])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome({"type": "file", "file_id": "file_gone"}))
        log = await platform.until(session_id)
    assert len(model.requests) == 1, "no verdict against an empty rubric"
    assert [len(of(log, kind)) for kind in (START, ONGOING)] == [1, 1]
    assert results(log) == [(0, "failed")]
    (error,) = of(log, "session.error")
    assert error["error"]["type"] == "outcome_rubric_file_not_found"
    assert "file_gone" in error["error"]["message"] and "file_gone" in of(log, END)[0]["explanation"]
    assert types(log)[-5:] == [END, "session.error", *ENDING]


async def test_a_grader_without_a_provider_is_a_matter_of_configuration(platform: World) -> None:
    refused = ModelError(ModelErrorKind.AUTHENTICATION, "no key", status=401)
    model = ScriptedModel([say("first"), [refused]])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "failed")]
    (error,) = of(log, "session.error")
    assert error["error"]["type"] == "outcome_evaluator_unavailable"
    assert error["error"]["retry_status"] == "not_retryable"
    assert types(log)[-5:] == [END, "session.error", *ENDING]


async def test_a_grader_that_is_busy_is_asked_again(platform: World) -> None:
    busy = ModelError(ModelErrorKind.OVERLOADED, "busy", status=529)
    model = ScriptedModel([say("first"), [busy], [busy], verdict("satisfied")])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "satisfied")]
    assert [len(of(log, kind)) for kind in (START, ONGOING)] == [1, 1]
    assert "session.error" not in types(log)


async def test_a_grader_that_stays_busy_fails_the_evaluation(platform: World) -> None:
    model = ScriptedModel([say("first"), [ModelError(ModelErrorKind.OVERLOADED, "busy", status=529)]])
    async with platform.runner(model, model_attempts=2):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "failed")]
    assert [event["error"]["type"] for event in of(log, "session.error")] == ["model_overloaded_error"]


async def test_a_record_that_is_too_long_for_the_model_is_halved(platform: World) -> None:
    refused = ModelError(ModelErrorKind.TOO_LONG, "too long", status=400)
    steps = [call(("bash", {"command": f"step {number}"})) for number in range(8)]
    model = ScriptedModel([*steps, say("the end"), [refused], [refused], verdict("satisfied")])
    async with platform.runner(model):
        session_id = await platform.session(TOOLSET)
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "satisfied")]
    assert "session.error" not in types(log)
    first, second, third = [request.messages[0].content[2]["text"] for request in model.requests if is_grading(request)]
    assert "step 0" in first and "step 0" not in second and len(third) < len(second) < len(first)
    assert all("the end" in record for record in (first, second, third))


async def test_a_record_that_can_not_be_shortened_fails_the_evaluation(platform: World) -> None:
    refused = ModelError(ModelErrorKind.TOO_LONG, "too long", status=400)
    async with platform.runner(ScriptedModel([say("the end"), [refused]])):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "failed")]
    assert len(of(log, "session.error")) == 1


async def test_a_verdict_in_words_is_understood(platform: World) -> None:
    said = 'My verdict: {"result": "satisfied", "explanation": "All {met}."} Thanks.'
    async with platform.runner(ScriptedModel([say("first"), say(said)])):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert [(end["result"], end["explanation"]) for end in of(log, END)] == [("satisfied", "All {met}.")]


async def test_a_grader_that_gives_no_verdict_is_asked_again_and_given_up(platform: World) -> None:
    model = ScriptedModel([say("first"), say("Hm."), call((VERDICT_TOOL, {"result": "great"})), say("Well.")])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert len(model.requests) == 4
    assert [message.role for message in model.requests[2].messages] == ["user", "assistant", "user"]
    assert results(log) == [(0, "failed")]
    assert of(log, END)[0]["usage"]["input_tokens"] == 30
    assert [event["error"]["type"] for event in of(log, "session.error")] == ["outcome_evaluation_failed"]


async def test_what_the_grader_spends_is_the_sessions(platform: World) -> None:
    async with platform.runner(ScriptedModel([say("first"), verdict("satisfied")])):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    usage = of(log, "session.usage")[-1]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (20, 13)


async def test_a_turn_that_fails_closes_its_outcome(platform: World) -> None:
    refused = ModelError(ModelErrorKind.INVALID_REQUEST, "no such thing", status=400)
    async with platform.runner(ScriptedModel([[refused]])):
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "failed")]
    assert of(log, END)[0]["outcome_evaluation_start_id"] == ""
    assert len(of(log, "session.error")) == 1


async def test_an_outcome_declared_while_a_turn_runs_is_taken_at_once_and_read_next(platform: World) -> None:
    gate = Gate()
    model = ScriptedModel([[wait_at(gate), *say("hello")], say("worked"), verdict("satisfied")])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.say(session_id, "hi")
        await gate.reached.wait()
        sent = await platform.clients.send(session_id, outcome())
        assert b'"processed_at":null' not in sent.events[0].body
        gate.opened.set()
        log = await platform.until(session_id)
    assert results(log) == [(0, "satisfied")]
    assert "Ship a working endpoint" in model.requests[1].messages[-1].content[0]["text"]
    assert types(log).count("session.status_idle") == 1


async def test_the_next_outcome_starts_when_the_first_is_over(platform: World) -> None:
    model = ScriptedModel([say("one"), verdict("satisfied"), say("two"), verdict("failed", "no")])
    async with platform.runner(model):
        session_id = await platform.session()
        for number in (1, 2):
            await platform.clients.send(session_id, outcome())
            await platform.until_logged(session_id, "session.status_idle", number)
        shown = await evaluations(platform, session_id)
    assert [entry["result"] for entry in shown] == ["satisfied", "failed"]
    assert len({entry["outcome_id"] for entry in shown}) == 2


async def test_each_revision_has_all_steps_of_a_turn(platform: World) -> None:
    steps = [call(("bash", {"command": "ls"}))] * 20
    model = ScriptedModel([*steps, say("one"), verdict("needs_revision"), *steps, say("two"), verdict("satisfied")])
    async with platform.runner(model, PlayedSandboxes()):
        session_id = await platform.session(TOOLSET)
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "needs_revision"), (1, "satisfied")]


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
        await asyncio.wait_for(doomed.wait(), 20)
    async with platform.runner():
        log = await platform.until(session_id, seconds=20)
    rounds = len(of(log, END))
    assert [result for _, result in results(log)] == ["needs_revision"] * (rounds - 1) + ["satisfied"]
    assert [iteration for iteration, _ in results(log)] == list(range(rounds))
    assert [len(of(log, kind)) for kind in (START, ONGOING)] == [rounds, rounds]
    assert len(revisions(log)) == rounds - 1
    (shown,) = await evaluations(platform, session_id)
    assert (shown["result"], shown["iteration"]) == ("satisfied", rounds - 1)


async def test_the_demo_model_grades_without_a_key(platform: World) -> None:
    async with platform.runner():
        session_id = await platform.session()
        await platform.clients.send(session_id, outcome("- It mentions outcome\n" * 20 + "- It mentions zebras"))
        log = await platform.until(session_id)
        again = await platform.session()
        await platform.clients.send(again, outcome("GRADE:failed"), user("go on"))
        other = await platform.until(again)
    assert results(log) == [(0, "needs_revision"), (1, "satisfied")]
    assert revisions(log) == ["The record does not show:\n- It mentions zebras"]
    assert results(other) == [(0, "failed")]


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


async def test_an_outcome_starts_a_session(platform: World) -> None:
    async with platform.runner(ScriptedModel([say("first"), verdict("satisfied")])):
        session_id = await platform.clients.create_session(outcome())

        async def over() -> bool:
            return results(await platform.clients.log(session_id)) == [(0, "satisfied")]

        await await_until(over)


class Team(ScriptedModel):
    """Answers the grader, the coordinator and its writer each from answers of their own."""

    def __init__(self, **answers: list[list[Part]]) -> None:
        super().__init__([])
        self._models = {role: ScriptedModel(given) for role, given in answers.items()}

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta, None]:
        """The next answer of whoever is asked."""
        role = "grader" if is_grading(request) else "writer" if "You are the writer" in request.system else "lead"
        async with aclosing(self._models[role].stream(request)) as deltas:
            async for delta in deltas:
                yield delta


async def test_an_outcome_of_a_coordinator_is_measured_when_its_threads_have_answered(platform: World) -> None:
    start = call(("start_thread", {"agent": "writer", "message": "write"}))
    model = Team(lead=[start, say("all is written")], writer=[say("a text")], grader=[verdict("satisfied")])
    async with platform.runner(model):
        session_id = await team(platform)
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "satisfied")]
    assert types(log).index(START) > types(log).index("agent.thread_message_received")


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
