"""An item that a worker already waits for is put in as claimed by it."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from kit.errors import Aborted, Unavailable
from kit.testing import await_until
from services.worker.queue.operations.desk import Desk
from services.worker.queue.operations.intake import Intake
from services.worker.queue.operations.matching import Matching
from tests.integration.queue.harness import ENVIRONMENT, SESSION, WORKSPACE, Queue, Replica, worker_context
from tests.integration.queue.test_waiting_side import rows

SCOPES = [
    {},
    {"environment_id": ENVIRONMENT},
    {"session_id": SESSION},
    {"environment_id": ENVIRONMENT, "session_id": SESSION},
]


async def waiting(replica: Replica, worker_id: str = "w1", /, **scope: Any) -> asyncio.Task[Any]:
    """A claim that waits, on a replica that knows that there is nothing."""
    claim = asyncio.create_task(replica.claim(worker_id, wait_seconds=30, **scope))
    # Calls are heard in their order, and this one tells what it found out.
    assert await replica.claim("passes by", environment_id=ENVIRONMENT) is None
    return claim


@pytest.mark.parametrize("scope", SCOPES, ids=[" ".join(scope) or "anything" for scope in SCOPES])
async def test_it_costs_one_write_and_is_held_as_any_other(ground: Queue, scope: dict[str, str]) -> None:
    replica = await ground.replica(work_sweep_seconds=60.0)
    claim = await waiting(replica, **scope)
    before = replica.database.asked
    running = replica.run("work_1", payload={"command": "echo hi"})
    item = await claim
    assert replica.database.asked == before + 1
    assert (item.id, item.status, item.claimed_by, item.attempt) == ("work_1", "claimed", "w1", 1)
    assert item.payload_json == b'{"command": "echo hi"}'
    assert item.claimed_at < item.lease_expires_at
    assert await replica.claim("w2") is None
    await replica.accept("work_1", attempt=1)
    await replica.complete("work_1", result="done")
    assert (await running).result_json == b'"done"'


async def test_the_oldest_claim_gets_it_and_only_one_that_takes_it(ground: Queue) -> None:
    replica = await ground.replica()
    other = asyncio.create_task(replica.claim("w0", environment_id="env_2", wait_seconds=30))
    claims = [await waiting(replica, f"w{number}") for number in (1, 2)]
    replica.run("work_1")
    assert (await claims[0]).claimed_by == "w1"
    replica.run("work_2", environment_id="env_2")
    assert (await other).id == "work_2"
    replica.run("work_3")
    assert (await claims[1]).id == "work_3"


async def test_of_an_ended_session_it_is_stopped_and_the_worker_waits_on(ground: Queue) -> None:
    replica = await ground.replica()
    claim = await waiting(replica)
    ground.sessions.ended.add("sess_ended")
    with pytest.raises(Aborted) as told:
        await replica.run("work_1", session_id="sess_ended")
    assert told.value.reason == "WORK_LEASE_LOST"
    async with await psycopg.AsyncConnection.connect(ground.dsn, autocommit=True) as connection:
        await connection.execute("INSERT INTO worker.ended_sessions VALUES ('sess_noted', %s)", [WORKSPACE])
    with pytest.raises(Aborted):
        await replica.run("work_2", session_id="sess_noted")
    assert not claim.done()
    replica.run("work_3")
    assert (await claim).id == "work_3"


@pytest.mark.parametrize("answer", ["ended", "away"])
async def test_it_is_not_handed_out_before_somebody_says_that_its_session_goes_on(
    ground: Queue, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """Also where the write was quicker than the question."""
    replica = await ground.replica()
    claim = await waiting(replica)
    ground.sessions.gate.clear()
    running = asyncio.ensure_future(replica.run("work_1", session_id="sess_new"))
    await await_until(lambda: held(ground, "work_1"))
    assert not claim.done()
    if answer == "ended":
        ground.sessions.ended.add("sess_new")
        ground.sessions.gate.set()
        with pytest.raises(Aborted) as told:
            await running
        assert told.value.reason == "WORK_LEASE_LOST"
        replica.run("work_2")
        assert (await claim).id == "work_2"
        return
    ground.sessions.is_away = True
    ground.sessions.gate.set()
    with pytest.raises(Unavailable):
        await claim
    ground.sessions.is_away = False
    item = await replica.claim("w2", wait_seconds=30)
    assert item is not None and (item.id, item.attempt) == ("work_1", 1)
    await replica.accept("work_1", "w2")
    await replica.complete("work_1", "w2", result=7)
    assert (await running).result_json == b"7"


async def test_one_that_can_not_be_stopped_is_not_handed_out_and_nobody_is_left_without_a_word(
    ground: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await ground.replica(work_lease_seconds=2.0)
    claims = [await waiting(replica, f"w{number}") for number in (1, 2)]
    ground.sessions.ended.add("sess_ended")

    async def away(*_: Any) -> None:
        raise Unavailable("The database is away.")

    with monkeypatch.context() as broken:
        broken.setattr(Desk, "_write", away)
        stopped = replica.run("work_1", session_id="sess_ended")
        other = replica.run("work_2")
        async with asyncio.timeout(10):
            with pytest.raises(Unavailable):
                await claims[0]
            assert (await claims[1]).id == "work_2"
    await replica.accept("work_2", "w2")
    await replica.complete("work_2", "w2")
    await other
    assert await replica.claim("w3", wait_seconds=4) is None
    with pytest.raises(Aborted):
        await stopped


async def held(ground: Queue, item_id: str) -> bool:
    return await rows(ground, "SELECT status FROM worker.work_items WHERE id = %s", item_id) == [("claimed",)]


async def test_put_in_again_it_is_not_handed_out_again(ground: Queue) -> None:
    replica = await ground.replica()
    first = await waiting(replica)
    running = replica.run("work_1")
    await first
    second = await waiting(replica, "w2")
    again = replica.run("work_1")
    replica.run("work_2")
    assert (await second).id == "work_2"
    await replica.accept("work_1")
    await replica.complete("work_1", result=1)
    assert (await running).result_json == (await again).result_json == b"1"


async def test_a_worker_that_leaves_meanwhile_takes_nothing_along(
    ground: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await ground.replica()
    claim = await waiting(replica)
    put_in = Intake._put_in

    async def slowly(intake: Intake, by_id: Any) -> Any:
        inserted = asyncio.ensure_future(put_in(intake, by_id))
        claim.cancel()
        # The call is told to end, and is heard to have ended, before the item is there.
        assert await replica.claim("passes by", environment_id="env_2") is None
        return await inserted

    monkeypatch.setattr(Intake, "_put_in", slowly)
    replica.run("work_1")
    item = await replica.claim("w2", wait_seconds=30)
    assert item is not None and item.id == "work_1"


async def test_a_worker_that_leaves_in_the_moment_of_its_grant_takes_nothing_along(
    ground: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await ground.replica()
    await waiting(replica)
    hand_over = Matching.hand_over

    def and_cut_off(matching: Matching, claim: Any, *told: Any) -> None:
        hand_over(matching, claim, *told)
        # The grant is there, and the call ends before it goes on.
        for task in asyncio.all_tasks():
            if task._fut_waiter is claim.granted:  # type: ignore[attr-defined]
                task.cancel()

    with monkeypatch.context() as cut:
        cut.setattr(Matching, "hand_over", and_cut_off)
        replica.run("work_1")
        item = await replica.claim("w2", wait_seconds=30)
    assert item is not None and (item.id, item.claimed_by) == ("work_1", "w2")


async def test_a_replica_whose_worker_was_busy_is_not_held_up_by_what_others_took(ground: Queue) -> None:
    behind, busy = await ground.replica(work_sweep_seconds=60.0), await ground.replica()
    assert await behind.claim("w1", environment_id=ENVIRONMENT) is None
    done = [busy.run(f"work_{number}", session_id=f"sess_{number % 5}") for number in range(200)]

    async def work(worker_id: str) -> None:
        while (item := await busy.claim(worker_id, environment_id=ENVIRONMENT, wait_seconds=1)) is not None:
            await busy.accept(item.id, worker_id)
            await busy.complete(item.id, worker_id)

    await asyncio.gather(*(work(f"b{number}") for number in range(4)), *done)
    asked = behind.database.asked
    behind.run("fresh", session_id="sess_1")
    item = await behind.claim("w1", environment_id=ENVIRONMENT, wait_seconds=30)
    assert item is not None and item.id == "fresh"
    # Not one question for each of the two hundred.
    assert behind.database.asked - asked < 20


async def test_what_can_not_be_written_leaves_the_worker_waiting(
    ground: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await ground.replica()
    claim = await waiting(replica)

    def unreadable(*_: Any) -> None:
        raise psycopg.errors.InvalidTextRepresentation

    with monkeypatch.context() as broken:
        broken.setattr("services.worker.queue.store.work_items._inserted", unreadable)
        with pytest.raises(Exception, match="payload_json"):
            await replica.run("work_1")
    replica.run("work_2")
    assert (await claim).id == "work_2"


async def test_it_waits_for_its_turn_where_others_were_first(ground: Queue) -> None:
    replica = await ground.replica()
    first = replica.run("work_1", environment_id="env_2")

    async def is_there() -> bool:
        return [item.id for item in await replica.items("env_2")] == ["work_1"]

    await await_until(is_there)
    claim = await waiting(replica, environment_id=ENVIRONMENT)
    replica.run("work_2")
    assert (await claim).id == "work_2"
    assert not first.done()
    assert (await replica.claim("w2", environment_id="env_2", context=worker_context("env_2"))).id == "work_1"
