"""A context that nears its window, or is refused as too long, goes on from a summary; its log stays whole."""

import signal

import orjson
import pytest

from kit.testing import await_until
from kit.waiting import within
from services.worker.runner.loop.context import Conversation
from services.worker.runner.models.base import ModelError, ModelErrorKind, Stop, StopReason, TextDelta
from services.worker.runner.models.summary import INTRODUCTION, REQUEST
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.runner.played import (
    TOOLSET,
    Gate,
    Part,
    PlayedSandboxes,
    ScriptedModel,
    call,
    say,
    wait_at,
)

WINDOW = 1_000
COMPACTED = "agent.thread_context_compacted"
TOO_LONG = ModelError(ModelErrorKind.TOO_LONG, "prompt is too long: 1200 tokens > 1000 maximum", status=400)


@pytest.fixture
def sessions_settings() -> dict:
    """Turns of runners that die go on soon."""
    return {"lease_seconds": 1.0}


def full(text: str) -> list[Part]:
    """An answer after which the vendor counts a context near its end."""
    return say(text, input_tokens=850, output_tokens=20)


def spoken(model: ScriptedModel, request: int) -> list[tuple[str, list[str]]]:
    return [
        (message.role, [block.get("text", block["type"]) for block in message.content])
        for message in model.requests[request].messages
    ]


async def test_a_context_near_its_window_goes_on_from_the_models_summary(platform: World) -> None:
    session = await platform.session()
    model = ScriptedModel([full("first"), say("what happened", input_tokens=900, output_tokens=7), say("second")])
    async with platform.runner(model, context_window_tokens=WINDOW):
        await platform.say(session, "one")
        await platform.until(session)
        await platform.say(session, "two")
        log = await platform.until(session)
    assert spoken(model, 1) == [("user", ["one"]), ("assistant", ["first"]), ("user", [REQUEST])]
    assert model.requests[1].system == model.requests[0].system
    assert spoken(model, 2) == [("user", [INTRODUCTION, "what happened", "two"])]
    second = types(log)[types(log).index("session.status_idle") + 1 :]
    assert second == [
        "user.message",
        "session.status_running",
        "session.thread_status_running",
        "span.model_request_start",
        COMPACTED,
        "span.model_request_end",
        "span.model_request_start",
        "agent.message",
        "span.model_request_end",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]
    (compacted,) = of(log, COMPACTED)
    start, end = of(log, "span.model_request_start")[1], of(log, "span.model_request_end")[1]
    assert text_of(compacted) == "what happened" and compacted["processed_at"]
    assert start["purpose"] == "compaction" and end["model_request_start_id"] == start["id"]
    # The whole log stays, and the summary is paid for.
    assert [text_of(event) for event in of(log, "user.message")] == ["one", "two"]
    assert log[-2]["usage"]["input_tokens"] == 850 + 900 + 10


async def test_a_turn_that_fits_is_not_compacted(platform: World) -> None:
    session = await platform.session()
    model = ScriptedModel([say("first", input_tokens=700, output_tokens=20), say("second")])
    async with platform.runner(model, context_window_tokens=WINDOW):
        for text in ("one", "two"):
            await platform.say(session, text)
            log = await platform.until(session)
    assert not of(log, COMPACTED) and len(model.requests) == 2


async def test_what_came_after_the_vendors_count_is_estimated(platform: World) -> None:
    session = await platform.session()
    model = ScriptedModel([say("first", input_tokens=700, output_tokens=20), say("summary"), say("second")])
    async with platform.runner(model, context_window_tokens=WINDOW):
        await platform.say(session, "one")
        await platform.until(session)
        await platform.say(session, "x" * 300)
        log = await platform.until(session)
    assert len(of(log, COMPACTED)) == 1
    assert spoken(model, 2) == [("user", [INTRODUCTION, "summary", "x" * 300])]


async def test_in_the_middle_of_a_task_calls_and_results_go_together(platform: World) -> None:
    session = await platform.session(TOOLSET)
    calls = [*call(("bash", {"command": "a"}), ("bash", {"command": "b"}))]
    calls[-2] = full("")[1]
    model = ScriptedModel([calls, say("did a and b"), say("done")])
    sandboxes = PlayedSandboxes()
    async with platform.runner(model, sandboxes, context_window_tokens=WINDOW):
        await platform.say(session, "do a and b")
        log = await platform.until(session)
    assert len(sandboxes.calls) == 2
    assert [role for role, _ in spoken(model, 1)] == ["user", "assistant", "user"]
    assert spoken(model, 1)[2][1] == ["tool_result", "tool_result", REQUEST]
    assert model.requests[1].tools == model.requests[0].tools
    assert spoken(model, 2) == [("user", [INTRODUCTION, "did a and b"])]
    assert text_of(of(log, "agent.message")[-1]) == "done"


async def test_input_during_a_summary_comes_after_it_and_is_read_then(platform: World) -> None:
    session, gate = await platform.session(), Gate()
    model = ScriptedModel([full("first"), [wait_at(gate), *say("summary")], say("second")])
    async with platform.runner(model, context_window_tokens=WINDOW):
        await platform.say(session, "one")
        await platform.until(session)
        await platform.say(session, "two")
        await gate.reached.wait()
        await platform.say(session, "three")
        (waiting,) = [event for event in await platform.clients.log(session) if "three" in str(event.get("content"))]
        gate.opened.set()
        log = await platform.until(session)
    assert waiting["processed_at"] is None
    assert spoken(model, 2) == [("user", [INTRODUCTION, "summary", "two", "three"])]
    assert all(event["processed_at"] for event in log)
    assert len(of(log, "agent.message")) == 2


async def test_system_messages_outlive_compactions(platform: World) -> None:
    session = await platform.session()
    answers = [full("a"), say("s1"), full("b"), say("s2"), say("c")]
    model = ScriptedModel(answers)
    async with platform.runner(model, context_window_tokens=WINDOW):
        rule = {"type": "system.message", "content": [{"type": "text", "text": "in Japanese"}]}
        message = {"type": "user.message", "content": [{"type": "text", "text": "one"}]}
        await platform.clients.send(session, message, rule)
        await platform.until(session)
        for text in ("two", "three"):
            await platform.say(session, text)
            log = await platform.until(session)
    assert len(of(log, COMPACTED)) == 2
    expected = [("user", [INTRODUCTION, "s2", "three"]), ("system", ["in Japanese"])]
    assert spoken(model, 4) == expected


async def test_a_request_that_was_too_long_is_repeated_after_a_compaction(platform: World) -> None:
    session = await platform.session()
    model = ScriptedModel([say("first"), [TOO_LONG], say("summary"), say("second")])
    async with platform.runner(model):
        for text in ("one", "two"):
            await platform.say(session, text)
            log = await platform.until(session)
    assert not of(log, "session.error")
    assert len(of(log, COMPACTED)) == 1
    (role, (asked,)) = spoken(model, 2)[0]
    # The vendor has just refused these messages: they are asked about as a transcript, without tools.
    assert role == "user" and asked.startswith("Person: one") and asked.endswith(REQUEST)
    assert not model.requests[2].tools
    assert spoken(model, 3) == [("user", [INTRODUCTION, "summary"])]
    assert text_of(of(log, "agent.message")[-1]) == "second"


@pytest.mark.parametrize("answers", [[say("summary"), [TOO_LONG]], [[TOO_LONG]]], ids=["still", "also the summary"])
async def test_where_compaction_does_not_help_the_turn_ends_and_says_so(
    platform: World, answers: list[list[Part]]
) -> None:
    session = await platform.session()
    model = ScriptedModel([[TOO_LONG], *answers])
    async with platform.runner(model):
        await platform.say(session, "one")
        log = await platform.until(session)
        (error,) = of(log, "session.error")
        assert error["error"]["type"] == "compaction_limit_reached_error"
        assert error["error"]["retry_status"] == "unknown"
        assert log[-1]["stop_reason"] == {"type": "retries_exhausted"}
        model.answers.append(say("better"))
        model.answers[:-1] = [say("better")] * len(model.requests)
        await platform.say(session, "two")
        log = await platform.until(session)
    assert text_of(of(log, "agent.message")[-1]) == "better"


async def test_a_model_that_gives_no_summary_is_asked_the_question_itself(platform: World) -> None:
    """It may refuse, or call tools; as long as the vendor takes the context, the turn goes on."""
    session = await platform.session(TOOLSET)
    refusal: list[Part] = [TextDelta("no"), Stop(StopReason.REFUSAL)]
    wild = call(("bash", {"command": "x"}))
    model = ScriptedModel([full("first"), wild, refusal, [Stop(StopReason.END_TURN)], refusal, say("second")])
    sandboxes = PlayedSandboxes()
    async with platform.runner(model, sandboxes, context_window_tokens=WINDOW):
        for text in ("one", "two"):
            await platform.say(session, text)
            log = await platform.until(session)
    assert not of(log, COMPACTED) and not of(log, "session.error") and not sandboxes.calls
    assert spoken(model, 5) == [("user", ["one"]), ("assistant", ["first"]), ("user", ["two"])]
    assert text_of(of(log, "agent.message")[-1]) == "second"


async def test_a_summary_can_be_interrupted(platform: World) -> None:
    session, gate = await platform.session(), Gate()
    model = ScriptedModel([full("first"), [wait_at(gate), *say("never")], say("summary"), say("third")])
    async with platform.runner(model, context_window_tokens=WINDOW):
        await platform.say(session, "one")
        await platform.until(session)
        await platform.say(session, "two")
        await gate.reached.wait()
        await platform.clients.send(session, {"type": "user.interrupt"})
        await platform.until(session)
        assert model.closed == 2
        await platform.say(session, "three")
        log = await platform.until(session)
    assert not of(log, "session.error")
    assert spoken(model, 3) == [("user", [INTRODUCTION, "summary", "two", "three"])]
    ends = {event["model_request_start_id"] for event in of(log, "span.model_request_end")}
    assert ends == {event["id"] for event in of(log, "span.model_request_start")}


async def test_a_busy_vendor_is_asked_for_the_summary_again(platform: World) -> None:
    session = await platform.session()
    busy = ModelError(ModelErrorKind.OVERLOADED, "busy", status=529)
    model = ScriptedModel([full("first"), [busy], say("summary"), say("second")])
    async with platform.runner(model, context_window_tokens=WINDOW):
        for text in ("one", "two"):
            await platform.say(session, text)
            log = await platform.until(session)
    (error,) = of(log, "session.error")
    assert (error["error"]["type"], error["error"]["retry_status"]) == ("model_overloaded_error", "retryable")
    assert len(of(log, COMPACTED)) == 1 and text_of(of(log, "agent.message")[-1]) == "second"


async def test_what_a_runner_kept_is_what_the_log_gives(platform: World) -> None:
    session, gate = await platform.session(), Gate()
    answers = [full("a"), [wait_at(gate), *say("s1")], full("b"), say("s2"), say("c", input_tokens=400)]
    async with platform.runner(ScriptedModel(answers), context_window_tokens=WINDOW) as runner:
        rule = {"type": "system.message", "content": [{"type": "text", "text": "in Japanese"}]}
        message = {"type": "user.message", "content": [{"type": "text", "text": "one"}]}
        await platform.clients.send(session, message, rule)
        await platform.until(session)
        await platform.say(session, "two")
        await gate.reached.wait()
        await platform.say(session, "three")
        gate.opened.set()
        await platform.until(session)
        await platform.say(session, "four")
        log = await platform.until(session)
        await await_until(lambda: runner.claims.held == 0)
        kept = runner._cache.take(session)
    replayed = Conversation()
    for event in log:
        replayed.apply_stored(event["seq"], event["id"], event["type"], orjson.dumps(event))
    assert len(of(log, COMPACTED)) == 2 and kept is not None
    assert [(message.role, message.content) for message in kept.messages()] == [
        (message.role, message.content) for message in replayed.messages()
    ]
    assert (kept.tokens(0), kept.read_seq, kept.known_seq) == (replayed.tokens(0), replayed.read_seq, log[-1]["seq"])


async def test_another_runner_goes_on_from_the_summary(platform: World) -> None:
    session = await platform.session()
    first = ScriptedModel([full("first"), say("summary"), say("second")])
    async with platform.runner(first, context_window_tokens=WINDOW):
        for text in ("one", "two"):
            await platform.say(session, text)
            await platform.until(session)
    other = ScriptedModel([say("third")])
    async with platform.runner(other):
        await platform.say(session, "three")
        await platform.until(session)
    assert spoken(other, 0) == [
        ("user", [INTRODUCTION, "summary", "two"]),
        ("assistant", ["second"]),
        ("user", ["three"]),
    ]


@pytest.mark.parametrize("point", ["mid_request", "answered", "stored"])
async def test_a_runner_that_dies_around_a_summary_loses_nothing(platform: World, point: str) -> None:
    session = await platform.session()
    async with platform.runner_process(f"runner.compaction.{point}=kill", CONTEXT_WINDOW_TOKENS="800") as process:
        await platform.say(session, f"LEN:3 {'word ' * 600}")
        await platform.until(session)
        await platform.say(session, "LEN:5 and then")
        assert await within(process.wait(), 30) == -signal.SIGKILL
    await platform.say(session, "LEN:7 at last")
    stored = point == "stored"
    model = ScriptedModel([say("both")] if stored else [say("summary"), say("both")])
    async with platform.runner(model, context_window_tokens=800):
        log = await platform.until(session)
    (compacted,) = of(log, COMPACTED)
    assert stored == ("demo model" in text_of(compacted))
    assert spoken(model, -1) == [("user", [INTRODUCTION, text_of(compacted), "LEN:5 and then", "LEN:7 at last"])]
    ends = [event["model_request_start_id"] for event in of(log, "span.model_request_end")]
    assert ends == [event["id"] for event in of(log, "span.model_request_start")]
    assert not of(log, "session.error") and all(event["processed_at"] for event in log)
