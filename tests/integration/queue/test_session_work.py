"""The session protocol over a real database: items come with what sessions need, go to one worker, are never lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import pytest
import pytest_asyncio

from kit.errors import DomainError
from kit.testing import await_until
from kit.testing.swept import SweptDatabases
from managed_agents.worker.v1 import session_work_pb2 as pb
from services.worker.queue.store.records import RecordStore
from tests.integration.queue.session_ground import WORKSPACE, Ground, Replica, digest, session_ground

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[tuple[Ground, Replica, Replica]]:
    """Two replicas on one database; at the second, workers may be silent for a second only."""
    with patch("services.worker.queue.operations.session_duties.RETRY_SECONDS", 0.1):
        async with (
            session_ground(swept_databases, nats_url) as made,
            made.replica() as patient,
            made.replica(ttl_seconds=1) as strict,
        ):
            yield made, patient, strict


@pytest.fixture
def ground(shared: tuple[Ground, Replica, Replica]) -> Ground:
    shared[0].anew()
    return shared[0]


@pytest.fixture
def queue(shared: tuple[Ground, Replica, Replica], ground: Ground) -> Replica:
    return shared[1].of(ground.environment_id)


@pytest.fixture
def strict(shared: tuple[Ground, Replica, Replica], ground: Ground) -> Replica:
    return shared[2].of(ground.environment_id)


async def reason(waiting: Any) -> str:
    with pytest.raises(DomainError) as refused:
        await waiting
    return refused.value.reason


async def test_an_item_is_handed_out_once_and_goes_its_way(ground: Ground, queue: Replica) -> None:
    await ground.say("1", needed=True)
    found = await queue.poll(block=10.0)
    assert found is not None
    work, token = found
    assert (work.session_id, work.state, work.attempt) == (ground.name("1"), "queued", 1)
    assert await queue.poll("w2") is None
    stats = await queue.stats()
    assert (stats.depth, stats.pending, stats.workers_polling) == (0, 1, 2) and stats.oldest_queued_at
    assert (await queue.ack(work.id)).state == "starting"
    lease = await queue.beat(work.id, "NO_HEARTBEAT", queue.context(token))
    again = await queue.beat(work.id, lease.last_heartbeat, queue.context(token))
    assert (again.state, again.lease_extended, again.ttl_seconds) == ("active", True, 60)
    assert again.last_heartbeat > lease.last_heartbeat
    assert (await queue.get(work.id)).latest_heartbeat_at == again.last_heartbeat
    ground.duties.needed.clear()
    assert (await queue.stop(work.id, queue.context(token), force=True)).state == "stopped"
    assert await reason(queue.stop(work.id, force=True)) == "WORK_ALREADY_STOPPED"
    assert [each.state for each in await queue.items()] == ["stopped"]


@pytest.fixture
def looks_by_hint_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that nothing wakes waits to its end, so it takes no clock to tell that it was woken."""
    monkeypatch.setattr("services.worker.queue.operations.session_room.LOOK_AGAIN_SECONDS", 60.0)


@pytest.mark.usefixtures("looks_by_hint_only")
async def test_a_poll_is_answered_as_soon_as_there_is_something(ground: Ground, queue: Replica) -> None:
    waiting = asyncio.create_task(queue.poll(block=20.0))
    await await_until(lambda: queue.protocol.room._waiting)
    await ground.say("1", needed=True)
    started = time.monotonic()
    assert await waiting is not None
    assert time.monotonic() - started < 15.0


async def test_idle_polls_leave_the_database_alone(ground: Ground, queue: Replica) -> None:
    assert await queue.poll() is None
    asked = ground.count_statements()
    for _ in range(20):
        assert await queue.poll() is None
    assert ground.count_statements() == asked


@pytest.mark.usefixtures("looks_by_hint_only")
async def test_a_hint_reaches_the_polls_of_every_replica(ground: Ground, queue: Replica, strict: Replica) -> None:
    waiting = [asyncio.create_task(each.poll(block=20.0)) for each in (queue, strict)]
    await await_until(lambda: queue.protocol.room._waiting and strict.protocol.room._waiting)
    started = time.monotonic()
    for number in range(2):
        await ground.say(str(number), needed=True)
    found = await asyncio.gather(*waiting)
    assert len({each[0].id for each in found if each is not None}) == 2
    assert time.monotonic() - started < 15.0


async def test_fifty_polls_take_twenty_items_each_once(ground: Ground, queue: Replica) -> None:
    for number in range(20):
        await ground.say(str(number), needed=True)

    async def all_queued() -> bool:
        return (await queue.stats()).depth == 20

    await await_until(all_queued, timeout=20)
    found = await asyncio.gather(*(queue.poll(f"w{number}", block=0.5) for number in range(50)))
    taken = [each[0].session_id for each in found if each is not None]
    assert sorted(taken) == sorted(ground.name(str(number)) for number in range(20))


async def test_what_was_not_acknowledged_is_handed_out_again_after_its_time(ground: Ground, queue: Replica) -> None:
    await ground.say("1", needed=True)
    first = await queue.poll(block=10.0)
    assert first is not None
    assert await queue.poll("w2", reclaim=5.0) is None
    second = await queue.poll("w2", block=5.0, reclaim=0.2)
    assert second is not None and second[0].id == first[0].id and second[0].attempt == 2
    assert await reason(queue.beat(first[0].id, "NO_HEARTBEAT", queue.context(first[1]))) == (
        "HEARTBEAT_PRECONDITION_FAILED"
    )
    # The slow one acknowledges: nothing comes of it, and the other one goes on.
    assert (await queue.ack(first[0].id, queue.context(first[1]))).state == "queued"
    await queue.ack(first[0].id, queue.context(second[1]))
    assert (await queue.beat(first[0].id, "NO_HEARTBEAT", queue.context(second[1]))).state == "active"


async def test_an_acknowledged_item_without_a_heartbeat_comes_back(ground: Ground, strict: Replica) -> None:
    queue = strict
    await ground.say("1", needed=True)
    first = await queue.poll(block=10.0)
    assert first is not None
    await queue.ack(first[0].id)
    second = await queue.poll("w2", block=10.0)
    assert second is not None and (second[0].id, second[0].attempt) == (first[0].id, 2)
    assert ground.settled() == 0


async def test_a_silent_worker_loses_its_session_once_its_calls_are_settled(ground: Ground, strict: Replica) -> None:
    queue = strict
    await ground.say("1", needed=True)
    work_id, token, heartbeat = await queue.active()
    ground.duties.is_away = True
    await await_until(lambda: _is(queue, work_id, "queued"), timeout=10)
    # Until the calls are settled nobody gets the session.
    assert await queue.poll("w2", block=0.3) is None
    ground.duties.is_away = False
    second = await queue.poll("w2", block=10.0)
    assert second is not None and second[0].id == work_id
    assert ground.settled() == 1
    assert await reason(queue.beat(work_id, heartbeat, queue.context(token))) == "HEARTBEAT_PRECONDITION_FAILED"
    assert await reason(queue.stop(work_id, queue.context(token), force=True)) == "WORK_ALREADY_STOPPED"


async def _is(queue: Replica, work_id: str, state: str) -> bool:
    return (await queue.get(work_id)).state == state


async def test_a_graceful_stop_is_told_with_the_next_heartbeat(ground: Ground, queue: Replica) -> None:
    await ground.say("1", needed=True)
    work_id, token, heartbeat = await queue.active()
    operator = queue.context(role="member")
    assert (await queue.stop(work_id, operator)).state == "stopping"
    lease = await queue.beat(work_id, heartbeat, queue.context(token))
    assert (lease.state, lease.lease_extended) == ("stopping", False)
    await queue.stop(work_id, queue.context(token), force=True)
    # The session still needs a worker, so there is another item.
    second = await queue.poll("w2", block=10.0)
    assert second is not None and second[0].id != work_id and second[0].session_id == ground.name("1")
    assert ground.settled() == 0


async def test_a_forced_stop_by_an_operator_leaves_calls_in_doubt(ground: Ground, queue: Replica) -> None:
    await ground.say("1", needed=True)
    work_id, token, heartbeat = await queue.active()
    assert (await queue.stop(work_id, queue.context(role="member"), force=True)).state == "stopped"
    assert (await queue.beat(work_id, heartbeat)).state == "stopped"
    second = await queue.poll("w2", block=10.0)
    assert second is not None and second[0].session_id == ground.name("1")
    assert ground.settled() == 1
    check = await queue.ask("CheckSessionsToken", pb.CheckSessionsTokenRequest(sha256=token))
    assert check.found and not check.live


async def test_an_item_whose_session_needs_nobody_is_never_handed_out(ground: Ground, queue: Replica) -> None:
    await ground.say("1", needed=True)

    async def queued() -> bool:
        return (await queue.stats()).depth == 1

    await await_until(queued)
    # The word that nothing is to do any more is still on its way.
    ground.duties.needed.clear()
    assert await queue.poll(block=0.3) is None
    assert [each.state for each in await queue.items()] == ["stopped"]


@pytest.mark.parametrize("ended", [False, True])
async def test_an_item_that_waits_goes_with_the_need(ground: Ground, queue: Replica, ended: bool) -> None:
    await ground.say("1", needed=True)
    await ground.say("1", needed=False, ended=ended)

    async def gone() -> bool:
        # Replicas may hear both at once: what is then there for nobody ends with the next poll.
        assert await queue.poll() is None
        return all(each.state == "stopped" for each in await queue.items())

    await await_until(gone)


async def test_a_late_word_of_an_earlier_state_changes_nothing(ground: Ground, queue: Replica) -> None:
    await ground.say("1", needed=True, seq=9)
    await ground.say("1", needed=False, seq=8)
    await ground.say("2", needed=True, seq=10)
    ground.duties.needed.add(ground.name("1"))
    found = [await queue.poll(block=10.0), await queue.poll(block=10.0)]
    assert {each[0].session_id for each in found if each} == {ground.name("1"), ground.name("2")}


async def test_the_end_of_a_session_stops_its_worker(ground: Ground, queue: Replica) -> None:
    await ground.say("1", needed=True)
    work_id, token, heartbeat = await queue.active()
    await ground.say("1", needed=False, ended=True)
    await await_until(lambda: _is(queue, work_id, "stopping"))
    assert not (await queue.beat(work_id, heartbeat, queue.context(token))).lease_extended


async def test_a_session_that_is_gone_has_no_further_item(ground: Ground, queue: Replica) -> None:
    await ground.say("gone", needed=True)
    await asyncio.gather(*(queue.poll(block=0.5) for _ in range(2)))
    await await_until(lambda: _all(queue, "stopped"))


async def _all(queue: Replica, state: str) -> bool:
    items = await queue.items()
    return bool(items) and all(each.state == state for each in items)


async def test_workers_that_change_nothing_are_told_of_in_the_end(
    ground: Ground, queue: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.queue.domain.session_item.MOST_FRUITLESS", 2)
    await ground.say("1", needed=True)
    ground.duties.waiting[ground.name("1")] = "sevt_1"
    for _ in range(3):
        found = await queue.poll(block=10.0)
        assert found is not None
        await queue.ack(found[0].id)
        await queue.stop(found[0].id, queue.context(found[1]), force=True)
    await await_until(lambda: ground.name("1") in ground.duties.failed)
    assert await queue.poll(block=0.3) is None


async def test_a_token_tells_what_it_was_made_for(ground: Ground, queue: Replica) -> None:
    await ground.say("1", needed=True)
    found = await queue.poll(block=10.0)
    assert found is not None
    check = await queue.ask("CheckSessionsToken", pb.CheckSessionsTokenRequest(sha256=found[1]))
    assert (check.found, check.live, check.work_id, check.session_id) == (True, True, found[0].id, ground.name("1"))
    assert (check.workspace_id, check.environment_id) == (WORKSPACE, queue.environment_id)
    unknown = await queue.ask("CheckSessionsToken", pb.CheckSessionsTokenRequest(sha256=digest("mast_other")))
    assert not unknown.found
    # Only its digest is kept.
    async with ground.database.platform_read() as tx:
        (row,) = await tx.all("SELECT work_items::text FROM work_items WHERE id = %(id)s", {"id": found[0].id})
    assert "mast_" not in row[0]


async def test_a_key_reaches_the_sessions_that_are_out_with_its_environment(ground: Ground, queue: Replica) -> None:
    async def held(environment_id: str = "") -> bool:
        request = pb.CheckHeldSessionRequest(session_id=ground.name("1"))
        context = queue.context(environment_id=environment_id)
        return (await queue.ask("CheckHeldSession", request, context=context)).held

    await ground.say("1", needed=True)
    await await_until(lambda: _all(queue, "queued"))
    assert not await held()
    work_id, token, _ = await queue.active()
    assert await held() and not await held("env_other")
    await queue.stop(work_id, queue.context(token), force=True)
    assert not await held()


@pytest.mark.parametrize("name", ["AckWork", "HeartbeatWork", "StopWork", "GetWork", "UpdateWork"])
async def test_an_item_of_another_environment_is_not_there(ground: Ground, queue: Replica, name: str) -> None:
    await ground.say("1", needed=True)
    work_id, _, _ = await queue.active()
    request = getattr(pb, f"{name}Request")(environment_id="env_other", work_id=work_id)
    context = queue.context(environment_id="env_other")
    assert await reason(queue.ask(name, request, context=context)) == "WORK_ITEM_NOT_FOUND"
    request = getattr(pb, f"{name}Request")(environment_id=queue.environment_id, work_id="work_none")
    assert await reason(queue.ask(name, request)) == "WORK_ITEM_NOT_FOUND"


async def test_metadata_is_merged_and_pages_follow_each_other(ground: Ground, queue: Replica) -> None:
    for number in range(5):
        await ground.say(str(number), needed=True)

    async def all_there() -> bool:
        return len(await queue.items()) == 5

    await await_until(all_there)
    newest = await queue.items()
    request = pb.UpdateWorkRequest(
        environment_id=queue.environment_id, work_id=newest[0].id, metadata_json=b'{"a":"1"}'
    )
    assert (await queue.ask("UpdateWork", request, context=queue.context(role="member"))).work.metadata_json == (
        b'{"a": "1"}'
    )
    seen, cursor = [], ""
    while True:
        page = await queue.ask(
            "ListWork", pb.ListWorkRequest(environment_id=queue.environment_id, limit=2, cursor=cursor)
        )
        seen += [each.id for each in page.work]
        cursor = page.next_cursor
        if not cursor:
            break
    assert seen == [each.id for each in newest]
    assert await reason(
        queue.ask("ListWork", pb.ListWorkRequest(environment_id=queue.environment_id, cursor="junk"))
    ) == ("INVALID_CURSOR")


async def test_a_restart_loses_neither_items_nor_what_was_to_be_done(
    swept_databases: SweptDatabases, nats_url: str
) -> None:
    async with session_ground(swept_databases, nats_url) as ground:
        async with ground.replica(ttl_seconds=1) as queue:
            await ground.say("1", needed=True)
            await queue.active()
            ground.duties.is_away = True
        # Its lease lapses while no queue runs, and a need is announced meanwhile.
        await ground.say("2", needed=True)
        ground.duties.is_away = False
        async with ground.replica(ttl_seconds=1) as queue:
            found = [await queue.poll(block=15.0) for _ in range(2)]
            assert {each[0].session_id for each in found if each} == {ground.name("1"), ground.name("2")}
            assert ground.settled() == 1


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
            await await_until(lambda: _is(queue, noisy, "queued"))
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
