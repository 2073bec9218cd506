"""Rows of `work_items` of the tool protocol: writes of whole states, and what is looked for.

A state is written only over the revision that it was decided on. Reads that find work span all workspaces, as the
queue does; those for a caller are bound to its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import orjson

from kit.postgres import Tx
from services.worker.queue.domain.item import EndCode, Item, Status

COLUMNS: LiteralString = """
w.id, w.workspace_id, w.environment_id, w.session_id, w.kind, w.status, w.revision, w.attempt, w.created_at,
w.queue_until, w.wait_until, w.waiter, w.lease_holder, w.claimed_at, w.lease_expires_at, w.accepted_at, w.stopped_at,
w.finished_at, w.end_code
"""
WIDTH = 19

_SAVE: LiteralString = """
UPDATE work_items AS w -- platform-wide: each row brings the workspace that its item was found in
SET status = m.status, revision = m.revision, attempt = m.attempt, lease_holder = m.holder,
    claimed_at = m.claimed_at, lease_expires_at = m.lease_expires_at, accepted_at = m.accepted_at,
    stopped_at = m.stopped_at, finished_at = m.ended_at, end_code = m.end_code,
    result = coalesce(m.result::json, w.result)
FROM json_to_recordset(%(moves)s::json) AS m(
    id text, workspace_id text, created_at timestamptz,
    status text, revision bigint, attempt integer, holder text, claimed_at timestamptz,
    lease_expires_at timestamptz, accepted_at timestamptz, stopped_at timestamptz, ended_at timestamptz, end_code text,
    result text, wants_payload boolean, must_be_live boolean)
-- The ids once more by themselves: the planner can't know how few rows the JSON holds.
WHERE w.id = ANY(%(ids)s) AND w.id = m.id AND w.workspace_id = m.workspace_id AND w.revision = m.revision - 1
  -- A hint may tell of another installation's item of that name, where two share a message bus.
  AND w.created_at = m.created_at AND w.kind <> 'session'
  AND (NOT m.must_be_live OR w.lease_expires_at > clock_timestamp())
RETURNING w.id, CASE WHEN m.wants_payload THEN w.payload::text END, clock_timestamp()
"""

_PUT_IN: LiteralString = """
INSERT INTO work_items AS w (id, workspace_id, environment_id, session_id, kind, payload, created_at, waiter,
    queue_until, wait_until, status, attempt, lease_holder, claimed_at, lease_expires_at, stopped_at, finished_at,
    end_code)
SELECT m.id, m.workspace_id, m.environment_id, m.session_id, m.kind, m.payload::json, t.now, m.waiter,
       t.now + make_interval(secs => m.queue_seconds), t.now + make_interval(secs => m.wait_seconds),
       CASE WHEN t.ended THEN 'stopped' WHEN t.holder IS NULL THEN 'pending' ELSE 'claimed' END,
       CASE WHEN t.holder IS NULL THEN 0 ELSE 1 END, t.holder, CASE WHEN t.holder IS NOT NULL THEN t.now END,
       CASE WHEN t.holder IS NOT NULL THEN t.now + make_interval(secs => m.lease_seconds) END,
       CASE WHEN t.ended THEN t.now END, CASE WHEN t.ended THEN t.now END,
       CASE WHEN t.ended THEN 'work_lease_lost' END
FROM json_to_recordset(%(items)s::json) AS m(
    id text, workspace_id text, environment_id text, session_id text, kind text, payload text, waiter text,
    queue_seconds double precision, wait_seconds double precision, claimed_by text, lease_seconds double precision)
CROSS JOIN LATERAL ( -- platform-wide: each row brings the workspace of its session
    SELECT clock_timestamp() AS now,
           EXISTS (SELECT FROM ended_sessions e WHERE e.session_id = m.session_id) AS ended
) e
CROSS JOIN LATERAL (SELECT e.now, e.ended, CASE WHEN NOT e.ended THEN m.claimed_by END AS holder) t
ON CONFLICT (id) DO NOTHING
RETURNING
"""


@dataclass(frozen=True, slots=True)
class Move:
    """A state to be written over the one before it."""

    item: Item
    # JSON of the worker; None keeps what there is.
    result: bytes | None = None
    wants_payload: bool = False
    # Whether the lease that stands in the row must not be over, by the database's own clock.
    must_be_live: bool = False


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item to be put in."""

    id: str
    workspace_id: str
    environment_id: str
    session_id: str
    kind: str
    payload: bytes
    queue_seconds: float
    wait_seconds: float
    waiter: str
    # The worker that takes it at once, and for how long.
    claimed_by: str | None = None
    lease_seconds: float = 0.0


class WorkItemStore:
    """Work items of the transaction's workspace, or of all for the queue's own work."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def save(self, moves: Sequence[Move]) -> tuple[dict[str, str | None], datetime | None]:
        """Writes those states whose item is as it was, the payloads that were asked for, and the moment."""
        rows = await self._tx.all(
            _SAVE,
            {"moves": orjson.dumps([_saved(move) for move in moves]).decode(), "ids": [m.item.id for m in moves]},
        )
        return {row[0]: row[1] for row in rows}, rows[-1][2] if rows else None

    async def put_in(self, items: Sequence[NewItem]) -> list[Item]:
        """Inserts the items that are new: as pending, as claimed by the worker that takes one, or as stopped where its
        session has ended."""
        rows = await self._tx.all(
            _PUT_IN + COLUMNS, {"items": orjson.dumps([_inserted(item) for item in items]).decode()}
        )
        return [item_of(row) for row in rows]

    async def lock(self, item_ids: Collection[str]) -> tuple[dict[str, Item], datetime]:
        """Items, held until the transaction ends, and the moment after that."""
        rows = await self._tx.all(
            "".join(
                (
                    """
            SELECT """,
                    COLUMNS,
                    """
            FROM work_items w -- platform-wide: the desk compares the workspace of each
            WHERE w.id = ANY(%(ids)s) AND w.kind <> 'session'
            ORDER BY w.id FOR UPDATE
            """,
                )
            ),
            {"ids": list(item_ids)},
        )
        return {row[0]: item_of(row) for row in rows}, await self.now()

    async def now(self) -> datetime:
        """The database's clock."""
        return (await self._tx.one("SELECT clock_timestamp()"))[0]

    async def outcomes(self, item_ids: Collection[str]) -> dict[str, tuple[Item, bytes | None]]:
        """Items with the results that were reported for them."""
        rows = await self._tx.all(
            "".join(
                (
                    """
            SELECT """,
                    COLUMNS,
                    """, w.result::text
            FROM work_items w -- platform-wide: whoever waits has named workspace and session already
            WHERE w.id = ANY(%(ids)s) AND w.kind <> 'session'
            """,
                )
            ),
            {"ids": list(item_ids)},
        )
        return {row[0]: (item_of(row), row[WIDTH].encode() if row[WIDTH] is not None else None) for row in rows}

    async def over_among(self, item_ids: Collection[str], seconds: float) -> tuple[list[str], list[str]]:
        """Those of the items that have ended, and those whose holder has been silent for so long after its lease."""
        rows = await self._tx.all(
            """
            SELECT w.id, w.finished_at IS NOT NULL
            FROM work_items w -- platform-wide: whoever waits has named workspace and session already
            WHERE w.id = ANY(%(ids)s) AND w.kind <> 'session'
              AND (w.finished_at IS NOT NULL OR w.accepted_at IS NOT NULL
                   AND w.lease_expires_at <= clock_timestamp() - make_interval(secs => %(seconds)s))
            """,
            {"ids": list(item_ids), "seconds": seconds},
        )
        return [item_id for item_id, is_ended in rows if is_ended], [
            item_id for item_id, is_ended in rows if not is_ended
        ]

    async def live_of_session(self, session_id: str) -> list[str]:
        """Ids of a session's items that have not ended and were not stopped."""
        rows = await self._tx.all(
            """
            SELECT w.id FROM work_items w -- platform-wide: the end of a session is heard for any workspace
            WHERE w.session_id = %(session_id)s AND w.finished_at IS NULL AND w.stopped_at IS NULL
              AND w.kind <> 'session'
            """,
            {"session_id": session_id},
        )
        return [item_id for (item_id,) in rows]

    async def note_ended(self, workspace_id: str, session_id: str) -> None:
        """Remembers that a session has ended."""
        await self._tx.execute(
            """
            INSERT INTO ended_sessions (session_id, workspace_id) VALUES (%(session_id)s, %(workspace)s)
            ON CONFLICT DO NOTHING -- platform-wide: heard for any workspace
            """,
            {"session_id": session_id, "workspace": workspace_id},
        )


def _saved(move: Move) -> dict[str, Any]:
    item = move.item
    return {
        "id": item.id,
        "workspace_id": item.workspace_id,
        "created_at": item.created_at,
        "status": item.status,
        "revision": item.revision,
        "attempt": item.attempt,
        "holder": item.holder,
        "claimed_at": item.claimed_at,
        "lease_expires_at": item.lease_expires_at,
        "accepted_at": item.accepted_at,
        "stopped_at": item.stopped_at,
        "ended_at": item.ended_at,
        "end_code": item.end_code,
        "result": move.result.decode() if move.result is not None else None,
        "wants_payload": move.wants_payload,
        "must_be_live": move.must_be_live,
    }


def _inserted(item: NewItem) -> dict[str, Any]:
    return {
        "id": item.id,
        "workspace_id": item.workspace_id,
        "environment_id": item.environment_id,
        "session_id": item.session_id,
        "kind": item.kind,
        "payload": item.payload.decode(),
        "queue_seconds": item.queue_seconds,
        "wait_seconds": item.wait_seconds,
        "waiter": item.waiter,
        "claimed_by": item.claimed_by,
        "lease_seconds": item.lease_seconds,
    }


def item_of(row: Sequence[Any]) -> Item:
    return Item(
        id=row[0],
        workspace_id=row[1],
        environment_id=row[2],
        session_id=row[3],
        kind=row[4],
        status=Status(row[5]),
        revision=row[6],
        attempt=row[7],
        created_at=row[8],
        queue_until=row[9],
        wait_until=row[10],
        waiter=row[11],
        holder=row[12],
        claimed_at=row[13],
        lease_expires_at=row[14],
        accepted_at=row[15],
        stopped_at=row[16],
        ended_at=row[17],
        end_code=EndCode(row[18]) if row[18] else None,
    )
