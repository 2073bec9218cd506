"""Turns over real servers: grants, the order of events, queued input, interrupts, answers, context."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from kit.errors import DomainError, FailedPrecondition, InvalidArgument, NotFound
from kit.nats import Nats
from kit.rpc.context import CallContext
from kit.testing import await_until
from managed_agents.sessions.v1 import events_pb2, sessions_pb2, turns_pb2
from tests.integration.sessions.turn_driver import (
    MIGRATIONS,
    Replica,
    Runner,
    answer,
    call,
    end,
    event,
    once,
    replica,
    types,
    user,
)

RUNNING = ["session.status_running", "session.thread_status_running"]
IDLE = ["session.thread_status_idle", "session.usage", "session.status_idle"]
REQUEST = ["span.model_request_start", "agent.message", "span.model_request_end"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ma-") as name:
        yield Path(name)


@pytest.fixture
async def dsn(make_database: Any) -> str:
    return await make_database("sessions", MIGRATIONS)


@pytest.fixture
async def one(dsn: str, nats_url: str, folder: Path) -> AsyncIterator[Replica]:
    async with replica(dsn, nats_url, folder, sweep_seconds=0.1) as clients:
        yield clients


async def heard(nats: Nats, subject: str) -> list[bytes]:
    """A list that fills with what is published on a subject."""
    messages: list[bytes] = []

    async def keep(message: Any) -> None:
        messages.append(message.data)

    await nats.subscribe(subject, keep)
    await nats.client.flush()
    return messages


async def park(one: Replica, runner: Runner, session_id: str, *calls: Any) -> turns_pb2.TurnGrant:
    """A turn that ends with calls that wait for a client."""
    await one.send(session_id, user("do it"))
    grant = await runner.granted()
    ended = await one.append(
        grant, event("span.model_request_start"), *calls, end=end("REQUIRES_ACTION", event_ids=[c.id for c in calls])
    )
    assert ended.ended
    return grant


async def test_a_plain_turn_is_granted_at_once_and_written_in_order(one: Replica) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        stored = await one.send(session_id, user("hello"))
        grant = await runner.granted()
        assert (grant.session.id, grant.epoch, grant.attempt) == (session_id, 1, 1)
        assert [entry.type for entry in grant.context] == ["user.message"]
        assert grant.context_complete
        assert grant.thread_id.startswith("sthr_")
        assert orjson.loads(grant.environment_json)["sandbox_provider"] == "local"
        ended = await one.append(grant, *answer(), end=end())
        assert ended.ended
    log = await one.log(session_id)
    assert types(log) == ["user.message", *RUNNING, *REQUEST, *IDLE]
    assert [entry["seq"] for entry in log] == list(range(1, 10))
    assert log[-1]["stop_reason"] == {"type": "end_turn"}
    assert list(log[0])[:5] == ["id", "type", "seq", "created_at", "processed_at"]
    assert [entry.id for entry in stored.events] == [log[0]["id"]]
    assert await one.status(session_id) == "idle"


async def test_initial_events_start_the_turn_of_a_new_session(one: Replica) -> None:
    async with one.runner() as runner:
        session_id = await one.create_session(user("first"))
        grant = await runner.granted()
    assert grant.session.id == session_id
    assert types(await one.log(session_id)) == ["user.message", *RUNNING]


async def test_a_turn_waits_for_a_runner_and_then_gets_one(one: Replica) -> None:
    session_id = await one.create_session()
    await one.send(session_id, user())
    assert await one.status(session_id) == "running"
    async with one.runner() as runner:
        assert (await runner.granted()).session.id == session_id


async def test_the_runner_of_another_replica_hears_of_a_turn(
    one: Replica, dsn: str, nats_url: str, folder: Path
) -> None:
    async with replica(dsn, nats_url, folder, sweep_seconds=30) as two, two.runner() as runner:
        session_id = await one.create_session()
        for _ in range(3):
            await one.send(session_id, user())
            grant = await runner.granted(timeout=2)
            assert (await two.append(grant, *answer(), end=end())).ended
    log = await one.log(session_id)
    assert [entry["seq"] for entry in log] == list(range(1, len(log) + 1))


async def test_a_runner_gets_no_more_turns_than_it_has_places(one: Replica) -> None:
    async with one.runner(slots=1) as first:
        sessions = [await one.create_session(user()) for _ in range(2)]
        granted = await first.granted()
        async with one.runner(slots=1) as second:
            other = await second.granted()
        assert {granted.session.id, other.session.id} == set(sessions)


async def test_a_session_goes_back_to_the_runner_that_knows_it(one: Replica) -> None:
    async with one.runner(slots=3) as first:
        session_id = await one.create_session(user())
        await one.append(await first.granted(), *answer(), end=end())
        async with one.runner(slots=50) as second:
            # Another session shows that the second one has taken its seat, and that it is the freer one.
            other = await one.create_session()
            await one.send(other, user())
            assert (await second.granted()).session.id == other
            await one.send(session_id, user())
            assert (await first.granted()).session.id == session_id


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


async def test_usage_and_active_time_add_up(one: Replica) -> None:
    session_id = await one.create_session()
    usage = turns_pb2.ModelUsage(model_id="demo", usage=sessions_pb2.Usage(input_tokens=10, output_tokens=3))
    async with one.runner() as runner:
        for _ in range(2):
            await one.send(session_id, user())
            await one.append(await runner.granted(), *answer(), usage=[usage, usage], end=end())
    told = [entry["usage"] for entry in await one.log(session_id) if entry["type"] == "session.usage"]
    assert [(entry["input_tokens"], entry["output_tokens"]) for entry in told] == [(20, 6), (40, 12)]
    assert 0 < told[0]["active_seconds"] < told[1]["active_seconds"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("REFUSAL", "refusal"), ("FAILED", "retries_exhausted"), ("RETRIES_EXHAUSTED", "retries_exhausted")],
)
async def test_a_turn_that_fails_leaves_a_session_that_can_be_used(one: Replica, kind: str, reason: str) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user())
        assert (await one.append(await runner.granted(), end=end(kind))).ended
        assert (await one.log(session_id))[-1]["stop_reason"]["type"] == reason
        await one.send(session_id, user("again"))
        assert (await one.append(await runner.granted(), *answer(), end=end())).ended


async def test_a_long_context_is_cut_and_can_be_read_on(one: Replica) -> None:
    session_id = await one.create_session()
    await one.send(session_id, *[user(f"message {number}") for number in range(450)])
    async with one.runner() as runner:
        grant = await runner.granted()
        assert not grant.context_complete
        known = [entry.seq for entry in grant.context]
        request = turns_pb2.ReadTurnContextRequest(session_id=session_id, after_seq=known[-1])
        async for batch in one.turns.ReadTurnContext(request):
            known.extend(entry.seq for entry in batch.events)
        assert known == list(range(1, 451))


async def test_a_runner_only_gets_the_context_that_it_does_not_know(one: Replica) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user("first"))
        done = await one.append(await runner.granted(), *answer(), end=end())
        await runner.wait(4, **{session_id: done.last_seq})
        await one.send(session_id, user("second"))
        grant = await runner.granted()
        assert grant.context_after_seq == done.last_seq
        assert [orjson.loads(entry.body)["content"][0]["text"] for entry in grant.context] == ["second"]


async def test_many_appends_at_once_leave_no_gap_and_bad_ones_hurt_nobody(one: Replica) -> None:
    sessions = [await one.create_session() for _ in range(4)]

    async def post(number: int) -> bool:
        event = {"type": "user.interrupt"}
        if number % 5 == 0:
            event = {"type": "user.tool_confirmation", "tool_use_id": f"toolu_{number}", "result": "allow"}
        try:
            await one.send(sessions[number % 4], event)
        except InvalidArgument:
            return False
        return True

    stored = await asyncio.gather(*(post(number) for number in range(200)))
    assert sum(stored) == 160
    for session_id in sessions:
        log = await one.log(session_id)
        assert [entry["seq"] for entry in log] == list(range(1, len(log) + 1))
    assert sum([len(await one.log(session_id)) for session_id in sessions]) == 160


async def test_two_replicas_write_one_log_without_gaps(one: Replica, dsn: str, nats_url: str, folder: Path) -> None:
    async with replica(dsn, nats_url, folder) as two:
        session_id = await one.create_session()
        sent = await asyncio.gather(
            *((one, two)[number % 2].send(session_id, {"type": "user.interrupt"}) for number in range(60))
        )
        log = await one.log(session_id)
    assert [entry["seq"] for entry in log] == list(range(1, 61))
    assert sorted(entry.id for response in sent for entry in response.events) == sorted(entry["id"] for entry in log)


async def test_repeats_of_a_post_are_one_message(one: Replica) -> None:
    session_id = await one.create_session()
    repeats = await asyncio.gather(*(one.send(session_id, user(), idempotency=once("key")) for _ in range(10)))
    assert len({response.SerializeToString() for response in repeats}) == 1
    assert types(await one.log(session_id)).count("user.message") == 1
    with pytest.raises(DomainError) as refused:
        await one.send(session_id, user("other"), idempotency=once("key", b"other"))
    assert refused.value.reason == "IDEMPOTENCY_KEY_REUSED"
    await one.send(session_id, user(), idempotency=once("key", first_try=True))
    assert types(await one.log(session_id)).count("user.message") == 2


async def test_a_refused_post_leaves_its_key_free(one: Replica) -> None:
    session_id = await one.create_session()
    wrong = {"type": "user.custom_tool_result", "custom_tool_use_id": "toolu_1"}
    with pytest.raises(InvalidArgument):
        await one.send(session_id, wrong, idempotency=once("key"))
    assert (await one.send(session_id, user(), idempotency=once("key", b"other"))).events


async def test_steering_is_refused_and_the_log_tells_so(one: Replica) -> None:
    session_id = await one.create_session()
    steered = await one.send(session_id, {"type": "user.steer", "input_id": "steer_1", "text": "smaller"})
    assert orjson.loads(steered.steer_receipts_json)[0]["state"] == "rejected"
    log = await one.log(session_id)
    assert types(log) == ["user.steer"]
    assert log[0]["metadata"]["steer_state"] == "rejected"


async def test_another_workspace_reaches_neither_log_nor_turn(one: Replica, dsn: str, nats_url: str) -> None:
    session_id = await one.create_session(user())
    stranger = CallContext(workspace_id="wrkspc_other")
    async with one.runner() as runner:
        grant = await runner.granted()
        for method, request in (
            (one.events.AppendEvents, sessions_pb2.AppendEventsRequest(events_json=orjson.dumps([user()]))),
            (one.turns.AppendTurnEvents, turns_pb2.AppendTurnEventsRequest(epoch=grant.epoch)),
            (one.turns.ReleaseTurn, turns_pb2.ReleaseTurnRequest(epoch=grant.epoch)),
        ):
            request.session_id = session_id
            with pytest.raises(NotFound):
                await method(request, context=stranger)
        context = turns_pb2.ReadTurnContextRequest(session_id=session_id)
        assert [batch async for batch in one.turns.ReadTurnContext(context, context=stranger)] == []


async def test_a_stopped_session_takes_nothing_more(one: Replica, nats: Nats) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        signals = await heard(nats, f"runners.{runner.id}.signals")
        await one.send(session_id, user())
        grant = await runner.granted()
        await one.sessions.StopSession(sessions_pb2.StopSessionRequest(session_id=session_id))
        await await_until(lambda: signals)
        assert events_pb2.TurnSignal.FromString(signals[0]).revoked
        with pytest.raises(FailedPrecondition) as lost:
            await one.append(grant, *answer(), end=end())
        assert lost.value.reason == "TURN_LEASE_LOST"
        assert (await runner.renew(grant)).lost_session_ids == [session_id]
        with pytest.raises(FailedPrecondition):
            await one.send(session_id, user())
    assert types(await one.log(session_id))[-1] == "session.status_terminated"
