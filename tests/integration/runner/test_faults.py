"""Interrupts, crashes, lost leases, busy vendors and orderly stops end in an honest log, and nothing runs twice."""

import asyncio
import signal

import orjson
import pytest

from kit import failpoints
from kit.nats import Nats
from kit.testing import await_until
from kit.waiting import within
from managed_agents.sessions.v1.events_pb2 import Preview
from managed_agents.sessions.v1.sessions_pb2 import DeleteSessionRequest
from services.sessions.app import MIGRATIONS
from services.worker.runner.models.base import (
    ModelError,
    ModelErrorKind,
    Stop,
    StopReason,
    TextDelta,
    ThinkingEnd,
    ThinkingStart,
)
from tests.integration.runner.harness import World, of, text_of, types, world
from tests.integration.runner.played import (
    ASKING,
    CUSTOM,
    TOOLSET,
    Gate,
    PlayedSandboxes,
    ScriptedModel,
    call,
    say,
    wait_at,
)

INTERRUPT = {"type": "user.interrupt"}
LEASE_SECONDS = 1.0


@pytest.fixture
def sessions_settings() -> dict:
    return {"lease_seconds": LEASE_SECONDS}


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm("")


async def test_an_interrupt_keeps_the_text_so_far_and_makes_no_error(platform: World) -> None:
    session, gate = await platform.session(), Gate()
    model = ScriptedModel([[TextDelta("Half an "), TextDelta("answer"), wait_at(gate), *say("never said")]])
    async with platform.runner(model):
        await platform.say(session, "go")
        await gate.reached.wait()
        await platform.clients.send(session, INTERRUPT)
        log = await platform.until(session)
    (message,) = of(log, "agent.message")
    assert text_of(message) == "Half an answer"
    assert not of(log, "session.error")
    assert log[-1]["stop_reason"] == {"type": "end_turn"}
    assert types(log).count("session.status_running") == types(log).count("session.status_idle") == 1
    assert (
        of(log, "span.model_request_end")[0]["model_request_start_id"] == of(log, "span.model_request_start")[0]["id"]
    )
    assert model.closed == 1


async def test_an_interrupt_kills_the_tool_and_answers_every_call(platform: World) -> None:
    session, gate = await platform.session(TOOLSET, CUSTOM), Gate()
    sandboxes = PlayedSandboxes(gate)
    model = ScriptedModel(
        [call(("bash", {"command": "sleep 600"}), ("read", {"file_path": "x"}), ("lookup", {"name": "n"})), say("ok")]
    )
    async with platform.runner(model, sandboxes):
        await platform.say(session, "go")
        await gate.reached.wait()
        await platform.clients.send(session, INTERRUPT)
        log = await platform.until(session)
        assert sandboxes.interrupts == 1
        assert [name for name, _ in sandboxes.calls] == ["bash"]
        results = of(log, "agent.tool_result")
        assert len(results) == 3 and all(event["is_error"] for event in results)
        await platform.say(session, "and now?")
        await platform.until(session)
    last = model.requests[1].messages[-1].content
    assert [block["type"] for block in last] == ["tool_result"] * 3 + ["text"]


async def test_an_interrupt_with_a_message_goes_on_with_the_message(platform: World) -> None:
    session, gate = await platform.session(), Gate()
    model = ScriptedModel([[wait_at(gate), *say("one")], say("two")])
    async with platform.runner(model):
        await platform.say(session, "go")
        await gate.reached.wait()
        await platform.clients.send(
            session, INTERRUPT, {"type": "user.message", "content": [{"type": "text", "text": "rather this"}]}
        )
        log = await platform.until(session)
    assert [text_of(event) for event in of(log, "agent.message")] == ["two"]
    assert model.requests[1].messages[-1].content[-1]["text"] == "rather this"


async def test_an_interrupt_at_any_moment_ends_in_idle(platform: World) -> None:
    model = ScriptedModel([say("quick")])
    async with platform.runner(model):
        for pause in (0, 0.001, 0.005, 0.01):
            session = await platform.session()
            await platform.say(session, "go")
            await asyncio.sleep(pause)
            await platform.clients.send(session, INTERRUPT)
            log = await platform.until(session)
            assert types(log)[-1] in ("session.status_idle", "user.interrupt")
            assert not of(log, "session.error")


async def test_a_busy_vendor_is_asked_again_visibly(platform: World) -> None:
    session = await platform.session()
    busy = ModelError(ModelErrorKind.OVERLOADED, "too busy", status=529, retry_after_seconds=0.05)
    model = ScriptedModel([[TextDelta("lost"), busy], [busy], say("at last")])
    async with platform.runner(model):
        await platform.say(session, "go")
        log = await platform.until(session)
    errors = of(log, "session.error")
    assert [event["error"] for event in errors] == [
        {"type": "model_overloaded_error", "message": "too busy", "retry_status": "retryable"}
    ] * 2
    wanted = ["session.error", "session.status_rescheduled", "session.thread_status_rescheduled"]
    wanted += ["session.status_running", "session.thread_status_running", "span.model_request_start"]
    at = types(log).index("session.error")
    assert types(log)[at : at + 6] == wanted
    assert [event["is_error"] for event in of(log, "span.model_request_end")] == [True, True, False]
    assert [text_of(event) for event in of(log, "agent.message")] == ["at last"]


async def test_a_session_that_waits_for_its_vendor_says_so_and_can_be_interrupted(platform: World) -> None:
    session = await platform.session()
    busy = ModelError(ModelErrorKind.RATE_LIMITED, "in a minute", retry_after_seconds=60)
    async with platform.runner(ScriptedModel([[busy], say("answered")])):
        await platform.say(session, "go")
        await platform.until(session, "rescheduling")
        await platform.clients.send(session, INTERRUPT)
        log = await platform.until(session)
        assert log[-1]["stop_reason"] == {"type": "end_turn"}
        await platform.say(session, "again")
        await platform.until_logged(session, "agent.message")


@pytest.mark.parametrize(
    ("failure", "attempts"),
    [
        (ModelError(ModelErrorKind.RATE_LIMITED, "slow down"), 3),
        (ModelError(ModelErrorKind.INVALID_REQUEST, "no such thing"), 1),
    ],
)
async def test_a_vendor_that_keeps_failing_ends_the_turn(platform: World, failure, attempts) -> None:
    session = await platform.session()
    model = ScriptedModel([[failure]])
    async with platform.runner(model, model_attempts=3):
        await platform.say(session, "go")
        log = await platform.until(session)
    assert len(model.requests) == attempts
    # All but the last tell of another attempt, and the last one of none.
    told = [event["error"]["retry_status"] for event in of(log, "session.error")]
    assert told == ["retryable"] * (attempts - 1) + ["unknown"]
    assert types(log)[-1] == "session.status_idle"


async def test_a_failure_of_our_own_ends_the_turn_with_an_error(platform: World) -> None:
    session = await platform.session(TOOLSET)
    model = ScriptedModel([call(("bash", {"command": "x"})), say("fine again")])
    async with platform.runner(model):
        failpoints.arm("runner.tool.running=raise@1")
        await platform.say(session, "go")
        log = await platform.until(session)
        assert of(log, "session.error")[0]["error"]["type"] == "internal_error"
        assert of(log, "agent.tool_result")[0]["is_error"]
        failpoints.arm("runner.model.mid_request=raise@1")
        await platform.say(session, "again")
        log = await platform.until(session)
        assert len(of(log, "session.error")) == 2
        failpoints.arm("runner.before_append=raise@1")
        await platform.say(session, "once more")
        log = await platform.until(session)
        assert len(of(log, "session.error")) == 3
        failpoints.arm("")
        await platform.say(session, "and now")
        log = await platform.until(session)
    assert text_of(of(log, "agent.message")[-1]) == "fine again"
    starts = {event["id"] for event in of(log, "span.model_request_start")}
    ends = [event["model_request_start_id"] for event in of(log, "span.model_request_end")]
    assert len(ends) == len(set(ends)) and set(ends) == starts


async def test_a_turn_that_no_runner_can_end_is_ended_by_the_service(platform: World) -> None:
    session = await platform.session()
    async with platform.runner(ScriptedModel([say("never said")] * 20)):
        failpoints.arm("runner.before_append=raise")
        await platform.say(session, "go")
        log = await platform.until(session)
    assert log[-1]["stop_reason"]["type"] == "retries_exhausted"
    assert not of(log, "agent.message")


@pytest.mark.parametrize("point", ["runner.model.mid_request", "runner.before_append", "runner.tool.running"])
async def test_a_killed_runner_leaves_its_turn_to_the_next(platform: World, point: str) -> None:
    session = await platform.session(TOOLSET)
    async with platform.runner_process(f"{point}=kill") as process:
        await platform.say(session, 'TOOL:bash:{"command": "echo ran >> effects"}')
        assert await within(process.wait(), 30) == -signal.SIGKILL
        sandboxes = PlayedSandboxes()
        async with platform.runner(sandboxes=sandboxes):
            log = await platform.until(session)
    assert of(log, "session.status_rescheduled")
    assert types(log)[-1] == "session.status_idle"
    (result,) = of(log, "agent.tool_result")
    if point == "runner.tool.running":
        assert "work_outcome_unknown" in text_of(result)
        assert sandboxes.calls == []
    else:
        assert len(sandboxes.calls) == 1
    ends = [event["model_request_start_id"] for event in of(log, "span.model_request_end")]
    assert ends == [event["id"] for event in of(log, "span.model_request_start")]


async def test_an_approved_call_never_runs_twice(platform: World) -> None:
    session = await platform.session(ASKING)
    async with platform.runner_process("runner.tool.running=kill") as process:
        await platform.say(session, 'TOOL:bash:{"command": "rm -r x"}')
        log = await platform.until(session, "requires_action")
        (use,) = of(log, "agent.tool_use")
        allow = {"type": "user.tool_confirmation", "tool_use_id": use["id"], "result": "allow"}
        await platform.clients.send(session, allow)
        assert await within(process.wait(), 30) == -signal.SIGKILL
    sandboxes = PlayedSandboxes()
    async with platform.runner(sandboxes=sandboxes):
        log = await platform.until(session)
    assert sandboxes.calls == []
    assert "work_outcome_unknown" in text_of(of(log, "agent.tool_result")[0])


async def test_a_call_whose_turn_was_given_up_is_not_run_by_the_next_message(platform: World) -> None:
    session = await platform.session(ASKING)
    async with platform.runner():
        await platform.say(session, 'TOOL:bash:{"command": "rm -r x"}')
        log = await platform.until(session, "requires_action")
    allow = {"type": "user.tool_confirmation", "tool_use_id": of(log, "agent.tool_use")[0]["id"], "result": "allow"}
    await platform.clients.send(session, allow)
    # The first one dies while it runs the call, the others before they can say that its outcome is not known.
    for point in ("runner.tool.running", "runner.before_append", "runner.before_append"):
        async with platform.runner_process(f"{point}=kill") as process:
            assert await within(process.wait(), 30) == -signal.SIGKILL
    log = await platform.until(session)
    assert log[-1]["stop_reason"]["type"] == "retries_exhausted"
    sandboxes = PlayedSandboxes()
    async with platform.runner(sandboxes=sandboxes):
        await platform.say(session, "LEN:3")
        log = await platform.until_logged(session, "agent.message")
    assert sandboxes.calls == []
    assert "work_outcome_unknown" in text_of(of(log, "agent.tool_result")[0])


async def test_a_paused_runner_writes_nothing_after_its_lease(platform: World) -> None:
    session = await platform.session()
    model = ScriptedModel([say("taken over"), say("the next turn")])
    async with platform.runner_process() as process:
        await platform.say(session, "DELAY:20 LEN:100")
        await platform.until_logged(session, "span.model_request_start")
        process.send_signal(signal.SIGSTOP)
        async with platform.runner(model):
            log = await platform.until(session)
        process.send_signal(signal.SIGCONT)
        # It is awake again when it takes the next turn, and has had its chance to write by then.
        await platform.say(session, "LEN:1")
        log = await platform.until(session)
    messages = [text_of(event) for event in of(log, "agent.message")]
    assert messages[0] == "taken over" and len(messages) == 2
    assert len(of(log, "session.status_rescheduled")) == 1
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))


async def test_a_long_turn_keeps_its_lease(platform: World) -> None:
    session = await platform.session()

    async def think() -> None:
        await asyncio.sleep(LEASE_SECONDS * 2.5)

    async with platform.runner(ScriptedModel([[think, *say("slow")]]), lease_seconds=LEASE_SECONDS):
        await platform.say(session, "go")
        log = await platform.until(session)
    assert not of(log, "session.status_rescheduled")
    assert text_of(of(log, "agent.message")[0]) == "slow"


async def test_an_orderly_stop_hands_the_turn_over(platform: World) -> None:
    session, gate = await platform.session(TOOLSET), Gate()
    stuck = ScriptedModel([call(("bash", {"command": "slow"}))])
    async with platform.runner(stuck, PlayedSandboxes(gate), runner_drain_seconds=0.1):
        await platform.say(session, "go")
        await gate.reached.wait()
    # The first runner has stopped by now; nothing of its turn is open.
    log = await platform.clients.log(session)
    assert await platform.clients.status(session) == "running"
    async with platform.runner(ScriptedModel([say("went on")])):
        log = await platform.until(session)
    assert "work_outcome_unknown" in text_of(of(log, "agent.tool_result")[0])
    assert text_of(of(log, "agent.message")[0]) == "went on"
    assert not of(log, "session.status_rescheduled")


async def test_a_deleted_session_stops_its_turn(platform: World) -> None:
    session, gate = await platform.session(), Gate()
    model = ScriptedModel([[wait_at(gate), *say("never")]])
    async with platform.runner(model) as runner:
        await platform.say(session, "go")
        await gate.reached.wait()
        await platform.clients.sessions.DeleteSession(DeleteSessionRequest(session_id=session))
        await await_until(lambda: runner.claims.held == 0)
    assert model.closed == 1


async def test_one_slow_turn_slows_no_other(platform: World) -> None:
    slow, gate = await platform.session(), Gate()
    model = ScriptedModel([[wait_at(gate), *say("slow")], say("quick")])
    async with platform.runner(model):
        await platform.say(slow, "go")
        await gate.reached.wait()
        others = [await platform.session() for _ in range(5)]
        for session in others:
            await platform.say(session, "go")
        for session in others:
            await platform.until(session)
        assert await platform.clients.status(slow) == "running"
        gate.opened.set()
        await platform.until(slow)


async def test_a_sessions_service_that_restarts_costs_no_turn(make_database, nats_url) -> None:
    gate = Gate()
    model = ScriptedModel([[wait_at(gate), *say("through the gap")], say("and after it")])
    async with world(await make_database("sessions", MIGRATIONS), nats_url) as platform:
        session = await platform.session()
        async with platform.runner(model) as runner:
            await platform.say(session, "go")
            await gate.reached.wait()
            await platform.stop_sessions()
            gate.opened.set()
            await await_until(lambda: model.closed == 1)
            assert runner.claims.held == 1
            await platform.start_sessions()
            log = await platform.until(session)
            assert text_of(of(log, "agent.message")[0]) == "through the gap"
            await platform.say(session, "and now")
            log = await platform.until_logged(session, "agent.message", 2)
    assert not of(log, "session.status_rescheduled") and not of(log, "session.error")
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))


async def test_previews_start_before_and_match_the_stored_event(platform: World, nats: Nats) -> None:
    session, heard = await platform.session(), []

    async def hear(message) -> None:
        heard.append(Preview.FromString(message.data))

    await nats.subscribe(f"sessions.preview.{session}", hear)
    await nats.client.flush()
    parts = [
        ThinkingStart(),
        ThinkingEnd(),
        *(TextDelta(f"{number} ") for number in range(50)),
        Stop(StopReason.END_TURN),
    ]
    async with platform.runner(ScriptedModel([parts])):
        await platform.say(session, "go")
        log = await platform.until(session)
        await await_until(lambda: len(heard) >= 3)
    thinking, start, first, *_ = [orjson.loads(preview.body) for preview in heard]
    assert [preview.frame for preview in heard[:3]] == ["event_start", "event_start", "event_delta"]
    assert thinking["event"] == {"type": "agent.thinking", "id": of(log, "agent.thinking")[0]["id"]}
    assert start["event"] == {"type": "agent.message", "id": of(log, "agent.message")[0]["id"]}
    assert first["event_id"] == start["event"]["id"]
    assert text_of(of(log, "agent.message")[0]).startswith(first["delta"]["content"]["text"])
