"""The statements behind pages of an event log, written so that no statistics can mislead them.

A log that grows is ahead of what the server knows about it, and a plan that believes in a
short log reads and sorts all of it for each page. So every read here names the seqs that
it can touch. Seqs have no gaps: a page of every event is a range. Times never run
backwards within a log: bounds of time are found by halving, and are a range too. Only
types have to be looked for, in chunks of a fixed size until the page is full.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, LiteralString

# How many events are looked at together when types are looked for.
CHUNK_EVENTS = 256


@dataclass(frozen=True, slots=True)
class EventFilter:
    """What a listing is narrowed to; None or empty stands for no limit."""

    types: tuple[str, ...] = ()
    created_at_gt: datetime | None = None
    created_at_gte: datetime | None = None
    created_at_lt: datetime | None = None
    created_at_lte: datetime | None = None

    @property
    def is_timed(self) -> bool:
        """Whether times bound it."""
        return any((self.created_at_gt, self.created_at_gte, self.created_at_lt, self.created_at_lte))


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a log, both ends in it; None is where the log ends."""

    low: int = 1
    high: int | None = None

    def behind(self, after_seq: int, *, descending: bool) -> "Span":
        """What of it comes after a seq in reading order."""
        if not descending:
            return replace(self, low=max(self.low, after_seq + 1))
        return replace(self, high=after_seq - 1 if self.high is None else min(self.high, after_seq - 1))


# The first seq that is not before the lower bound, and the first one that is behind the upper bound.
# Both are found by halving: `low` is before the moment and `high` is not, with the log's ends as sentinels.
SPAN_OF_TIMES: LiteralString = """
WITH RECURSIVE session AS (
    SELECT id, last_seq FROM sessions
    WHERE workspace_id = %(workspace_id)s AND id = %(session_id)s AND deleted_at IS NULL
), search AS (
    SELECT is_upper, moment, 0::bigint AS low, last_seq + 1 AS high
    FROM session CROSS JOIN (
        VALUES (false, greatest(%(gte)s::timestamptz, %(gt)s::timestamptz + interval '1 microsecond')),
               (true, least(%(lt)s::timestamptz, %(lte)s::timestamptz + interval '1 microsecond'))
    ) AS bounds (is_upper, moment)
    WHERE moment IS NOT NULL
    UNION ALL
    SELECT is_upper, moment,
           CASE WHEN created_at < moment THEN seq ELSE low END, CASE WHEN created_at < moment THEN high ELSE seq END
    FROM search CROSS JOIN LATERAL (
        SELECT seq, created_at FROM events
        WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND seq = (low + high) / 2
        LIMIT 1
    ) middle
    WHERE high - low > 1
)
SELECT max(high) FILTER (WHERE NOT is_upper), max(high) FILTER (WHERE is_upper) FROM search WHERE high - low = 1
"""


def times(session_id: str, narrowed: EventFilter) -> dict[str, Any]:
    """What `SPAN_OF_TIMES` takes."""
    return {
        "session_id": session_id,
        "gt": narrowed.created_at_gt,
        "gte": narrowed.created_at_gte,
        "lt": narrowed.created_at_lt,
        "lte": narrowed.created_at_lte,
    }


def page_values(session_id: str, narrowed: EventFilter, span: Span, limit: int, page_bytes: int) -> dict[str, Any]:
    """What the page statements take."""
    return {
        "session_id": session_id,
        "low": span.low,
        "high": span.high,
        "limit": limit,
        "limit_and_one": limit + 1,
        "page_bytes": page_bytes,
        "types": list(narrowed.types),
        "chunk": CHUNK_EVENTS,
    }


def joined_page_statement(narrowed: EventFilter, descending: bool) -> LiteralString:
    """One row; of events only the last can say that the listing ends."""
    order: LiteralString = "seq DESC" if descending else "seq"
    return "".join(
        (
            "SELECT count(*), string_agg(body, ',' ORDER BY ",
            order,
            "), bool_and(has_more), min(seq), max(seq) FROM (",
            page_statement(narrowed, descending),
            ") page",
        )
    )


def page_statement(narrowed: EventFilter, descending: bool) -> LiteralString:
    """One row per event, or one row of nulls where the session exists and nothing matches."""
    order: LiteralString = "seq DESC" if descending else "seq"
    window: LiteralString = "OVER (ORDER BY " + order + ")"
    return "".join(
        (
            "SELECT e.seq, e.id, e.type, e.body, e.has_more FROM (",
            " SELECT %(low)s::bigint AS low, least(%(high)s::bigint, last_seq) AS high FROM sessions"
            " WHERE workspace_id = %(workspace_id)s AND id = %(session_id)s AND deleted_at IS NULL) s"
            " LEFT JOIN LATERAL (",
            " SELECT seq, id, type, body, has_more FROM (",
            "  SELECT seq, id, type, body, lead(seq) ",
            window,
            " IS NOT NULL AS has_more, sum(octet_length(body)) ",
            window,
            " - octet_length(body) AS before FROM (",
            _found(descending) if narrowed.types else _range(descending),
            ") chosen) sized",
            " WHERE before < %(page_bytes)s ORDER BY ",
            order,
            " LIMIT %(limit)s) e ON true ORDER BY ",
            order,
        )
    )


def _range(descending: bool) -> LiteralString:
    """The events of a page, and the one after it: they are all that lie there."""
    if descending:
        return _EVENTS + "greatest(s.low, s.high - %(limit_and_one)s + 1) AND s.high"
    return _EVENTS + "s.low AND least(s.high, s.low + %(limit_and_one)s - 1)"


def _found(descending: bool) -> LiteralString:
    """The same of certain types. Chunks are taken one after the other and no more than the page needs: the loop over
    them is the only way in which a LATERAL can be joined, and what comes out first is nearest to the page's start.
    """
    if descending:
        chunks: LiteralString = "generate_series(s.high, s.low, -%(chunk)s::bigint) AS start"
        bounds: LiteralString = "greatest(s.low, start - %(chunk)s + 1) AND start"
        order: LiteralString = "seq DESC"
    else:
        chunks = "generate_series(s.low, s.high, %(chunk)s::bigint) AS start"
        bounds = "start AND least(s.high, start + %(chunk)s - 1)"
        order = "seq"
    return "".join(
        (
            "SELECT found.seq, found.id, found.type, found.body FROM ",
            chunks,
            " CROSS JOIN LATERAL (",
            _EVENTS,
            bounds,
            " AND type = ANY(%(types)s) ORDER BY ",
            order,
            ") found LIMIT %(limit_and_one)s",
        )
    )


_EVENTS: LiteralString = (
    "SELECT seq, id, type, body FROM events"
    " WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND seq BETWEEN "
)
