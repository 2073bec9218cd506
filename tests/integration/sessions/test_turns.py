"""Turns over real servers: grants, the order of events, context, repeats, many appends, tenants."""

import asyncio
from pathlib import Path

import orjson
import pytest

from kit.errors import DomainError, FailedPrecondition, InvalidArgument, NotFound
from kit.nats import Nats
from kit.rpc.context import CallContext
from kit.testing import await_until
from managed_agents.sessions.v1 import events_pb2, sessions_pb2, turns_pb2
from tests.integration.sessions.turn_driver import (
    IDLE,
    REQUEST,
    RUNNING,
    Replica,
    answer,
    end,
    heard,
    once,
    replica,
    types,
    user,
)

pytestmark = pytest.mark.asyncio(loop_scope="package")


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
            grant = await runner.granted(timeout=20)
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
