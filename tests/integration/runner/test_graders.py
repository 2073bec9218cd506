"""The grader: what it reads, what it may answer, and what comes of one that can not be asked."""

from __future__ import annotations

from services.worker.runner.loop.grading import MOST_RECORD_CHARS, SYSTEM
from services.worker.runner.models.base import VERDICT_TOOL, ModelError, ModelErrorKind
from tests.integration.runner.harness import World, of, types
from tests.integration.runner.outcomes import (
    END,
    ENDING,
    ONGOING,
    START,
    is_grading,
    outcome,
    results,
    revisions,
    verdict,
)
from tests.integration.runner.played import (
    TOOLSET,
    ScriptedModel,
    call,
    say,
)
from tests.integration.sessions.turn_driver import user


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
