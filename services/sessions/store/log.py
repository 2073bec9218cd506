"""The event log: appended under a session's lock, together with everything that goes with it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import orjson
import psycopg

from kit.clock import rfc3339
from kit.postgres import Tx
from services.sessions.domain.log import UNREAD, LoggedEvent
from services.sessions.domain.move import Moved
from services.sessions.domain.session_state import SessionState, TurnState
from services.sessions.store.turns import session_values

# Events of one model request with all its calls are far fewer: as much of a log tells what a turn left open.
MAX_TAIL = 1000
_ONCE = ("events_id_once", "outbox_message_id_unique")


# Everything hangs on `saved`: a session that has moved on keeps its log, turn and outbox as they are.
_SAVE: LiteralString = """
WITH saved AS ( -- platform-wide: each row brings the workspace that its session was found in
    UPDATE sessions AS s
    SET revision = m.revision, archived_at = m.archived_at, deleted_at = m.deleted_at, updated_at = m.updated_at,
        status = m.status, last_seq = m.last_seq, input_seq = m.input_seq, turn_epoch = m.turn_epoch,
        turn_state = m.turn_state, turn_attempt = m.turn_attempt, turn_holder = m.turn_holder,
        interrupt_seq = m.interrupt_seq, unread = m.unread, pending = m.pending, stop_reason = m.stop_reason,
        input_tokens = m.input_tokens, output_tokens = m.output_tokens,
        cache_read_input_tokens = m.cache_read_input_tokens,
        cache_creation_5m_input_tokens = m.cache_creation_5m_input_tokens,
        cache_creation_1h_input_tokens = m.cache_creation_1h_input_tokens,
        web_search_requests = m.web_search_requests, web_fetch_requests = m.web_fetch_requests, spend = m.spend,
        active_seconds = m.active_seconds,
        running_since = m.running_since, parked_at = m.parked_at, outcome = m.outcome,
        outcome_evaluations = CASE WHEN m.outcome_changes IS NULL THEN s.outcome_evaluations
            ELSE merge_outcomes(s.outcome_evaluations, m.outcome_changes) END,
        traceparent = m.traceparent, version = m.version, threads = m.threads
    FROM json_to_recordset(%(sessions)s::json) AS m(
        workspace_id text, id text, revision integer, archived_at timestamptz, deleted_at timestamptz,
        updated_at timestamptz, status text, last_seq bigint, input_seq bigint, turn_epoch bigint, turn_state text,
        turn_attempt integer, turn_holder text, interrupt_seq bigint, unread text, pending text, stop_reason text,
        input_tokens bigint, output_tokens bigint, cache_read_input_tokens bigint,
        cache_creation_5m_input_tokens bigint, cache_creation_1h_input_tokens bigint,
        web_search_requests bigint, web_fetch_requests bigint, spend text,
        active_seconds double precision, running_since timestamptz, parked_at timestamptz, outcome text,
        outcome_changes jsonb, traceparent text, version bigint, threads text)
    -- The ids once more by themselves: the planner can't know how few rows the JSON holds.
    WHERE s.id = ANY(%(ids)s) AND s.id = m.id AND s.workspace_id = m.workspace_id AND s.version = m.version - 1
    RETURNING s.id
), logged AS (
    INSERT INTO events (workspace_id, session_id, seq, id, type, in_context, created_at, body)
    SELECT e.workspace_id, e.session_id, e.seq, e.id, e.type, e.in_context, e.created_at, e.body
    FROM json_to_recordset(%(events)s::json) AS e(
        workspace_id text, session_id text, seq bigint, id text, type text, in_context boolean,
        created_at timestamptz, body text)
    JOIN saved ON saved.id = e.session_id
), sent AS (
    INSERT INTO outbox (workspace_id, message_id, subject, payload, headers)
    SELECT o.workspace_id, o.message_id, o.subject, decode(o.payload, 'base64'), o.headers
    FROM json_to_recordset(%(messages)s::json) AS o(
        workspace_id text, session_id text, message_id text, subject text, payload text, headers jsonb)
    JOIN saved ON saved.id = o.session_id
), ended AS (
    DELETE FROM turns USING saved WHERE turns.session_id = saved.id AND saved.id = ANY(%(ended)s)
), held AS (
    INSERT INTO turns (workspace_id, session_id, epoch, holder, expires_at, ready_at)
    SELECT t.workspace_id, t.session_id, t.epoch, t.holder,
           CASE WHEN t.holder <> '' THEN clock_timestamp() + make_interval(secs => %(lease_seconds)s) END,
           clock_timestamp()
    FROM json_to_recordset(%(turns)s::json) AS t(workspace_id text, session_id text, epoch bigint, holder text)
    JOIN saved ON saved.id = t.session_id
    ON CONFLICT (session_id) DO UPDATE
    SET epoch = excluded.epoch, holder = excluded.holder, expires_at = excluded.expires_at,
        ready_at = excluded.ready_at
)
SELECT id FROM saved
"""


class EventStored(Exception):
    """An event with this id is in a log already; nothing was written."""


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """What leaves with an append."""

    workspace_id: str
    session_id: str
    message_id: str
    subject: str
    # Base64 of the payload.
    payload: str
    headers: dict[str, str] | None = None


class LogStore:
    """Writes and reads of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def save(self, moves: Sequence[Moved], messages: Iterable[OutboxMessage], lease_seconds: float) -> set[str]:
        """Saves finished moves in one statement: log, sessions, turns and outbox.

        Answers with the sessions that still stood where their first move began; nothing is
        written for the others. Several moves of one session stand in their order; the
        last one's state is saved. EventStored where an event is in a log already.
        """
        try:
            rows = await self._tx.all(_SAVE, _save_values(moves, messages, lease_seconds))
        except psycopg.errors.UniqueViolation as error:
            if error.diag.constraint_name in _ONCE:
                raise EventStored from error
            raise
        return {row[0] for row in rows}

    async def mark_read(
        self, session_id: str, seqs: Sequence[int], moment: datetime, read_seq: int
    ) -> list[LoggedEvent]:
        """Puts the time and the place of reading into queued inputs, and answers with what they look like now."""
        rows = await self._tx.all(
            """
            UPDATE events
            SET body = overlay(body PLACING %(read)s FROM position(%(unread)s IN body) FOR length(%(unread)s)),
                read_seq = %(read_seq)s
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND seq = ANY(%(seqs)s)
              AND position(%(unread)s IN body) > 0
            RETURNING id, seq, type, created_at, body
            """,
            {
                "session_id": session_id,
                "seqs": list(seqs),
                "read_seq": read_seq,
                "unread": UNREAD,
                "read": f'"processed_at":"{rfc3339(moment)}"',
            },
        )
        return sorted((_logged(row) for row in rows), key=lambda event: event.seq)

    async def stored_ids(self, session_id: str, event_ids: Sequence[str]) -> frozenset[str]:
        """Which of the events are in the log already."""
        rows = await self._tx.all(
            """
            SELECT id FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND id = ANY(%(ids)s)
            ORDER BY seq LIMIT 10000
            """,
            {"session_id": session_id, "ids": list(event_ids)},
        )
        return frozenset(row[0] for row in rows)

    async def by_ids(self, session_id: str, event_ids: Sequence[str]) -> list[LoggedEvent]:
        """Named events of a session, in the order of their seq."""
        rows = await self._tx.all(
            """
            SELECT id, seq, type, created_at, body FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND id = ANY(%(ids)s)
            ORDER BY seq LIMIT 10000
            """,
            {"session_id": session_id, "ids": list(event_ids)},
        )
        return [_logged(row) for row in rows]

    async def context(self, session_id: str, after_seq: int, up_to_seq: int, limit: int) -> list[LoggedEvent]:
        """Events that shape the model's context, after one seq and up to another."""
        rows = await self._tx.all(
            """
            SELECT id, seq, type, created_at, body FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND in_context
              AND seq > %(after_seq)s AND seq <= %(up_to_seq)s
            ORDER BY seq LIMIT %(limit)s
            """,
            {"session_id": session_id, "after_seq": after_seq, "up_to_seq": up_to_seq, "limit": limit},
        )
        return [_logged(row) for row in rows]

    async def newest_context(self, session_id: str, limit: int) -> list[LoggedEvent]:
        """The newest events that shape the model's context, in the order of their seq."""
        rows = await self._tx.all(
            """
            SELECT id, seq, type, created_at, body FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND in_context
            ORDER BY seq DESC LIMIT %(limit)s
            """,
            {"session_id": session_id, "limit": limit},
        )
        return [_logged(row) for row in reversed(rows)]

    async def context_of_others(
        self, session_id: str, after_seq: int, up_to_seq: int, own_ids: Sequence[str], limit: int
    ) -> list[LoggedEvent]:
        """Events that shape the model's context, after one seq and up to another, but those of the caller's own."""
        rows = await self._tx.all(
            """
            SELECT id, seq, type, created_at, body FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND in_context
              AND seq > %(after_seq)s AND seq <= %(up_to_seq)s AND id <> ALL(%(own_ids)s)
            ORDER BY seq LIMIT %(limit)s
            """,
            {
                "session_id": session_id,
                "after_seq": after_seq,
                "up_to_seq": up_to_seq,
                "own_ids": list(own_ids),
                "limit": limit,
            },
        )
        return [_logged(row) for row in rows]


def _save_values(moves: Sequence[Moved], messages: Iterable[OutboxMessage], lease_seconds: float) -> dict[str, Any]:
    last = {moved.state.id: moved.state for moved in moves}
    first = {moved.state.id: moved.before for moved in reversed(moves)}
    changed = [state for state in last.values() if _turn(first[state.id]) != _turn(state)]
    return {
        # Locked in this order, so that two of these never wait for each other in a circle.
        "ids": sorted(last),
        "sessions": _dump([_session_values(last[session_id], moves) for session_id in sorted(last)]),
        "events": _dump([_event_values(moved, event) for moved in moves for event in moved.events]),
        "messages": _dump(list(messages)),
        "ended": [state.id for state in changed if state.turn_state is TurnState.NONE],
        "turns": _dump([_turn_values(state) for state in changed if state.turn_state is not TurnState.NONE]),
        "lease_seconds": lease_seconds,
    }


def _session_values(state: SessionState, moves: Sequence[Moved]) -> dict[str, Any]:
    values = session_values(state)
    if state.outcome is not None and any(moved.outcome_changes for moved in moves):
        mine = [change for moved in moves if moved.state.id == state.id for change in moved.outcome_changes]
        values["outcome_changes"] = mine or None
    return values


def _turn(state: SessionState) -> tuple[TurnState, int]:
    return state.turn_state, state.turn_epoch


def _turn_values(state: SessionState) -> dict[str, Any]:
    return {
        "workspace_id": state.workspace_id,
        "session_id": state.id,
        "epoch": state.turn_epoch,
        "holder": state.turn_holder if state.turn_state is TurnState.LEASED else "",
    }


def _event_values(moved: Moved, event: LoggedEvent) -> dict[str, Any]:
    return {
        "workspace_id": moved.state.workspace_id,
        "session_id": moved.state.id,
        "seq": event.seq,
        "id": event.id,
        "type": event.type,
        "in_context": event.in_context,
        "created_at": event.created_at,
        "body": event.body.decode(),
    }


def _logged(row: tuple[Any, ...]) -> LoggedEvent:
    return LoggedEvent(row[0], row[1], row[2], row[3], row[4].encode())


def _dump(values: list[Any]) -> str:
    return orjson.dumps(values).decode()
