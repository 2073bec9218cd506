"""What clients send while a turn runs or waits: queued input, interrupts, answers, steering."""

from typing import Any

import orjson
import pytest

from kit.errors import InvalidArgument
from kit.nats import Nats
from kit.testing import await_until
from managed_agents.sessions.v1 import events_pb2
from tests.integration.sessions.turn_driver import (
    IDLE,
    REQUEST,
    RUNNING,
    Replica,
    answer,
    call,
    end,
    event,
    heard,
    park,
    types,
    user,
)

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_input_during_a_turn_waits_until_the_model_reads_it(one: Replica, nats: Nats) -> None:
    session_id = await one.create_session()
    live = await heard(nats, f"sessions.live.{session_id}")
    async with one.runner() as runner:
        await one.send(session_id, user("first"))
        grant = await runner.granted()
        queued = await one.send(session_id, user("second"))
        assert orjson.loads(queued.events[0].body)["processed_at"] is None
        going_on = await one.append(grant, *answer(), end=end())
        assert not going_on.ended
        assert [entry.id for entry in going_on.new_events] == [queued.events[0].id]
        assert await one.status(session_id) == "running"
        done = await one.append(grant, *answer(), known_seq=going_on.last_seq, end=end())
        assert done.ended
    log = await one.log(session_id)
    assert types(log) == ["user.message", *RUNNING, "user.message", *REQUEST, *REQUEST, *IDLE]
    assert log[3]["processed_at"] is not None
    assert log[3]["processed_at"] > log[3]["created_at"]

    def told() -> list[Any]:
        batches = [events_pb2.LiveEvents.FromString(data).events for data in live]
        return [orjson.loads(entry.body) for batch in batches for entry in batch if entry.seq == 4]

    await await_until(lambda: len(told()) == 2)
    assert [entry["processed_at"] is None for entry in told()] == [True, False]
    assert told()[1] == log[3]


async def test_what_the_runner_has_not_seen_comes_with_each_append(one: Replica) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user("first"))
        grant = await runner.granted()
        await one.send(session_id, user("second"))
        marker = await one.append(grant, event("agent.thinking"), relaxed_durability=True)
        assert [orjson.loads(entry.body)["content"][0]["text"] for entry in marker.new_events] == ["second"]
        again = await one.append(grant, event("agent.thinking"), known_seq=marker.last_seq)
        assert not again.new_events


async def test_an_interrupt_reaches_the_runner_and_the_turn_ends(one: Replica, nats: Nats) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        signals = await heard(nats, f"runners.{runner.id}.signals")
        await one.send(session_id, user())
        grant = await runner.granted()
        sent = await one.send(session_id, {"type": "user.interrupt"})
        interrupt_seq = sent.events[0].seq
        await await_until(lambda: signals)
        signal = events_pb2.TurnSignal.FromString(signals[0])
        assert (signal.session_id, signal.epoch, signal.interrupt_seq) == (session_id, grant.epoch, interrupt_seq)
        renewed = await runner.renew(grant)
        assert [entry.interrupt_seq for entry in renewed.interrupted] == [interrupt_seq]
        marker = await one.append(grant, event("agent.message", content=[]))
        assert marker.interrupt_seq == interrupt_seq
        assert (await one.append(grant, end=end("INTERRUPTED", interrupt_seq=interrupt_seq))).ended
    log = await one.log(session_id)
    assert types(log)[-3:] == IDLE
    assert log[-1]["stop_reason"] == {"type": "end_turn"}
    assert "session.error" not in types(log)


async def test_an_interrupt_ends_a_turn_that_nobody_took(one: Replica) -> None:
    session_id = await one.create_session()
    await one.send(session_id, user())
    await one.send(session_id, {"type": "user.interrupt"})
    assert await one.status(session_id) == "idle"
    async with one.runner() as runner:
        assert await runner.nothing_granted()
    assert types(await one.log(session_id)) == ["user.message", *RUNNING, "user.interrupt", *IDLE]


async def test_an_interrupt_of_an_idle_session_is_stored_and_starts_nothing(one: Replica) -> None:
    session_id = await one.create_session()
    await one.send(session_id, {"type": "user.interrupt"}, {"type": "user.interrupt"})
    assert types(await one.log(session_id)) == ["user.interrupt"] * 2
    assert await one.status(session_id) == "idle"


async def test_answers_resume_the_turn_once_the_last_one_is_there(one: Replica) -> None:
    session_id = await one.create_session()
    asked, custom = call("agent.tool_use", "toolu_1"), call("agent.custom_tool_use", "toolu_2")
    async with one.runner() as runner:
        await park(one, runner, session_id, asked, custom)
        assert await one.status(session_id) == "requires_action"
        log = await one.log(session_id)
        assert log[-1]["stop_reason"] == {"type": "requires_action", "event_ids": [asked.id, custom.id]}

        await one.send(session_id, {"type": "user.tool_confirmation", "tool_use_id": "toolu_1", "result": "allow"})
        log = await one.log(session_id)
        assert types(log)[-4:] == ["user.tool_confirmation", *IDLE]
        assert log[-1]["stop_reason"]["event_ids"] == [custom.id]
        assert log[-4]["tool_use_id"] == asked.id
        assert log[-4]["metadata"] == {"tool_use_id": "toolu_1", "decision": "allow"}

        await one.send(
            session_id, {"type": "user.custom_tool_result", "custom_tool_use_id": custom.id, "content": "42"}
        )
        resumed = await runner.granted()
        assert (resumed.epoch, resumed.attempt) == (2, 1)
        seen = [entry.type for entry in resumed.context]
        assert seen[-2:] == ["user.tool_confirmation", "user.custom_tool_result"]
        assert (await one.append(resumed, *answer(), end=end())).ended
    assert types(await one.log(session_id))[-8:] == [*RUNNING, *REQUEST, *IDLE]


@pytest.mark.parametrize("named", ["toolu_other", "sevt_00000000000000000000000000", "toolu_2"])
async def test_an_answer_to_no_waiting_call_is_refused_with_the_waiting_ones(one: Replica, named: str) -> None:
    session_id = await one.create_session()
    asked, custom = call("agent.tool_use", "toolu_1"), call("agent.custom_tool_use", "toolu_2")
    async with one.runner() as runner:
        await park(one, runner, session_id, asked, custom)
    before = await one.log(session_id)
    confirmation = {"type": "user.tool_confirmation", "tool_use_id": "toolu_1", "result": "allow"}
    with pytest.raises(InvalidArgument) as refused:
        # The first of the two would be fine; nothing of the request is kept.
        await one.send(session_id, confirmation, confirmation | {"tool_use_id": named})
    assert refused.value.reason == "TOOL_CALL_NOT_PENDING"
    assert custom.id in refused.value.message
    assert await one.log(session_id) == before
    with pytest.raises(InvalidArgument):
        await one.send(await one.create_session(), confirmation)


async def test_an_interrupt_ends_the_wait_and_leaves_no_call_without_a_result(one: Replica) -> None:
    session_id = await one.create_session()
    asked, custom = call("agent.tool_use", "toolu_1"), call("agent.custom_tool_use", "toolu_2")
    async with one.runner() as runner:
        await park(one, runner, session_id, asked, custom)
        await one.send(session_id, {"type": "user.interrupt"})
        log = await one.log(session_id)
        assert types(log)[-6:] == ["user.interrupt", "agent.tool_result", "agent.tool_result", *IDLE]
        assert [entry["tool_use_id"] for entry in log[-5:-3]] == [asked.id, custom.id]
        assert all(entry["is_error"] for entry in log[-5:-3])
        assert log[-1]["stop_reason"] == {"type": "end_turn"}
        # The results are context of the next turn.
        await one.send(session_id, user("go on"))
        grant = await runner.granted()
        assert [entry.type for entry in grant.context][-3:] == ["agent.tool_result"] * 2 + ["user.message"]


async def test_a_message_while_calls_wait_starts_nothing_until_they_are_answered(one: Replica) -> None:
    session_id = await one.create_session()
    custom = call("agent.custom_tool_use", "toolu_1")
    async with one.runner() as runner:
        await park(one, runner, session_id, custom)
        await one.send(session_id, user("by the way"))
        assert await one.status(session_id) == "requires_action"
        assert await runner.nothing_granted()
        await one.send(session_id, {"type": "user.custom_tool_result", "custom_tool_use_id": custom.id})
        grant = await runner.granted()
        assert [entry.type for entry in grant.context][-2:] == ["user.message", "user.custom_tool_result"]
        assert (await one.append(grant, *answer(), end=end())).ended


async def test_parked_calls_may_have_been_written_before_the_end(one: Replica) -> None:
    session_id = await one.create_session()
    asked = call("agent.tool_use", "toolu_1")
    async with one.runner() as runner:
        await one.send(session_id, user())
        grant = await runner.granted()
        await one.append(grant, asked)
        with pytest.raises(InvalidArgument):
            await one.append(grant, end=end("REQUIRES_ACTION", event_ids=["sevt_00000000000000000000000000"]))
        await one.append(grant, end=end("REQUIRES_ACTION", event_ids=[asked.id]))
    await one.send(session_id, {"type": "user.tool_confirmation", "tool_use_id": "toolu_1", "result": "deny"})
    assert await one.status(session_id) == "running"


async def test_steering_is_refused_and_the_log_tells_so(one: Replica) -> None:
    session_id = await one.create_session()
    steered = await one.send(session_id, {"type": "user.steer", "input_id": "steer_1", "text": "smaller"})
    assert orjson.loads(steered.steer_receipts_json)[0]["state"] == "rejected"
    log = await one.log(session_id)
    assert types(log) == ["user.steer"]
    assert log[0]["metadata"]["steer_state"] == "rejected"
