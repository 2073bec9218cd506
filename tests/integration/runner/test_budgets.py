"""A session at its ceiling asks no model, settles what is under way, and goes on when there is budget again."""

from datetime import datetime
from typing import Any

import orjson
import pytest

from kit.errors import DomainError
from kit.testing import await_until
from managed_agents.sessions.v1 import agents_pb2, sessions_pb2, turns_pb2
from services.worker.runner.models.base import Stop, StopReason, TextDelta, TokenUsage, UsageReport
from tests.integration.runner.harness import World, of, types
from tests.integration.runner.played import ASKING, TOOLSET, Gate, PlayedSandboxes, ScriptedModel, call, say, wait_at
from tests.integration.sessions.turn_driver import user

# A cent a token, whatever kind it is.
_CENT = dict.fromkeys(("input", "output", "cache_read", "cache_write_5m", "cache_write_1h"), "10000")
PAUSE = ["session.thread_status_idle", "session.usage", "session.status_idle"]
# `call` spends 18 cents and `say` 15.
CALLED, SAID = 18, 15


@pytest.fixture
def sessions_settings() -> dict[str, Any]:
    """List prices of the demo model, under the name that agents call it by, and of one that no agent names."""
    return {"cost_profile": orjson.dumps({"models": {"default": _CENT, "listed": _CENT}}).decode()}


def cents(amount: int) -> dict[str, Any]:
    return {"type": "limit", "max_list_cost": {"amount": str(amount), "currency": "USD"}}


async def budgeted(platform: World, amount: int, *tools: Any, model: str = "default") -> str:
    agent = {"name": "tester", "model": model, "system": "Be brief.", "tools": list(tools)}
    created = await platform.clients.agents.CreateAgent(
        agents_pb2.CreateAgentRequest(definition_json=orjson.dumps(agent))
    )
    body = {"agent": created.agent.id, "environment_id": "env_default", "budget": cents(amount)}
    request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps(body))
    return (await platform.clients.sessions.CreateSession(request)).session.id


async def session_of(platform: World, session_id: str) -> sessions_pb2.Session:
    request = sessions_pb2.GetSessionRequest(session_id=session_id)
    return (await platform.clients.sessions.GetSession(request)).session


async def change(platform: World, session_id: str, budget: Any) -> sessions_pb2.Session:
    request = sessions_pb2.UpdateSessionRequest(session_id=session_id, patch_json=orjson.dumps({"budget": budget}))
    return (await platform.clients.sessions.UpdateSession(request)).session


async def refused(awaited: Any) -> DomainError:
    with pytest.raises(DomainError) as caught:
        await awaited
    return caught.value


def reason_of(log: list[dict[str, Any]]) -> str:
    return log[-1]["stop_reason"]["type"]


async def test_the_request_in_flight_ends_and_the_next_does_not_begin(platform: World) -> None:
    session = await budgeted(platform, CALLED - 1, TOOLSET)
    model = ScriptedModel([call(("bash", {"command": "ls"})), say("done")])
    sandboxes = PlayedSandboxes()
    async with platform.runner(model, sandboxes):
        await platform.say(session, "go")
        log = await platform.until(session)
    assert len(model.requests) == 1
    # What the last request asked for is still done: it is paid for, and costs nothing more.
    assert len(sandboxes.calls) == 1
    assert types(log)[-4:] == ["agent.tool_result", *PAUSE]
    assert log[-1]["stop_reason"] == log[-3]["stop_reason"] == {"type": "budget_reached"}
    usage = log[-2]["usage"]
    assert (usage["list_cost"], usage["budget"]) == (CALLED, cents(CALLED - 1))


async def test_a_session_that_is_done_at_its_ceiling_ends_as_ever_and_takes_no_more_work(platform: World) -> None:
    session = await budgeted(platform, SAID)
    async with platform.runner(ScriptedModel([say("done")])):
        await platform.say(session, "go")
        log = await platform.until(session)
        assert reason_of(log) == "end_turn"
        refusal = await refused(platform.say(session, "more"))
    assert refusal.reason == "BUDGET_REACHED"
    assert "user.tool_confirmation" in refusal.message
    assert await platform.clients.log(session) == log


@pytest.mark.parametrize("after", [1000, None])
async def test_a_raise_or_removal_resumes_by_itself(platform: World, after: int | None) -> None:
    session = await budgeted(platform, 5, TOOLSET)
    model = ScriptedModel([call(("bash", {"command": "ls"})), say("done")])
    async with platform.runner(model, PlayedSandboxes()):
        await platform.say(session, "go")
        paused = await platform.until(session)
        changed = await change(platform, session, None if after is None else cents(after))
        log = await platform.until_logged(session, "session.status_idle", 2)
    assert orjson.loads(changed.budget_json) == (None if after is None else cents(after))
    assert types(log[len(paused) :]) == [
        *("session.updated", "session.status_running", "session.thread_status_running"),
        *("span.model_request_start", "agent.message", "span.model_request_end", *PAUSE),
    ]
    assert reason_of(log) == "end_turn"
    assert log[-2]["usage"]["list_cost"] == CALLED + SAID
    # The result of the call is what the model reads, and no new message came with it.
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant", "user"]


async def test_a_budget_that_was_removed_reads_back_as_null_and_never_comes_back(platform: World) -> None:
    session = await budgeted(platform, 500)
    assert (await change(platform, session, None)).budget_json == b"null"
    assert (await refused(change(platform, session, cents(900)))).reason == "BUDGET_CREATE_ONLY"
    assert (await session_of(platform, session)).budget_json == b"null"
    log = await platform.clients.log(session)
    assert [(event["type"], event["budget"]) for event in log] == [("session.updated", None)]


async def test_a_ceiling_at_or_below_what_was_spent_is_refused(platform: World) -> None:
    session = await budgeted(platform, 500)
    async with platform.runner(ScriptedModel([say("done")])):
        await platform.say(session, "go")
        await platform.until(session)
    for amount in (1, SAID):
        assert (await refused(change(platform, session, cents(amount)))).reason == "BUDGET_NOT_RAISED"
    lowered = await change(platform, session, cents(SAID + 1))
    assert orjson.loads(lowered.budget_json) == cents(SAID + 1)


async def test_a_pending_confirmation_wins_and_its_answer_is_taken(platform: World) -> None:
    session = await budgeted(platform, 5, ASKING)
    model = ScriptedModel([call(("bash", {"command": "ls"})), say("done")])
    sandboxes = PlayedSandboxes()
    async with platform.runner(model, sandboxes):
        await platform.say(session, "go")
        log = await platform.until(session, "requires_action")
        assert reason_of(log) == "requires_action"
        assert (await refused(platform.say(session, "more"))).reason == "BUDGET_REACHED"
        call_id = of(log, "agent.tool_use")[0]["id"]
        answer = {"type": "user.tool_confirmation", "tool_use_id": call_id, "result": "allow"}
        await platform.clients.send(session, answer)
        log = await platform.until_logged(session, "session.status_idle", 2)
        assert reason_of(log) == "budget_reached"
        assert types(log)[-4:] == ["agent.tool_result", *PAUSE]
        assert (len(sandboxes.calls), len(model.requests)) == (1, 1)
        await change(platform, session, cents(1000))
        log = await platform.until_logged(session, "session.status_idle", 3)
    assert reason_of(log) == "end_turn"


async def test_an_interrupt_of_a_paused_session_is_taken_and_leaves_no_trace(platform: World) -> None:
    session = await budgeted(platform, 5, TOOLSET)
    model = ScriptedModel([call(("bash", {"command": "ls"})), say("done")])
    async with platform.runner(model, PlayedSandboxes()):
        await platform.say(session, "go")
        paused = await platform.until(session)
        response = await platform.clients.send(session, {"type": "user.interrupt"})
        assert list(response.events) == []
        assert await platform.clients.log(session) == paused
        # It stopped nothing: the work that waits for budget goes on with it.
        await change(platform, session, None)
        log = await platform.until_logged(session, "session.status_idle", 2)
    assert reason_of(log) == "end_turn"


async def test_a_message_that_waits_at_the_ceiling_is_read_after_the_pause(platform: World) -> None:
    session = await budgeted(platform, SAID)
    gate = Gate()
    model = ScriptedModel([[wait_at(gate), *say("first")], say("second")])
    async with platform.runner(model):
        await platform.say(session, "go")
        await gate.reached.wait()
        await platform.say(session, "and this")
        gate.opened.set()
        paused = await platform.until(session)
        assert reason_of(paused) == "budget_reached"
        assert [event["processed_at"] is None for event in of(paused, "user.message")] == [False, True]
        await change(platform, session, cents(1000))
        log = await platform.until_logged(session, "session.status_idle", 2)
    assert reason_of(log) == "end_turn"
    assert list(model.requests[1].messages[-1].content) == [{"type": "text", "text": "and this"}]
    assert all(event["processed_at"] for event in of(log, "user.message"))


async def test_an_answer_that_an_interrupt_cut_off_is_charged(platform: World) -> None:
    session = await budgeted(platform, 1000)
    gate = Gate()
    model = ScriptedModel([[TextDelta("so far"), UsageReport(TokenUsage(7, 4)), wait_at(gate)]])
    async with platform.runner(model):
        await platform.say(session, "go")
        await gate.reached.wait()
        await platform.clients.send(session, {"type": "user.interrupt"})
        log = await platform.until(session)
    assert (reason_of(log), log[-2]["usage"]["list_cost"]) == ("end_turn", 11)


async def test_another_runner_knows_that_the_ceiling_is_reached(platform: World) -> None:
    session = await budgeted(platform, 5, TOOLSET)
    await platform.say(session, "go")
    async with platform.clients.runner(slots=1) as lost:
        grant = await lost.granted()
        assert not grant.budget_reached
        spent = turns_pb2.ModelUsage(model_id="listed", usage=sessions_pb2.Usage(input_tokens=6))
        response = await platform.clients.append(grant, usage=[spent])
        assert response.budget_reached
        await platform.clients.turns.ReleaseTurn(turns_pb2.ReleaseTurnRequest(session_id=session, epoch=grant.epoch))
    model = ScriptedModel([say("never said")])
    async with platform.runner(model):
        log = await platform.until(session)
    assert (reason_of(log), model.requests) == ("budget_reached", [])


async def test_usage_that_has_no_list_price_pauses_a_budgeted_session_until_its_budget_goes(platform: World) -> None:
    session = await budgeted(platform, 500, TOOLSET)
    await platform.say(session, "go")
    async with platform.clients.runner() as driven:
        grant = await driven.granted()
        spent = turns_pb2.ModelUsage(model_id="unlisted", usage=sessions_pb2.Usage(input_tokens=1))
        assert (await platform.clients.append(grant, usage=[spent])).budget_reached
        end = turns_pb2.TurnEnd(kind=turns_pb2.TURN_END_KIND_BUDGET_REACHED)
        await platform.clients.append(grant, end=end)
    log = await platform.clients.log(session)
    assert reason_of(log) == "budget_reached"
    assert "list_cost" not in log[-2]["usage"]
    assert (await refused(change(platform, session, cents(900)))).reason == "BUDGET_MODEL_WITHOUT_LIST_PRICE"
    async with platform.runner(ScriptedModel([say("done")])):
        await change(platform, session, None)
        assert reason_of(await platform.until_logged(session, "session.status_idle", 2)) == "end_turn"


async def test_what_each_model_took_is_told_under_the_name_that_answered(platform: World) -> None:
    session = await budgeted(platform, 1000)
    other = [TextDelta("hi"), UsageReport(TokenUsage(3, 2)), Stop(StopReason.END_TURN, model_id="demo-2026-11-30")]
    async with platform.runner(ScriptedModel([say("done"), other])):
        for text in ("one", "two"):
            await platform.say(session, text)
            await platform.until(session)
    told = await session_of(platform, session)
    assert told.list_cost_cents == SAID + 5
    assert [(entry.model_id, entry.usage.input_tokens, entry.list_cost_usd) for entry in told.spend] == [
        ("demo", 10, "0.15"),
        ("demo-2026-11-30", 3, "0.05"),
    ]


async def test_a_session_without_a_budget_tells_its_cost_and_never_pauses(platform: World) -> None:
    session = await platform.session(TOOLSET)
    model = ScriptedModel([call(("bash", {"command": "ls"})), say("done")])
    async with platform.runner(model, PlayedSandboxes()):
        await platform.say(session, "go")
        log = await platform.until(session)
    assert (reason_of(log), log[-2]["usage"]["list_cost"], log[-2]["budget"]) == ("end_turn", CALLED + SAID, None)


async def test_a_model_that_the_profile_does_not_list_can_not_be_budgeted(platform: World) -> None:
    refusal = await refused(budgeted(platform, 500, model="claude-unlisted"))
    assert refusal.reason == "BUDGET_MODEL_WITHOUT_LIST_PRICE"
    assert "claude-unlisted" in refusal.message


async def test_active_seconds_are_the_intervals_of_the_log(platform: World) -> None:
    session = await budgeted(platform, 5, ASKING)
    model = ScriptedModel([call(("bash", {"command": "ls"})), say("done")])
    async with platform.runner(model, PlayedSandboxes()):
        await platform.say(session, "go")
        log = await platform.until(session, "requires_action")
        call_id = of(log, "agent.tool_use")[0]["id"]
        await platform.clients.send(
            session, {"type": "user.tool_confirmation", "tool_use_id": call_id, "result": "allow"}
        )
        await platform.until_logged(session, "session.status_idle", 2)
        await change(platform, session, None)
        log = await platform.until_logged(session, "session.status_idle", 3)
    active, since = 0.0, None
    for event in log:
        moment = datetime.fromisoformat(event["created_at"])
        if event["type"] == "session.status_running":
            since = moment
        elif event["type"] == "session.usage":
            assert since is not None
            active, since = active + (moment - since).total_seconds(), None
            assert event["usage"]["active_seconds"] == pytest.approx(active, abs=0.001)
    assert len(of(log, "session.usage")) == 3


async def test_initial_events_start_a_budgeted_session(platform: World) -> None:
    session = await platform.clients.create_session(user("go"), budget=cents(500), agent=await _agent(platform))
    async with platform.runner(ScriptedModel([say("done")])):
        assert reason_of(await platform.until(session)) == "end_turn"

    async def told() -> bool:
        return (await session_of(platform, session)).list_cost_cents == SAID

    await await_until(told)


async def _agent(platform: World) -> str:
    definition = orjson.dumps({"name": "tester", "model": "listed", "system": "Be brief."})
    created = await platform.clients.agents.CreateAgent(agents_pb2.CreateAgentRequest(definition_json=definition))
    return created.agent.id


async def test_an_outcome_closes_at_the_ceiling_and_is_not_measured(platform: World) -> None:
    session = await budgeted(platform, SAID)
    outcome = {
        "type": "user.define_outcome",
        "description": "Ship it",
        "rubric": {"type": "text", "content": "It is shipped"},
    }
    model = ScriptedModel([say("done"), say("never asked for")])
    async with platform.runner(model):
        await platform.clients.send(session, outcome)
        log = await platform.until(session)
        assert len(model.requests) == 1
        (end,) = of(log, "span.outcome_evaluation_end")
        assert (end["result"], end["outcome_evaluation_start_id"]) == ("budget_reached", "")
        assert of(log, "span.outcome_evaluation_start") == []
        assert types(log)[-3:] == PAUSE
        assert reason_of(log) == "budget_reached"
        assert (await refused(platform.clients.send(session, outcome))).reason == "BUDGET_REACHED"
        # The outcome is over, so a raise finds nothing to go on with, and new work is taken.
        await change(platform, session, cents(1000))
        log = await platform.until_logged(session, "session.status_idle", 2)
        assert (reason_of(log), len(model.requests)) == ("end_turn", 1)
        await platform.say(session, "more")
        assert reason_of(await platform.until_logged(session, "session.status_idle", 3)) == "end_turn"
