"""Logs are read whole, in order, in both directions, without a body being touched on the way."""

from typing import Any

import orjson
import pytest

from managed_agents.sessions.v1 import sessions_pb2
from managed_agents.sessions.v1.sessions_pb2 import SessionStatus
from services.sessions.domain.inbound import validate_events
from services.sessions.store.event_reads import PAGE_BYTES
from tests.integration.sessions.harness import Harness, refusal

pytestmark = pytest.mark.asyncio(loop_scope="package")

INTERRUPT = {"type": "user.interrupt"}


async def filled(h: Harness, count: int) -> str:
    """A session whose log holds so many events."""
    session = await h.create(await h.agent())
    for start in range(0, count, 250):
        batch = [INTERRUPT] * min(250, count - start)
        await h.append(session.id, validate_events(batch, initial=False, published=False))
    return session.id


async def walk(h: Harness, session_id: str, **fields: Any) -> list[Any]:
    """Every event that the pages of a listing hold."""
    events, cursor = [], ""
    while True:
        page = await h.page(session_id, cursor=cursor, **fields)
        events += page.events
        assert not page.page_info.previous_cursor
        cursor = page.page_info.next_cursor
        if not cursor:
            return events
        assert page.events


async def test_a_long_log_is_read_to_its_end(h: Harness) -> None:
    session_id = await filled(h, 2500)
    for limit in (100, 333, 1000, 2500):
        assert [event.seq for event in await walk(h, session_id, limit=limit)] == list(range(1, 2501))
    assert [event.seq for event in await walk(h, session_id, limit=700, descending=True)] == list(range(2500, 0, -1))


async def test_a_replay_is_complete_and_says_where_the_log_ends(h: Harness) -> None:
    session_id = await filled(h, 2500)
    for after_seq in (0, 1, 1499, 2499):
        batches = await h.replay(session_id, after_seq)
        assert [event.seq for batch in batches for event in batch.events] == list(range(after_seq + 1, 2501))
        assert {batch.last_seq for batch in batches} == {2500}
        assert {batch.status for batch in batches} == {SessionStatus.SESSION_STATUS_IDLE}


@pytest.mark.parametrize("after_seq", [0, 5, 10_000])
async def test_a_replay_of_nothing_still_tells_the_end(h: Harness, after_seq: int) -> None:
    session_id = await filled(h, 5 if after_seq else 0)
    (batch,) = await h.replay(session_id, after_seq)
    assert list(batch.events) == []
    assert batch.last_seq == (5 if after_seq else 0)


async def test_pages_and_replays_hold_the_same_bytes(h: Harness) -> None:
    session_id = await filled(h, 20)
    listed = await walk(h, session_id, limit=7)
    assert [event for batch in await h.replay(session_id) for event in batch.events] == listed
    body = orjson.loads(listed[0].body)
    assert (body["id"], body["seq"], body["type"]) == (listed[0].id, 1, "user.interrupt")
    assert list(body)[:5] == ["id", "type", "seq", "created_at", "processed_at"]


@pytest.mark.parametrize("descending", [False, True])
async def test_joined_pages_hold_the_same_bytes_and_cursors(h: Harness, descending: bool) -> None:
    session_id, cursor = await filled(h, 20), ""
    for _ in range(3):
        fields = {"limit": 7, "cursor": cursor, "descending": descending}
        plain, joined = await h.page(session_id, **fields), await h.page(session_id, joined=True, **fields)
        assert joined.bodies == b",".join(event.body for event in plain.events) != b""
        assert (list(joined.events), joined.page_info) == ([], plain.page_info)
        cursor = plain.page_info.next_cursor
    assert cursor == ""
    nothing = await h.page(session_id, joined=True, types=["agent.message"])
    assert (nothing.bodies, nothing.page_info.next_cursor) == (b"", "")
    assert (await refusal(h.page("sess_unknown", joined=True))).reason == "SESSION_NOT_FOUND"


async def test_framed_replays_hold_the_same_bytes_and_say_what_is_unread(h: Harness) -> None:
    session = await h.create(await h.agent(), initial_events=[{"type": "user.message", "content": "ü\nx"}])
    queued = {"type": "user.message", "content": "later"}
    await h.append(session.id, validate_events([queued], initial=False, published=False))
    events = [event for batch in await h.replay(session.id) for event in batch.events]
    frames = [b"id: %d\nevent: %b\ndata: %b\n\n" % (one.seq, one.type.encode(), one.body) for one in events]
    (batch,) = await h.replay(session.id, framed=True)
    assert batch.frames == b"".join(frames)
    assert list(batch.unread_seqs) == [one.seq for one in events if b'"processed_at":null' in one.body] != []
    assert (await h.replay(session.id, framed=True, after_seq=2))[0].frames == b"".join(frames[2:])
    (empty,) = await h.replay(session.id, framed=True, after_seq=99)
    assert (empty.frames, list(empty.events), empty.last_seq) == (b"", [], len(events))


async def test_large_events_end_a_page_early_and_none_is_lost(h: Harness) -> None:
    session = await h.create(await h.agent())
    large = {"type": "user.message", "content": "x" * 900_000}
    await h.append(session.id, validate_events([large] * 9, initial=False, published=False))
    page = await h.page(session.id, limit=100)
    assert len(page.events) < 9
    assert sum(len(event.body) for event in page.events[:-1]) < PAGE_BYTES
    assert [event.seq for event in await walk(h, session.id, limit=100)] == list(range(1, 12))
    assert [event.seq for event in await walk(h, session.id, limit=2, descending=True)] == list(range(11, 0, -1))
    batches = await h.replay(session.id)
    assert len(batches) > 1
    assert [event.seq for batch in batches for event in batch.events] == list(range(1, 12))
    framed = await h.replay(session.id, framed=True)
    assert len(framed) > 1
    assert b"".join(batch.frames for batch in framed).count(b"\nevent: ") == 11


async def test_an_empty_log_is_an_empty_page(h: Harness) -> None:
    page = await h.page(await filled(h, 0))
    assert (list(page.events), page.page_info.next_cursor) == ([], "")


async def test_types_narrow_a_listing(h: Harness) -> None:
    session = await h.create(await h.agent(), initial_events=[{"type": "user.message", "content": "x"}])
    types = ["session.status_running", "user.message"]
    assert [event.type for event in (await h.page(session.id, types=types)).events] == types[::-1]
    assert [event.type for event in await walk(h, session.id, types=types, limit=1)] == types[::-1]
    assert list((await h.page(session.id, types=["agent.message"])).events) == []


async def test_times_narrow_a_listing(h: Harness) -> None:
    session_id = await filled(h, 3)
    await h.update(session_id, title="later")
    created = [orjson.loads(event.body)["created_at"] for event in await walk(h, session_id)]
    later = created[-1]
    assert [e.seq for e in await walk(h, session_id, created_at_gte=later)] == [4]
    assert [e.seq for e in await walk(h, session_id, created_at_lt=later)] == [1, 2, 3]
    assert [e.seq for e in await walk(h, session_id, created_at_gt=created[0], created_at_lte=later)] == [4]
    assert (await refusal(h.page(session_id, created_at_lt="now"))).field == "created_at[lt]"


async def test_a_listing_may_start_after_an_event(h: Harness) -> None:
    session_id = await filled(h, 5)
    events = await walk(h, session_id)
    after = events[2].id
    assert [event.seq for event in await walk(h, session_id, after_event_id=after)] == [4, 5]
    assert [event.seq for event in await walk(h, session_id, after_event_id=after, descending=True)] == [2, 1]


async def test_a_start_that_is_not_in_the_log_is_refused(h: Harness) -> None:
    session_id, other_id = await filled(h, 3), await filled(h, 3)
    foreign = (await walk(h, other_id))[0].id
    for event_id in ("sevt_unknown", foreign):
        refused = await refusal(h.page(session_id, after_event_id=event_id))
        assert (refused.reason, refused.code, refused.field) == ("EVENT_NOT_FOUND", "INVALID_ARGUMENT", "after_id")
    assert (await refusal(h.page("sess_unknown", after_event_id=foreign))).reason == "SESSION_NOT_FOUND"


async def test_a_cursor_belongs_to_its_session_filters_and_order(h: Harness) -> None:
    session_id, other_id = await filled(h, 3), await filled(h, 3)
    cursor = (await h.page(session_id, limit=1)).page_info.next_cursor
    assert [event.seq for event in (await h.page(session_id, limit=5, cursor=cursor)).events] == [2, 3]
    for target, fields in (
        (other_id, {}),
        (session_id, {"descending": True}),
        (session_id, {"types": ["user.interrupt"]}),
        (session_id, {"created_at_gt": "2026-01-01T00:00:00Z"}),
    ):
        assert (await refusal(h.page(target, cursor=cursor, **fields))).reason == "INVALID_CURSOR"
    refused = await refusal(h.page(session_id, cursor=cursor, after_event_id="sevt_1"))
    assert refused.field == "after_id"


async def test_the_order_of_types_does_not_matter_to_a_cursor(h: Harness) -> None:
    session_id = await filled(h, 3)
    cursor = (await h.page(session_id, limit=1, types=["user.interrupt", "b"])).page_info.next_cursor
    assert (await h.page(session_id, cursor=cursor, types=["b", "user.interrupt"])).events


async def test_nul_characters_are_refused_and_never_reach_the_database(h: Harness) -> None:
    session_id = await filled(h, 1)
    assert (await refusal(h.page(session_id, types=["a\x00"]))).field == "types[]"
    assert (await refusal(h.page(session_id, after_event_id="a\x00"))).field == "after_id"


async def test_a_log_of_another_workspace_is_not_found(h: Harness) -> None:
    session_id = await filled(h, 3)
    for attempt in (h.page(session_id, workspace="wrkspc_other"), h.replay(session_id, workspace="wrkspc_other")):
        assert (await refusal(attempt)).reason == "SESSION_NOT_FOUND"


async def test_an_archived_session_can_still_be_read(h: Harness) -> None:
    session_id = await filled(h, 3)
    await h.call(h.sessions.ArchiveSession, sessions_pb2.ArchiveSessionRequest(session_id=session_id))
    assert len(await walk(h, session_id)) >= 3
