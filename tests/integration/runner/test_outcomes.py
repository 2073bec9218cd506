"""Outcomes over a real log: measured after the turn, revised and settled."""

from __future__ import annotations

import pytest

from kit.testing import await_until
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.runner.outcomes import (
    END,
    ENDING,
    NO_TOKENS,
    ONGOING,
    START,
    Team,
    evaluations,
    is_grading,
    outcome,
    results,
    revisions,
    verdict,
)
from tests.integration.runner.played import (
    TOOLSET,
    Gate,
    PlayedSandboxes,
    ScriptedModel,
    call,
    say,
    wait_at,
)
from tests.integration.runner.test_threads import team


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


async def test_an_outcome_starts_a_session(platform: World) -> None:
    async with platform.runner(ScriptedModel([say("first"), verdict("satisfied")])):
        session_id = await platform.clients.create_session(outcome())

        async def over() -> bool:
            return results(await platform.clients.log(session_id)) == [(0, "satisfied")]

        await await_until(over)


async def test_an_outcome_of_a_coordinator_is_measured_when_its_threads_have_answered(platform: World) -> None:
    start = call(("start_thread", {"agent": "writer", "message": "write"}))
    model = Team(lead=[start, say("all is written")], writer=[say("a text")], grader=[verdict("satisfied")])
    async with platform.runner(model):
        session_id = await team(platform)
        await platform.clients.send(session_id, outcome())
        log = await platform.until(session_id)
    assert results(log) == [(0, "satisfied")]
    assert types(log).index(START) > types(log).index("agent.thread_message_received")
