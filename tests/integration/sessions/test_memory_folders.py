"""What a session's folder pulls and pushes: all of it, each change under its own precondition, by whom it may."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kit.nats import Nats
from kit.testing import await_until
from managed_agents.sessions.v1 import memory_pb2 as pb
from services.sessions.domain.memory import MAX_MEMORIES
from tests.integration.sessions.harness import Harness, refusal
from tests.integration.sessions.memory_driver import Memories, changed, sha

pytestmark = pytest.mark.asyncio(loop_scope="package")

WRITTEN, CONFLICT, REFUSED = (
    pb.MEMORY_CHANGE_OUTCOME_WRITTEN,
    pb.MEMORY_CHANGE_OUTCOME_CONFLICT,
    pb.MEMORY_CHANGE_OUTCOME_REFUSED,
)


@pytest_asyncio.fixture(loop_scope="package")
async def m(h: Harness, nats: Nats) -> AsyncIterator[Memories]:
    memories = Memories(h, nats)
    await memories.make()
    yield memories


async def test_a_pull_brings_what_changed_after_a_revision(m: Memories) -> None:
    first, second = await m.add("/a", "one"), await m.add("/b", "two")
    [head, *batches] = await m.pull()
    assert (head.state, head.revision) == (pb.MEMORY_STORE_STATE_ACTIVE, 2)
    assert [(each.path, each.content) for batch in batches for each in batch.changed] == [("/a", "one"), ("/b", "two")]
    await m.update(first.id, path="/c")
    await m.delete(second.id)
    [head, *batches] = await m.pull(2)
    assert (head.revision, list(head.deleted_ids)) == (4, [second.id])
    assert [(each.id, each.path) for batch in batches for each in batch.changed] == [(first.id, "/c")]
    assert [(each.revision, len(each.changed)) for each in await m.pull(4)] == [(4, 0)]


async def test_a_large_store_comes_in_parts(m: Memories) -> None:
    for number in range(25):
        await m.add(f"/{number:02}", "x" * 100_000)
    batches = await m.pull()
    assert len(batches) > 2
    assert max(batch.ByteSize() for batch in batches) < 2_000_000
    assert len({each.path for batch in batches for each in batch.changed}) == 25


async def test_a_push_writes_each_change_by_its_own_precondition(m: Memories) -> None:
    session_id = await m.session_with()
    for path in ("/stale", "/edited", "/gone", "/kept"):
        await m.add(path, "old")
    answer = await m.push(
        session_id,
        changed("/new", "text"),
        changed("/edited", "new", "old"),
        changed("/stale", "mine", "older"),
        changed("/gone", None, "old"),
        changed("/kept", None, "older"),
        changed("/taken/", "x"),
        changed("/never", "mine", "deleted meanwhile"),
        changed("/nothing", None, "x"),
        changed("/large", "é" * 51_201),
    )
    assert [each.outcome for each in answer.results] == [
        *(WRITTEN, WRITTEN, CONFLICT, WRITTEN, CONFLICT, REFUSED, CONFLICT, WRITTEN, REFUSED)
    ]
    assert (answer.previous_revision, answer.revision) == (4, 7)
    assert answer.results[2].memory.content == answer.results[4].memory.content == "old"
    assert not answer.results[6].HasField("memory")
    assert "102400" in answer.results[8].refusal
    assert await m.names() == ["/edited", "/kept", "/new", "/stale"]


async def test_a_push_that_comes_twice_writes_once(m: Memories) -> None:
    session_id = await m.session_with()
    await m.add("/b", "old")
    changes = (changed("/a", "text"), changed("/b", None, "old"))
    first, second = await m.push(session_id, *changes), await m.push(session_id, *changes)
    assert [each.outcome for each in (*first.results, *second.results)] == [WRITTEN] * 4
    assert first.revision == second.previous_revision == second.revision
    assert first.results[0].memory.id == second.results[0].memory.id


async def test_a_file_may_take_the_place_of_a_folder(m: Memories) -> None:
    session_id = await m.session_with()
    await m.add("/d/a", "old")
    answer = await m.push(session_id, changed("/d", "flat"), changed("/d/a", None, "old"))
    assert [each.outcome for each in answer.results] == [WRITTEN, WRITTEN]
    assert await m.names() == ["/d"]


async def test_a_full_store_takes_what_a_deletion_made_room_for(m: Memories) -> None:
    session_id = await m.session_with()
    await m.add("/a", "old")
    await m.h.execute(
        "UPDATE memory_stores SET memory_count = %(most)s WHERE workspace_id = %(workspace_id)s", most=MAX_MEMORIES
    )
    answer = await m.push(session_id, changed("/b", "x"), changed("/c", "x"), changed("/a", None, "old"))
    assert [each.outcome for each in answer.results] == [WRITTEN, REFUSED, WRITTEN]
    assert "10000" in answer.results[1].refusal


async def test_who_does_not_hold_the_store_writes_nothing(m: Memories) -> None:
    reader, writer = await m.session_with(access="read_only"), await m.session_with()
    stranger = await m.h.create(await m.h.agent())
    assert (await refusal(m.push(reader, changed("/a", "x")))).reason == "MEMORY_STORE_NOT_ATTACHED"
    assert (await refusal(m.push(stranger.id, changed("/a", "x"), epoch=0))).reason == "MEMORY_STORE_NOT_ATTACHED"
    assert (await refusal(m.push(writer, changed("/a", "x"), epoch=2))).reason == "TURN_LEASE_LOST"
    assert (await refusal(m.push("sess_none", changed("/a", "x")))).reason == "SESSION_NOT_FOUND"
    assert await m.names() == []


async def test_an_archived_or_deleted_store_refuses_and_says_so(m: Memories) -> None:
    session_id = await m.session_with()
    await m.archive()
    answer = await m.push(session_id, changed("/a", "x"))
    assert (answer.state, answer.results[0].outcome) == (pb.MEMORY_STORE_STATE_ARCHIVED, REFUSED)
    assert "archived" in answer.results[0].refusal
    await m.delete_store()
    answer = await m.push(session_id, changed("/a", "x"))
    assert (answer.state, answer.results[0].outcome) == (pb.MEMORY_STORE_STATE_DELETED, REFUSED)
    assert [each.state for each in await m.pull()] == [pb.MEMORY_STORE_STATE_DELETED]


async def test_of_pushes_at_once_one_wins_and_the_others_are_told(m: Memories) -> None:
    sessions = [await m.session_with() for _ in range(6)]
    await m.add("/a", "old")
    answers = await asyncio.gather(*(m.push(each, changed("/a", f"by {each}", "old")) for each in sessions))
    outcomes = [answer.results[0].outcome for answer in answers]
    assert sorted(outcomes) == sorted([WRITTEN] + [CONFLICT] * 5)
    won = f"by {sessions[outcomes.index(WRITTEN)]}"
    assert {answer.results[0].memory.content_sha256 for answer in answers} == {sha(won)}


async def test_a_change_is_hinted_at_after_its_commit(m: Memories, nats: Nats) -> None:
    heard: list[tuple[str, bytes]] = []

    async def hear(message: object) -> None:
        heard.append((message.subject, message.data))  # type: ignore[attr-defined]

    # Of this store alone: other tests are on the same bus.
    subject = f"memory.changed.{m.store_id}"
    await nats.subscribe_eventually(subject, hear)
    session_id = await m.session_with()
    made = await m.add("/a", "one")
    await m.update(made.id, content="two")
    await m.update(made.id, content="two")
    await m.push(session_id, changed("/b", "x"))
    await m.delete(made.id)
    await m.archive()
    expected = [(subject, each) for each in (b"1", b"2", b"3", b"4", b"0")]
    await await_until(lambda: len(heard) >= 5)
    assert heard == expected
