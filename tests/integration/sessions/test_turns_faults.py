"""Turns under faults: lost leases, fencing, repeats, broken streams, failures around the commit."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from kit import failpoints
from kit.errors import DomainError, FailedPrecondition
from kit.nats import Nats
from kit.testing import await_until
from managed_agents.sessions.v1 import events_pb2, turns_pb2
from tests.integration.sessions.turn_driver import (
    Replica,
    answer,
    end,
    event,
    lapse,
    once,
    replica,
    types,
    user,
)

pytestmark = pytest.mark.asyncio(loop_scope="package")

RUNNING = ["session.status_running", "session.thread_status_running"]
RESCHEDULED = ["session.status_rescheduled", "session.thread_status_rescheduled"]
IDLE = ["session.thread_status_idle", "session.usage", "session.status_idle"]


@pytest_asyncio.fixture(loop_scope="package")
async def short(dsn: str, nats_url: str, folder: Path) -> AsyncIterator[Replica]:
    """A replica whose leases are short."""
    async with replica(dsn, nats_url, folder, lease_seconds=0.4, sweep_seconds=0.05) as clients:
        yield clients


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


async def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(
        dsn, options="-c search_path=sessions -c managed_agents.workspace=*"
    ) as connection:
        return await (await connection.execute(query)).fetchall()


async def test_a_lost_lease_is_taken_over_and_the_late_runner_is_refused(one: Replica, dsn: str) -> None:
    session_id = await one.create_session(user())
    async with one.runner() as late:
        grant = await late.granted()
        await one.append(grant, event("agent.thinking"))
        await lapse(dsn, session_id)
        async with one.runner() as heir:
            taken = await heir.granted()
            assert (taken.session.id, taken.attempt) == (session_id, 2)
            assert taken.epoch > grant.epoch
            for stale in ({"end": end()}, {}, {"relaxed_durability": True}):
                with pytest.raises(FailedPrecondition) as refused:
                    await one.append(grant, *answer("late"), **stale)
                assert refused.value.reason == "TURN_LEASE_LOST"
            assert (await late.renew(grant)).lost_session_ids == [session_id]
            assert (await one.append(taken, *answer("heir"), end=end())).ended
            with pytest.raises(FailedPrecondition):
                await one.append(grant, *answer("later"), end=end())
    log = await one.log(session_id)
    answers = [entry["content"][0]["text"] for entry in log if entry["type"] == "agent.message"]
    assert answers == ["heir"]
    assert types(log)[:8] == ["user.message", *RUNNING, "agent.thinking", *RESCHEDULED, *RUNNING]


async def test_a_renewed_lease_is_kept(dsn: str, nats_url: str, folder: Path) -> None:
    # Ten renewals take longer than a lease, and a busy machine may be late with any of them.
    async with replica(dsn, nats_url, folder, lease_seconds=2, sweep_seconds=0.05) as short:
        session_id = await short.create_session(user())
        async with short.runner() as runner:
            grant = await runner.granted()
            for _ in range(10):
                renewed = await runner.renew(grant)
                assert not renewed.lost_session_ids
                assert await runner.nothing_granted(0.25)
            assert (await short.append(grant, *answer(), end=end())).ended
        assert RESCHEDULED[0] not in types(await short.log(session_id))


async def test_a_turn_that_is_lost_again_and_again_ends_with_an_error(short: Replica) -> None:
    session_id = await short.create_session(user())

    async def gone() -> bool:
        return await short.status(session_id) == "idle"

    for attempt in range(1, 4):
        # Each of them dies with the turn.
        async with short.runner() as runner:
            assert (await runner.granted()).attempt == attempt
        if attempt == 2:
            await short.send(session_id, user("queued"))
    await await_until(gone)
    log = await short.log(session_id)
    assert types(log)[-4:] == ["session.error", *IDLE]
    assert log[-4]["error"]["type"] == "turn_attempts_exhausted"
    assert log[-1]["stop_reason"] == {"type": "retries_exhausted"}
    assert all(entry["processed_at"] for entry in log)
    async with short.runner() as runner:
        await short.send(session_id, user("again"))
        grant = await runner.granted()
        assert [entry.type for entry in grant.context].count("user.message") == 3
        assert grant.attempt == 1


async def test_a_turn_that_is_given_back_goes_on_elsewhere_at_once(one: Replica) -> None:
    session_id = await one.create_session(user())
    async with one.runner(slots=1) as first, AsyncExitStack() as stack:
        grant = await first.granted()
        other = await stack.enter_async_context(one.runner(slots=1))
        await one.turns.ReleaseTurn(turns_pb2.ReleaseTurnRequest(session_id=session_id, epoch=grant.epoch))
        taken = await other.granted()
        assert (taken.attempt, taken.epoch > grant.epoch) == (1, True)
        with pytest.raises(FailedPrecondition):
            await one.append(grant, *answer(), end=end())
        with pytest.raises(FailedPrecondition):
            await one.turns.ReleaseTurn(turns_pb2.ReleaseTurnRequest(session_id=session_id, epoch=grant.epoch))
        assert (await one.append(taken, *answer(), end=end())).ended
    assert types(await one.log(session_id)).count("session.status_running") == 1


async def test_repeated_appends_are_written_once(one: Replica) -> None:
    session_id = await one.create_session(user())
    marker, usage = event("agent.thinking"), turns_pb2.ModelUsage(usage={"input_tokens": 5})
    async with one.runner() as runner:
        grant = await runner.granted()
        await asyncio.gather(*(one.append(grant, marker, usage=[usage]) for _ in range(5)))
        final = answer()
        ended = await asyncio.gather(*(one.append(grant, *final, end=end()) for _ in range(5)))
        assert all(response.ended for response in ended)
        assert (await one.append(grant, *final, end=end())).ended
        assert (await one.append(grant, marker)).ended
        with pytest.raises(FailedPrecondition):
            await one.append(grant, *final, event("agent.message", content=[]))
    log = await one.log(session_id)
    assert types(log).count("agent.thinking") == types(log).count("agent.message") == 1
    assert types(log)[-3:] == IDLE
    assert types(log).count("session.status_idle") == 1
    assert log[-2]["usage"]["input_tokens"] == 5


async def test_a_repeat_that_also_brings_news_writes_the_news(one: Replica) -> None:
    session_id = await one.create_session(user())
    known, news = event("agent.thinking"), event("agent.message", content=[])
    async with one.runner() as runner:
        grant = await runner.granted()
        await one.append(grant, known)
        await one.append(grant, known, news)
    assert types(await one.log(session_id))[-2:] == ["agent.thinking", "agent.message"]


async def test_the_turns_of_a_runner_that_vanishes_go_on_after_their_lease(one: Replica, dsn: str) -> None:
    async with one.runner(slots=50) as broken:
        sessions = {await one.create_session(user()) for _ in range(3)}
        await broken.granted()
    await lapse(dsn, *sessions)
    async with one.runner(slots=50) as heir:
        finished = set()
        while finished != sessions:
            grant = await heir.granted()
            assert (await one.append(grant, *answer(), end=end())).ended
            finished.add(grant.session.id)


async def test_a_commit_that_fails_grants_nothing_and_leaves_no_trace(one: Replica) -> None:
    session_id = await one.create_session(user())
    async with one.runner(slots=2) as runner:
        await one.append(await runner.granted(), *answer(), end=end())
        before = await one.log(session_id)
        failpoints.arm("sessions.append.before_commit=raise")
        shared = [one.send(session_id, user()) for _ in range(3)]
        own = [one.send(session_id, user(), idempotency=once(f"key {number}")) for number in range(3)]
        outcomes = await asyncio.gather(*shared, *own, return_exceptions=True)
        failpoints.arm("")
        refused = [outcome for outcome in outcomes if isinstance(outcome, DomainError)]
        log = await one.log(session_id)
        assert len(refused) == len(outcomes)
        assert log == before
        # The places that were reserved are free again.
        await one.send(session_id, user(), idempotency=once("key 1"))
        assert (await runner.granted()).epoch == 2


async def test_a_grant_that_can_not_be_handed_over_is_made_good(one: Replica, dsn: str) -> None:
    failpoints.arm("turns.grant.after_commit=raise@1")
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user())
        # The grant is lost after its commit. Its lease runs out, and the runner shows that it is alive.

        async def taken_back() -> bool:
            await lapse(dsn, session_id)
            return await one.status(session_id) == "rescheduling"

        await await_until(taken_back)
        await runner.wait(4)
        grant = await runner.granted()
        assert grant.session.id == session_id
        assert (await one.append(grant, *answer(), end=end())).ended
    assert types(await one.log(session_id))[-1] == "session.status_idle"


async def test_each_append_leaves_one_message_for_durable_consumers(one: Replica, nats: Nats, dsn: str) -> None:
    subscription = await nats.subscribe("sessions.log.>")
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user())
        await one.append(await runner.granted(), *answer(), end=end())
    seen: list[events_pb2.EventsAppended] = []
    ids: list[str] = []
    while sum(len(message.events) for message in seen) < 9:
        message = await subscription.next_msg(timeout=30)
        appended = events_pb2.EventsAppended.FromString(message.data)
        if appended.session_id == session_id:
            seen.append(appended)
            ids.append(message.headers["Nats-Msg-Id"])
    assert [entry.seq for message in seen for entry in message.events] == list(range(1, 10))
    assert ids == [message.events[0].id for message in seen]
    assert {message.workspace_id for message in seen} == {"wrkspc_default"}

    async def drained() -> bool:
        return await rows(dsn, "SELECT count(*) FROM outbox") == [(0,)]

    await await_until(drained)


async def test_no_turn_row_outlives_its_turn(one: Replica, dsn: str) -> None:
    sessions = [await one.create_session(user()) for _ in range(5)]
    async with one.runner(slots=50) as runner:
        for _ in sessions:
            await one.append(await runner.granted(), *answer(), end=end())
    assert await rows(dsn, "SELECT count(*) FROM turns") == [(0,)]
    standing = await rows(dsn, "SELECT DISTINCT status, turn_state, running_since FROM sessions")
    assert standing == [("idle", "none", None)]
