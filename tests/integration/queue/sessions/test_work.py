"""The session protocol over a real database: items come with what sessions need, go to one worker, are never lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from kit.testing import await_until
from kit.testing.swept import SweptDatabases
from managed_agents.worker.v1 import session_work_pb2 as pb
from tests.integration.queue.sessions.ground import WORKSPACE, Ground, Replica, digest, is_now, reason, session_ground

pytestmark = pytest.mark.asyncio(loop_scope="package")


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
    await await_until(lambda: is_now(queue, work_id, "queued"), timeout=10)
    # Until the calls are settled nobody gets the session.
    assert await queue.poll("w2", block=0.3) is None
    ground.duties.is_away = False
    second = await queue.poll("w2", block=10.0)
    assert second is not None and second[0].id == work_id
    assert ground.settled() == 1
    assert await reason(queue.beat(work_id, heartbeat, queue.context(token))) == "HEARTBEAT_PRECONDITION_FAILED"
    assert await reason(queue.stop(work_id, queue.context(token), force=True)) == "WORK_ALREADY_STOPPED"


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
    await await_until(lambda: is_now(queue, work_id, "stopping"))
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
