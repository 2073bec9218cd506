"""What the waiting side is told, and when: results, the three codes and their order, repeats, stops, lost replicas."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from nats.js.errors import BadRequestError

from kit import failpoints
from kit.errors import Aborted, DomainError, Unavailable
from kit.nats import Nats
from kit.testing import await_until
from managed_agents.sessions.v1.events_pb2 import EventsAppended
from tests.integration.queue.harness import SESSION, WORKSPACE, Queue, Replica
from tests.integration.queue.test_tool_protocol import in_queue, reason_of


async def ended_as(replica: Replica, item_id: str) -> tuple[str, str]:
    item = await replica.item(item_id)
    assert item is not None
    return item.status, item.end_code


async def rows(ground: Queue, sql: Any, *values: Any) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(ground.dsn, autocommit=True) as connection:
        cursor = await connection.execute(sql, values)
        return await cursor.fetchall() if cursor.description else []


async def test_what_nobody_took_in_time_may_be_submitted_again_and_is_never_handed_out(ground: Queue) -> None:
    replica = await ground.replica()
    assert await reason_of(replica.run("work_1", queue_seconds=0.3)) == "WORK_QUEUE_TIMEOUT"
    assert await ended_as(replica, "work_1") == ("failed", "work_queue_timeout")
    assert await replica.claim("w1") is None
    assert await reason_of(replica.run("work_1")) == "WORK_QUEUE_TIMEOUT"


@pytest.mark.parametrize("is_accepted", [True, False])
async def test_the_outcome_of_what_a_worker_took_and_never_reported_is_unknown(
    ground: Queue, is_accepted: bool
) -> None:
    replica = await ground.replica(work_lease_seconds=2.5)
    running = replica.run("work_1", queue_seconds=2.5, wait_seconds=3)
    assert await replica.claim("gone", wait_seconds=2.5)
    if is_accepted:
        await replica.accept("work_1", "gone")

    assert await reason_of(running) == "WORK_OUTCOME_UNKNOWN"
    assert await ended_as(replica, "work_1") == ("failed", "work_outcome_unknown")
    assert await reason_of(replica.complete("work_1", "gone")) in ("WORK_LEASE_LOST", "WORK_ITEM_HELD")


async def test_a_stop_ends_what_is_pending_and_reaches_the_holder_by_its_heartbeat(ground: Queue) -> None:
    replica = await ground.replica()
    held, waiting = replica.run("work_held"), replica.run("work_waiting", session_id=SESSION)
    other = replica.run("work_other", session_id="sess_other")
    await in_queue(replica, "work_held", "work_waiting", "work_other")
    item = await replica.claim("w1", session_id=SESSION)
    assert item is not None
    await replica.accept(item.id)

    assert await replica.stop_session() == 2
    assert await replica.stop_session() == 0
    pending = waiting if item.id == "work_held" else held
    assert await reason_of(pending) == "WORK_LEASE_LOST"
    assert await reason_of(replica.heartbeat(item.id)) == "WORK_LEASE_LOST"
    assert await reason_of(replica.accept(item.id)) == "WORK_LEASE_LOST"
    # That the result is not wanted does not undo the effect.
    await replica.complete(item.id, result="done")
    running = held if item.id == "work_held" else waiting
    assert (await running).result_json == b'"done"'
    assert (await replica.claim("w1")).id == "work_other"
    other.cancel()


async def test_an_interrupt_stops_what_it_names_and_later_items_of_the_session_go_on(ground: Queue) -> None:
    replica = await ground.replica()
    first, second = replica.run("work_1"), replica.run("work_2")
    await in_queue(replica, "work_1", "work_2")
    assert await replica.stop_session(item_ids=("work_1", "work_unknown")) == 1
    assert await reason_of(first) == "WORK_LEASE_LOST"
    item = await replica.claim("w1")
    assert item is not None
    assert item.id == "work_2"
    await replica.complete("work_2")
    await second


async def test_a_stopped_item_that_is_never_reported_ends_as_stopped_ahead_of_its_state(ground: Queue) -> None:
    replica = await ground.replica(work_lease_seconds=1.0)
    running = replica.run("work_1", wait_seconds=3)
    assert await replica.claim("w1", wait_seconds=5)
    await replica.accept("work_1")
    await replica.stop_session()
    assert await reason_of(running) == "WORK_LEASE_LOST"
    assert await ended_as(replica, "work_1") == ("stopped", "work_lease_lost")


async def test_a_session_that_has_ended_gets_nothing_handed_out_whatever_was_heard_of_it(ground: Queue) -> None:
    replica = await ground.replica()
    before = replica.run("work_1")
    await in_queue(replica, "work_1")
    ground.sessions.ended.add(SESSION)

    assert await replica.claim("w1", wait_seconds=0.5) is None
    assert await reason_of(before) == "WORK_LEASE_LOST"
    assert await reason_of(replica.run("work_2")) == "WORK_LEASE_LOST"
    assert await ended_as(replica, "work_2") == ("stopped", "work_lease_lost")
    alive = replica.run("work_3", session_id="sess_alive")
    item = await replica.claim("w1", wait_seconds=5)
    assert item is not None
    assert item.id == "work_3"
    alive.cancel()


async def test_the_end_of_a_session_is_heard_from_the_durable_log(ground: Queue, nats: Nats) -> None:
    jetstream = nats.jetstream()
    with suppress(BadRequestError):
        # A relay of another test may have made it already.
        await jetstream.add_stream(name="SESSIONS", subjects=["sessions.log.>"])
    replica = await ground.replica(hears_ends=True)
    session = f"sess_{ground.name}"
    held, pending = replica.run("work_1", session_id=session), replica.run("work_2", session_id=session)
    await in_queue(replica, "work_1", "work_2")
    item = await replica.claim("w1")
    assert item is not None
    message = EventsAppended(workspace_id=WORKSPACE, session_id=session).SerializeToString()
    await jetstream.publish(f"sessions.log.{session}.ended", message, headers={"Nats-Msg-Id": f"{session}.ended"})

    async def is_told() -> bool:
        try:
            await replica.heartbeat(item.id)
        except DomainError as refused:
            return refused.reason == "WORK_LEASE_LOST"
        return False

    await await_until(is_told)
    assert await reason_of(pending if item.id == "work_1" else held) == "WORK_LEASE_LOST"
    # The service of sessions says nothing of it; what was heard is enough.
    assert await reason_of(replica.run("work_3", session_id=session)) == "WORK_LEASE_LOST"
    held.cancel()


async def test_nothing_is_handed_out_while_nobody_can_say_whether_a_session_has_ended(ground: Queue) -> None:
    replica = await ground.replica()
    running = replica.run("work_1")
    await in_queue(replica, "work_1")
    ground.sessions.is_away = True
    with pytest.raises(Unavailable):
        await replica.claim("w1", wait_seconds=5)
    other = replica.run("work_2")
    await in_queue(replica, "work_1", "work_2")
    with pytest.raises(Unavailable):
        await replica.claim("w1", wait_seconds=5)

    ground.sessions.is_away = False
    for _ in range(2):
        item = await replica.claim("w1", wait_seconds=5)
        assert item is not None
        await replica.complete(item.id)
    await asyncio.gather(running, other)


async def test_a_repeat_joins_the_wait_and_is_told_the_same_end(ground: Queue) -> None:
    replica, other = await ground.replica(), await ground.replica()
    first, repeat = replica.run("work_1"), other.run("work_1")
    item = await replica.claim("w1", wait_seconds=10)
    assert item is not None
    gone = replica.run("work_1")
    gone.cancel()
    assert await replica.claim("w2") is None
    await replica.complete("work_1", result="once")

    assert [(await each).result_json for each in (first, repeat, replica.run("work_1"))] == [b'"once"'] * 3
    assert await reason_of(replica.run("work_1", session_id="sess_2")) == "INVALID_REQUEST"
    assert await rows(ground, "SELECT count(*) FROM worker.work_items") in ([(1,)], [(0,)])


async def test_replicas_hand_out_each_others_items_and_tell_each_others_waiters_at_once(ground: Queue) -> None:
    # Sweeps so rare that only hints can be as quick.
    here, there = await ground.replica(work_sweep_seconds=60.0), await ground.replica(work_sweep_seconds=60.0)
    claiming = asyncio.create_task(there.claim("w1", environment_id="env_1", wait_seconds=30))
    assert await there.claim("w2", environment_id="env_1") is None
    running = here.run("work_1")
    async with asyncio.timeout(10):
        item = await claiming
        assert item is not None
        await there.accept(item.id)
        await there.complete(item.id, result="across")
        assert (await running).result_json == b'"across"'


@pytest.mark.parametrize("asked", [{"environment_id": "env_1"}, {}, {"session_id": "sess_1"}])
async def test_an_item_that_no_hint_told_of_is_found_by_the_sweep(
    ground: Queue, asked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.queue.operations.pool.FRESH_SECONDS", 0.3)
    replica = await ground.replica()
    claiming = asyncio.create_task(replica.claim("w1", wait_seconds=20, **asked))
    assert await replica.claim("w1") is None
    await rows(
        ground,
        """
        INSERT INTO worker.work_items (id, workspace_id, environment_id, session_id, kind, payload, status, wait_until)
        VALUES ('work_1', %s, 'env_1', 'sess_1', 'exec', '{}', 'pending', now() + interval '1 minute')
        """,
        WORKSPACE,
    )
    item = await claiming
    assert item is not None
    assert item.id == "work_1"


async def test_an_end_that_no_hint_told_of_is_found_by_the_sweep(ground: Queue) -> None:
    replica = await ground.replica()
    running = replica.run("work_1")
    await in_queue(replica, "work_1")
    await rows(
        ground,
        "UPDATE worker.work_items SET status = 'completed', finished_at = now(), result = '\"by sql\"',"
        " revision = revision + 1",
    )
    assert (await running).result_json == b'"by sql"'


async def test_a_restart_of_the_queue_loses_nothing(ground: Queue) -> None:
    replica = await ground.replica()
    runs = [replica.run(f"work_{n}") for n in range(4)]
    await in_queue(replica, *(f"work_{n}" for n in range(4)))
    claimed = await replica.claim("w1")
    assert claimed is not None
    await replica.accept(claimed.id)
    waiting = asyncio.create_task(replica.claim("w2", environment_id="env_2", wait_seconds=30))
    assert await replica.claim("w2", environment_id="env_2") is None
    await ground.stop(replica)
    assert await waiting is None
    for run in runs:
        with pytest.raises(Unavailable):
            await run

    replica = await ground.replica()
    runs = [replica.run(f"work_{n}") for n in range(4)]
    await replica.heartbeat(claimed.id)
    await replica.complete(claimed.id, result=claimed.id)
    for _ in range(3):
        item = await replica.claim("w1", wait_seconds=5)
        assert item is not None
        await replica.complete(item.id, result=item.id)
    assert [json.loads((await run).result_json) for run in runs] == [f"work_{n}" for n in range(4)]


async def test_items_whose_waiter_is_gone_end_and_are_forgotten_in_time(ground: Queue) -> None:
    replica = await ground.replica()
    run = replica.run("work_1", wait_seconds=0.3)
    await in_queue(replica, "work_1")
    run.cancel()
    sweeping = replica.sweeping

    async def is_over() -> bool:
        await sweeping.clean()
        return await ended_as(replica, "work_1") == ("failed", "work_queue_timeout")

    await await_until(is_over)
    await rows(ground, "UPDATE worker.work_items SET finished_at = now() - interval '2 days'")
    await rows(ground, "INSERT INTO worker.ended_sessions VALUES ('sess_old', 'a', now() - interval '1 year')")
    await sweeping.clean()
    assert await replica.items() == []
    assert await rows(ground, "SELECT * FROM worker.ended_sessions") == []


@pytest.mark.parametrize("is_accepted", [True, False])
async def test_a_stopped_item_whose_waiter_and_holder_are_gone_ends_soon_after_the_lease(
    ground: Queue, is_accepted: bool
) -> None:
    # Nobody here sweeps by itself, since nobody waits.
    replica = await ground.replica(work_lease_seconds=1.0, work_silence_seconds=0.2)
    run = replica.run("work_1", wait_seconds=3600)
    assert await replica.claim("w1", wait_seconds=5)
    if is_accepted:
        await replica.accept("work_1")
    run.cancel()
    assert await replica.stop_session() == 1
    assert await ended_as(replica, "work_1") == ("claimed", "")

    async def is_over() -> bool:
        await replica.sweeping.clean()
        return await ended_as(replica, "work_1") == ("stopped", "work_lease_lost")

    await await_until(is_over)


async def test_an_item_that_slipped_in_beside_the_end_of_its_session_is_stopped(ground: Queue) -> None:
    replica = await ground.replica()
    running = replica.run("work_1")
    await in_queue(replica, "work_1")
    await rows(ground, "INSERT INTO worker.ended_sessions VALUES (%s, %s)", SESSION, WORKSPACE)
    await replica.sweeping.clean()
    with pytest.raises(Aborted) as told:
        await running
    assert told.value.reason == "WORK_LEASE_LOST"


async def test_nobody_asks_the_database_while_workers_wait_in_vain(ground: Queue) -> None:
    replica = await ground.replica(work_sweep_seconds=60.0)
    first = [asyncio.create_task(replica.claim(f"w{n}", environment_id="env_1", wait_seconds=30)) for n in range(50)]

    async def wait_in_vain() -> None:
        waits = (replica.claim(f"v{n}", environment_id="env_1", wait_seconds=0.2) for n in range(50))
        assert await asyncio.gather(*waits) == [None] * 50

    # Calls are heard in their order: after these the first ones wait as well.
    await wait_in_vain()
    asked = replica.database.asked
    await wait_in_vain()
    assert replica.database.asked == asked
    for claim in first:
        claim.cancel()


async def test_a_report_is_stored_or_not_and_its_repeat_is_answered_alike(ground: Queue) -> None:
    replica = await ground.replica()
    running = replica.run("work_1")
    assert await replica.claim("w1", wait_seconds=10)
    try:
        failpoints.arm("queue.save.before_commit=raise@1")
        with pytest.raises(DomainError):
            await replica.complete("work_1", result=1)
        assert (await ended_as(replica, "work_1"))[0] == "claimed"
        # It is stored, and neither the worker nor the waiting side was told so.
        failpoints.arm("queue.save.after_commit=raise@1")
        with pytest.raises(DomainError):
            await replica.complete("work_1", result=2)
        assert (await ended_as(replica, "work_1"))[0] == "completed"
    finally:
        failpoints.arm("")
    await replica.complete("work_1", result=3)
    assert (await running).result_json == b"2"
