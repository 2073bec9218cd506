"""Whose turn it is in the session protocol, what waiting costs, what is told soon, and what is forgotten."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from kit.testing import await_until
from managed_agents.worker.v1 import session_work_pb2 as pb
from services.worker.queue.store.records import RecordStore
from tests.integration.queue.sessions.ground import WORKSPACE, Ground, Replica, is_now, reason

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def change(ground: Ground, statement: Any, work_id: str, **values: Any) -> None:
    """What time would do to an item."""
    async with ground.database.transaction(WORKSPACE) as tx:
        await tx.execute(
            f"UPDATE work_items SET {statement} WHERE workspace_id = %(workspace_id)s AND id = %(id)s",  # noqa: S608
            {"id": work_id, **values},
        )


async def handed_out(ground: Ground, queue: Replica, work_id: str, seconds: float) -> None:
    """An item was given to a worker so long ago, and was never acknowledged."""
    await change(ground, "polled_at = clock_timestamp() - make_interval(secs => %(age)s)", work_id, age=seconds)
    # Whoever polls now looks into the database.
    queue.protocol.room.hint(queue.environment_id)


async def test_what_was_not_acknowledged_is_another_workers_after_five_seconds_and_not_before(
    ground: Ground, queue: Replica
) -> None:
    await ground.say("1", needed=True)
    first = await queue.poll(block=10.0)
    assert first is not None
    for _ in range(50):
        began = time.monotonic()
        await handed_out(ground, queue, first[0].id, 4.9)
        early = await queue.poll("w2", reclaim=5.0)
        # A machine that is busy may have let the tenth of a second pass.
        if time.monotonic() - began < 0.09:
            break
    assert early is None
    await handed_out(ground, queue, first[0].id, 5.1)
    late = await queue.poll("w2", reclaim=5.0)
    assert late is not None and late[0].id == first[0].id and late[0].attempt > first[0].attempt


async def test_what_was_acknowledged_is_nobody_elses_however_long_ago_it_was_handed_out(
    ground: Ground, queue: Replica
) -> None:
    await ground.say("1", needed=True)
    first = await queue.poll(block=10.0)
    assert first is not None
    await queue.ack(first[0].id)
    await handed_out(ground, queue, first[0].id, 30.0)
    assert await queue.poll("w2", reclaim=5.0) is None


NOISE = 200


async def queued(queue: Replica, count: int) -> None:
    """Until so many items wait."""

    async def wait() -> bool:
        return (await queue.stats()).depth == count

    await await_until(wait, timeout=30)


async def test_an_environment_with_hundreds_of_items_holds_no_other_up(ground: Ground, queue: Replica) -> None:
    noisy = queue
    for number in range(NOISE):
        await ground.say(str(number), needed=True)
    await queued(noisy, NOISE)
    ground.anew()
    calm = queue.of(ground.environment_id)
    await ground.say("calm", needed=True)
    # Workers of the noisy one poll all the while.
    found = await asyncio.gather(*(noisy.poll(f"n{n}", block=5.0) for n in range(20)), calm.poll("c1", block=5.0))
    taken = [each[0] for each in found if each is not None]
    assert len({work.id for work in taken}) == 21
    assert taken[-1].session_id == ground.name("calm")
    stats = await noisy.stats()
    assert (stats.depth, stats.pending, stats.workers_polling) == (NOISE - 20, 20, 20)
    assert stats.oldest_queued_at == min(work.created_at for work in taken[:-1])
    stats = await calm.stats()
    assert (stats.depth, stats.pending, stats.workers_polling) == (0, 1, 1)
    await calm.ack(taken[-1].id)
    stats = await calm.stats()
    assert (stats.depth, stats.pending, stats.workers_polling) == (0, 0, 1) and not stats.oldest_queued_at


async def test_workers_that_poll_another_replica_are_counted_soon(
    ground: Ground, queue: Replica, strict: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.queue.operations.polling.FLUSH_SECONDS", 600.0)
    # The wait that began before is over with this.
    await strict.poll("w0")
    await await_until(lambda: not strict.protocol.polling._fresh, timeout=15)
    for name in ("w1", "w2", "w1"):
        await strict.poll(name)

    async def counted() -> bool:
        return (await queue.stats()).workers_polling == 3

    await await_until(counted, timeout=15)


async def test_what_is_to_be_done_after_many_items_holds_no_other_environment_up(
    ground: Ground, queue: Replica, strict: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.queue.operations.session_duties.BATCH", 10)
    for number in range(60):
        await ground.say(str(number), needed=True)
    await queued(queue, 60)
    ground.anew()
    calm = queue.of(ground.environment_id)
    await ground.say("calm", needed=True)
    await queued(calm, 1)
    taken = [found for found in [*[await queue.poll() for _ in range(60)], await calm.poll()] if found is not None]
    ground.duties.is_away = True
    for place, (work, token) in zip([*[queue] * 60, calm], taken, strict=True):
        await place.ack(work.id)
        await place.stop(work.id, place.context(token), force=True)
    began = len(ground.duties.answered)
    ground.duties.is_away = False

    async def all_there() -> bool:
        return (await queue.stats()).depth == 60 and (await calm.stats()).depth == 1

    # Batches follow each other without a pause.
    monkeypatch.setattr("services.worker.queue.operations.session_duties.RETRY_SECONDS", 60.0)
    for each in (queue, strict):
        each.protocol.duties.look()
    await await_until(all_there, timeout=20)
    # Both replicas were at a batch at most.
    assert ground.duties.answered[began:].index(ground.name("calm")) < 30


@pytest.mark.parametrize("is_acknowledged", [False, True])
async def test_a_session_whose_workers_are_lost_again_and_again_takes_turns(
    ground: Ground, queue: Replica, is_acknowledged: bool
) -> None:
    sessions = [ground.name(name) for name in ("noisy", "1", "2", "3")]
    for number, name in enumerate(("noisy", "1", "2", "3")):
        await ground.say(name, needed=True)
        await queued(queue, number + 1)
    works = {work.session_id: work.id for work in await queue.items()}
    # They have waited for a while, the noisy one for longest.
    for number, session in enumerate(sessions):
        came = "created_at = clock_timestamp() - make_interval(secs => %(age)s)"
        await change(ground, came, works[session], age=60 - number)
    noisy, given = works[sessions[0]], []
    for _ in range(5):
        found = await queue.poll(block=10.0)
        assert found is not None
        given.append(found[0].session_id)
        if found[0].id != noisy:
            continue
        if is_acknowledged:
            await queue.ack(noisy)
            await change(ground, "lease_expires_at = clock_timestamp() - interval '1 s'", noisy)
            queue.protocol.duties.look()
            await await_until(lambda: is_now(queue, noisy, "queued"))
        else:
            await handed_out(ground, queue, noisy, 5.1)
    assert given == [*sessions, sessions[0]]


async def test_nobody_asks_the_database_while_polls_wait(ground: Ground, queue: Replica) -> None:
    async def wait_in_vain() -> None:
        waits = (queue.poll(f"w{number}", block=0.5) for number in range(50))
        assert await asyncio.gather(*waits) == [None] * 50

    # The first one looks, and is believed.
    await wait_in_vain()
    asked, by_itself = ground.count_statements(), ground.count_own()
    await wait_in_vain()
    assert ground.count_statements() == asked
    # What replicas do by themselves every ten seconds may have fallen into it.
    assert ground.count_own() - by_itself <= 8


async def test_one_poll_looks_for_all_who_wait_every_few_seconds(
    ground: Ground, queue: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.queue.operations.session_room.LOOK_AGAIN_SECONDS", 0.3)
    assert await queue.poll() is None
    asked = ground.count_statements()
    assert await asyncio.gather(*(queue.poll(f"w{number}", block=1.0) for number in range(50))) == [None] * 50
    # A look is one connection; there is time for three, and a late one more.
    assert 1 <= ground.count_statements() - asked <= 5


async def test_what_one_poll_finds_anew_is_no_reason_for_others_to_wait(
    ground: Ground, queue: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.queue.operations.session_room.LOOKING_SECONDS", 30.0)
    monkeypatch.setattr("services.worker.queue.operations.session_room.LOOK_AGAIN_SECONDS", 0.5)
    assert await queue.poll() is None
    waiting = [asyncio.create_task(queue.poll(f"w{number}", block=15.0)) for number in range(2)]
    await await_until(lambda: len(queue.protocol.room._waiting.get(queue.environment_id, ())) == 2)
    # No hint tells of these: as if it was lost on the way.
    with monkeypatch.context() as patched:
        patched.setattr(queue.protocol.room, "hint", lambda _: None)
        for name in ("1", "2"):
            await ground.say(name, needed=True)
        found = await asyncio.gather(*waiting)
    assert {each[0].session_id for each in found if each} == {ground.name("1"), ground.name("2")}


async def test_a_session_whose_worker_an_operator_stopped_waits_for_no_other_one(
    ground: Ground, queue: Replica
) -> None:
    for number, is_forced in enumerate((False, True)):
        await ground.say(str(number), needed=True)
        work_id, token, _ = await queue.active()
        await queue.stop(work_id, queue.context(role="member"), force=is_forced)
        if not is_forced:
            await queue.stop(work_id, queue.context(token), force=True)
        second = await queue.poll("w2", block=10.0)
        assert second is not None and second[0].session_id == ground.name(str(number)) and second[0].id != work_id
        assert await held_back(ground, second[0].id) is None
        ground.duties.needed.clear()
        await queue.stop(second[0].id, queue.context(second[1]), force=True)


async def test_a_worker_that_ends_at_once_is_given_the_session_a_second_later(ground: Ground, queue: Replica) -> None:
    await ground.say("1", needed=True)
    work_id, token, _ = await queue.active()
    await queue.stop(work_id, queue.context(token), force=True)
    second = await queue.poll("w2", block=10.0)
    assert second is not None and await held_back(ground, second[0].id) is not None


async def held_back(ground: Ground, work_id: str) -> Any:
    """Until when an item is handed to nobody."""
    async with ground.database.read(WORKSPACE) as tx:
        asked = "SELECT available_at FROM work_items WHERE workspace_id = %(workspace_id)s AND id = %(id)s"
        return (await tx.one(asked, {"id": work_id}))[0]


async def test_an_item_that_ended_is_forgotten_in_time_and_one_with_something_left_to_do_is_not(
    ground: Ground, queue: Replica
) -> None:
    async def forget() -> None:
        async with ground.database.platform_statements() as tx:
            await RecordStore(tx).forget_items(86_400.0, 500)

    async def age(work_id: str) -> None:
        ages = "created_at = created_at - interval '3 days', finished_at = finished_at - interval '2 days'"
        await change(ground, ages, work_id)

    await ground.say("1", needed=True)
    work_id, token, heartbeat = await queue.active()
    await age(work_id)
    await forget()
    # However old it is, it is out with a worker.
    lease = await queue.beat(work_id, heartbeat, queue.context(token))
    assert lease.lease_extended
    ground.duties.is_away = True
    await queue.stop(work_id, queue.context(token), force=True)
    await forget()
    assert (await queue.get(work_id)).state == "stopped"
    await age(work_id)
    await forget()
    # Whether its session needs another worker was not asked yet.
    assert (await queue.get(work_id)).state == "stopped"
    ground.duties.is_away = False
    second = await queue.poll("w2", block=20.0)
    assert second is not None and second[0].id != work_id and second[0].session_id == ground.name("1")
    await forget()
    assert [work.id for work in await queue.items()] == [second[0].id]
    assert await reason(queue.get(work_id)) == "WORK_ITEM_NOT_FOUND"
    # Who held it is told that there is nothing any more, and its token opens nothing.
    assert await reason(queue.beat(work_id, lease.last_heartbeat, queue.context(token))) == "WORK_ITEM_NOT_FOUND"
    check = await queue.ask("CheckSessionsToken", pb.CheckSessionsTokenRequest(sha256=token))
    assert not check.live
