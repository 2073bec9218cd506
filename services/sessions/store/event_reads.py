"""SQL that reads event logs for clients: pages in both directions, and batches for replay.

A body is handed on as it was stored. Pages and batches are bounded by their bytes as
well as by their number of events, so a log of large events can't fill the memory of a
reader; the size of a body is known to the server without unpacking it.
"""

from dataclasses import dataclass

from kit.postgres import Tx
from services.sessions.store.event_pages import (
    SPAN_OF_TIMES,
    EventFilter,
    Span,
    joined_page_statement,
    page_statement,
    page_values,
    times,
)

# A page ends with the event that reaches this many bytes.
PAGE_BYTES = 2_000_000


# (seq, id, type, body)
EventTuple = tuple[int, str, str, str]
# The same, after the seq of the first event that was written with the reading.
LateRead = tuple[int, EventTuple]


@dataclass(frozen=True, slots=True)
class EventPage:
    """Consecutive events of one listing."""

    events: list[EventTuple]
    # Whether the listing goes on after them.
    has_more: bool


@dataclass(frozen=True, slots=True)
class JoinedPage:
    """A page whose bodies are one text, with commas between them."""

    bodies: str
    # The seq after which the listing goes on; None at its end.
    next_after: int | None


@dataclass(frozen=True, slots=True)
class FramedBatch:
    """Consecutive events as one text of stream frames."""

    frames: str
    last_seq: int
    unread_seqs: list[int]
    # Whether one of them ends its session.
    ends: bool


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How far a log goes, and where its session stands."""

    last_seq: int
    status: str
    # JSON array of [seq, …] of the inputs that no model request has read.
    unread: str


class EventReads:
    """Statements on `events`, for readers."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def page(
        self, session_id: str, narrowed: EventFilter, after_seq: int | None, *, descending: bool, limit: int
    ) -> EventPage | None:
        """Up to `limit` events after a seq, in reading order; None where there is no such session."""
        span = await self._span(session_id, narrowed, after_seq, descending=descending)
        rows = await self._tx.all(
            page_statement(narrowed, descending), page_values(session_id, narrowed, span, limit, PAGE_BYTES)
        )
        if not rows:
            return None
        if rows[0][0] is None:
            return EventPage([], False)
        return EventPage([row[:4] for row in rows], rows[-1][4])

    async def joined_page(
        self, session_id: str, narrowed: EventFilter, after_seq: int | None, *, descending: bool, limit: int
    ) -> JoinedPage | None:
        """The same page, its bodies joined by the server: no work per event on the way out."""
        span = await self._span(session_id, narrowed, after_seq, descending=descending)
        rows, bodies, has_more, first, last = await self._tx.one(
            joined_page_statement(narrowed, descending), page_values(session_id, narrowed, span, limit, PAGE_BYTES)
        )
        if not rows:
            return None
        return JoinedPage(bodies or "", (first if descending else last) if has_more else None)

    async def seq_of(self, session_id: str, event_id: str) -> int | None:
        """Where an event stands in a session's log."""
        found = await self._tx.maybe_one(
            """
            SELECT seq FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND id = %(event_id)s
            """,
            {"session_id": session_id, "event_id": event_id},
        )
        return found[0] if found else None

    async def end_of(self, session_id: str) -> LogEnd | None:
        """The end of a log right now; None where there is no such session."""
        return await self._tx.maybe_one(
            """
            SELECT last_seq, status, unread FROM sessions
            WHERE workspace_id = %(workspace_id)s AND id = %(session_id)s AND deleted_at IS NULL
            """,
            {"session_id": session_id},
            row=LogEnd,
        )

    async def read_late(self, session_id: str, seq: int, up_to_seq: int) -> list[LateRead]:
        """Inputs up to a seq that were read only after it, as they look now, in the order of their reading.

        A sum is no column: so the log's own index, which would walk all of it, is no choice here.
        """
        rows = await self._tx.all(
            """
            SELECT read_seq, seq, id, type, body FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s
              AND read_seq > %(seq)s AND read_seq <= %(up_to_seq)s AND seq + 0 <= %(seq)s
            ORDER BY read_seq, seq + 0 LIMIT 10000
            """,
            {"session_id": session_id, "seq": seq, "up_to_seq": up_to_seq},
        )
        return [(row[0], row[1:]) for row in rows]

    async def framed_batch(self, session_id: str, after_seq: int, up_to_seq: int, limit: int) -> FramedBatch | None:
        """The events of a batch as the frames of a stream; None where there are none."""
        found = await self._tx.one(
            r"""
            SELECT string_agg(
                       'id: ' || seq || E'\nevent: ' || type || E'\ndata: ' || body || E'\n\n', '' ORDER BY seq
                   ),
                   max(seq),
                   array_agg(seq) FILTER (
                       WHERE type IN ('user.message', 'system.message') AND position('"processed_at":null' IN body) > 0
                   ),
                   bool_or(type IN ('session.status_terminated', 'session.deleted'))
            FROM (
                SELECT seq, type, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
                FROM (
                    SELECT seq, type, body FROM events
                    WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s
                      AND seq > %(after_seq)s AND seq <= %(up_to_seq)s
                    ORDER BY seq LIMIT %(limit)s
                ) chosen
            ) sized
            WHERE before < %(page_bytes)s
            """,
            {
                "session_id": session_id,
                "after_seq": after_seq,
                "up_to_seq": min(up_to_seq, after_seq + limit),
                "limit": limit,
                "page_bytes": PAGE_BYTES,
            },
        )
        frames, last_seq, unread_seqs, ends = found
        return FramedBatch(frames, last_seq, unread_seqs or [], ends) if frames else None

    async def batch(self, session_id: str, after_seq: int, up_to_seq: int, limit: int) -> list[EventTuple]:
        """Up to `limit` events with after_seq < seq <= up_to_seq, in order."""
        return await self._tx.all(
            """
            SELECT seq, id, type, body FROM (
                SELECT seq, id, type, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
                FROM (
                    SELECT seq, id, type, body FROM events
                    WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s
                      AND seq > %(after_seq)s AND seq <= %(up_to_seq)s
                    ORDER BY seq LIMIT %(limit)s
                ) chosen
            ) sized
            WHERE before < %(page_bytes)s
            ORDER BY seq
            """,
            {
                "session_id": session_id,
                "after_seq": after_seq,
                "up_to_seq": min(up_to_seq, after_seq + limit),
                "limit": limit,
                "page_bytes": PAGE_BYTES,
            },
        )

    async def _span(self, session_id: str, narrowed: EventFilter, after_seq: int | None, *, descending: bool) -> Span:
        """Between which seqs a page can lie, as far as its request tells."""
        span = Span()
        if narrowed.is_timed:
            first, behind = await self._tx.one(SPAN_OF_TIMES, times(session_id, narrowed))
            span = Span(first or 1, None if behind is None else behind - 1)
        return span if after_seq is None else span.behind(after_seq, descending=descending)
