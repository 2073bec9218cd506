"""Filtered pages hold exactly what the filter means, and read no more of a long log than they have to."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kit.clock import rfc3339
from services.sessions.store.event_pages import (
    CHUNK_EVENTS,
    SPAN_OF_TIMES,
    EventFilter,
    Span,
    joined_page_statement,
    page_values,
    times,
)
from tests.integration.sessions.harness import WORKSPACE, Harness

pytestmark = pytest.mark.asyncio(loop_scope="package")

START = datetime(2026, 1, 1, tzinfo=UTC)
EARLY, LATE = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
RARE, COMMON, ABSENT = "user.message", "agent.message", "session.error"
# Several chunks, and no whole number of them. Three events share each moment.
COUNT = CHUNK_EVENTS * 3 + 40
EVERY = 100


def moment(seq: int) -> datetime:
    return START + timedelta(microseconds=seq // 3)


def kind(seq: int) -> str:
    return RARE if seq % EVERY == 0 else COMMON


async def filled(h: Harness, count: int) -> str:
    session = await h.create(await h.agent())
    await h.execute(
        """
        INSERT INTO events (workspace_id, session_id, seq, id, type, in_context, created_at, body)
        SELECT %(workspace_id)s, %(session_id)s, seq, 'sevt_' || seq,
               CASE WHEN seq %% %(every)s = 0 THEN %(rare)s ELSE %(common)s END, false,
               %(start)s + seq / 3 * interval '1 microsecond', '{"id":"sevt_' || seq || '"}'
        FROM generate_series(1, %(count)s) seq
        """,
        session_id=session.id,
        count=count,
        every=EVERY,
        rare=RARE,
        common=COMMON,
        start=START,
    )
    await h.execute(
        "UPDATE sessions SET last_seq = %(count)s WHERE workspace_id = %(workspace_id)s AND id = %(id)s",
        count=count,
        id=session.id,
    )
    return session.id


async def listed(h: Harness, session_id: str, limit: int, **fields: Any) -> list[int]:
    """The seqs of a listing, page by page."""
    seqs: list[int] = []
    cursor = ""
    while True:
        page = await h.page(session_id, limit=limit, cursor=cursor, **fields)
        bodies = [event.body for event in page.events]
        if page.bodies:
            bodies = [json.dumps(body).encode() for body in json.loads(b"[%b]" % page.bodies)]
        assert len(bodies) <= limit
        seqs += [int(json.loads(body)["id"].removeprefix("sevt_")) for body in bodies]
        cursor = page.page_info.next_cursor
        if not cursor:
            return seqs
        assert bodies, "a page that is not the last one holds something"


def meant(count: int, fields: dict[str, Any]) -> list[int]:
    tests = {
        "types": lambda seq, types: kind(seq) in types,
        "created_at_gt": lambda seq, bound: rfc3339(moment(seq)) > bound,
        "created_at_gte": lambda seq, bound: rfc3339(moment(seq)) >= bound,
        "created_at_lt": lambda seq, bound: rfc3339(moment(seq)) < bound,
        "created_at_lte": lambda seq, bound: rfc3339(moment(seq)) <= bound,
    }
    return [seq for seq in range(1, count + 1) if all(tests[name](seq, value) for name, value in fields.items())]


BOUNDS = [EARLY, START, moment(1), moment(400), moment(400) + timedelta(microseconds=1), moment(COUNT), LATE]
FILTERS: list[dict[str, Any]] = [
    *({f"created_at_{name}": rfc3339(bound)} for name in ("gt", "gte", "lt", "lte") for bound in BOUNDS),
    {"created_at_gt": rfc3339(moment(300)), "created_at_gte": rfc3339(moment(200))},
    {"created_at_gte": rfc3339(moment(300)), "created_at_lt": rfc3339(moment(303))},
    {"created_at_gt": rfc3339(moment(300)), "created_at_lte": rfc3339(moment(500)), "types": [RARE]},
    {"created_at_gt": rfc3339(moment(500)), "created_at_lt": rfc3339(moment(300)), "types": [COMMON]},
    {"types": [RARE]},
    {"types": [ABSENT]},
    {"types": [RARE, COMMON, RARE]},
]


@pytest.mark.parametrize("joined", [False, True])
async def test_a_filtered_listing_holds_what_the_filter_means(h: Harness, joined: bool) -> None:
    session_id = await filled(h, COUNT)
    for fields in FILTERS:
        expected = meant(COUNT, fields)
        for limit in (7, CHUNK_EVENTS - 1, CHUNK_EVENTS, 1000):
            if len(expected) / limit > 20:
                continue
            assert await listed(h, session_id, limit, joined=joined, **fields) == expected, fields
            backwards = await listed(h, session_id, limit, joined=joined, descending=True, **fields)
            assert backwards == expected[::-1], fields


@pytest.mark.parametrize("count", [0, 1, 2, CHUNK_EVENTS, CHUNK_EVENTS + 1])
async def test_so_does_one_of_a_log_of_any_length(h: Harness, count: int) -> None:
    session_id = await filled(h, count)
    for fields in FILTERS:
        expected = meant(count, fields)
        assert await listed(h, session_id, 1000, **fields) == expected, fields
        assert await listed(h, session_id, 1000, descending=True, **fields) == expected[::-1], fields


async def test_a_page_can_start_after_an_event_in_either_order(h: Harness) -> None:
    session_id = await filled(h, COUNT)
    for fields in FILTERS:
        expected = meant(COUNT, fields)
        for seq in (1, 399, 400, COUNT):
            after = {"after_event_id": f"sevt_{seq}"} | fields
            page = await h.page(session_id, limit=1000, **after)
            assert [event.seq for event in page.events] == [each for each in expected if each > seq]
            page = await h.page(session_id, limit=1000, descending=True, **after)
            assert [event.seq for event in page.events] == [each for each in expected[::-1] if each < seq]


async def test_a_page_of_a_long_log_that_the_server_knows_nothing_about_reads_little(h: Harness) -> None:
    session_id = await filled(h, 20_000)
    late = EventFilter(created_at_gte=moment(19_000))
    cases = [
        (EventFilter(), Span(), 101),
        (late, Span(19_000), 101),
        (EventFilter(types=(COMMON,)), Span(), 101 + CHUNK_EVENTS),
        (EventFilter(types=(RARE,), created_at_gte=moment(19_000)), Span(19_000), 1001 + CHUNK_EVENTS),
    ]
    for narrowed, span, most in cases:
        for descending in (False, True):
            values = page_values(session_id, narrowed, span, 100, 2_000_000)
            assert await _read(h, joined_page_statement(narrowed, descending), values) <= most, narrowed
    assert await _read(h, SPAN_OF_TIMES, times(session_id, late)) <= 16


async def _read(h: Harness, statement: Any, values: dict[str, Any]) -> int:
    """How many events the server looked at for a statement, about: it tells a rounded mean of each loop."""
    async with h.database.read(WORKSPACE) as tx:
        ((plan,),) = await tx.all("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, values)
    return _touched(plan[0]["Plan"])


def _touched(node: dict[str, Any]) -> int:
    own = 0
    if node.get("Relation Name") == "events":
        own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return round(own) + sum(_touched(child) for child in node.get("Plans", ()))
