"""Rows of `work_items` of the session protocol (kind `session`), and of `polling_workers`.

Whoever moves an item reads it under its lock together with the database's clock, decides by `domain/session_item.py`,
and saves it. Handing out is one statement: it skips what somebody else is at.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, LiteralString

import orjson

from kit.postgres import Tx
from services.worker.queue.domain.session_item import SessionItem

# In the order of SessionItem's fields.
_RETURNED: LiteralString = (
    "w.id, w.workspace_id, w.environment_id, w.session_id, w.status, w.revision, w.attempt, w.created_at, "
    "w.metadata, w.available_at, w.polled_at, w.token_sha256, w.lost_token_sha256, w.acknowledged_at, "
    "w.started_at, w.heartbeat_at, w.previous_heartbeat_at, w.heartbeat_repeated, w.ttl_seconds, "
    "w.lease_expires_at, w.stop_requested_at, w.finished_at, w.duty_seq, w.waiting_call_id, w.fruitless, "
    "w.settle_due, w.follow_up_due"
)


class SessionItemStore:
    """Statements of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def hand_out(self, environment_id: str, token_sha256: bytes, reclaim_seconds: float) -> SessionItem | None:
        """Takes the item that waits for longest since it came, or came back, and that nobody else is at."""
        row = await self._tx.maybe_one(
            "".join(
                (
                    """
            UPDATE work_items w
               SET polled_at = clock_timestamp(), attempt = attempt + 1,
                   lost_token_sha256 = coalesce(token_sha256, lost_token_sha256), token_sha256 = %(token)s,
                   revision = revision + 1
             WHERE id = (
                SELECT id FROM work_items
                 WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s
                   AND kind = 'session' AND status = 'pending' AND NOT settle_due
                   AND (available_at IS NULL OR available_at <= clock_timestamp())
                   AND (polled_at IS NULL
                        OR polled_at < clock_timestamp() - make_interval(secs => %(reclaim_seconds)s))
                 ORDER BY greatest(created_at, available_at, polled_at), id LIMIT 1 FOR UPDATE SKIP LOCKED
             )
            RETURNING """,
                    _RETURNED,
                )
            ),
            {
                "environment_id": environment_id,
                "token": token_sha256,
                "reclaim_seconds": reclaim_seconds,
            },
        )
        return _item(row)

    async def next_due(self, environment_id: str, reclaim_seconds: float) -> float | None:
        """Seconds until an item that nobody can have now may be had; None where there is none."""
        row = await self._tx.one(
            """
            SELECT extract(epoch FROM min(greatest(
                       available_at, polled_at + make_interval(secs => %(reclaim_seconds)s)
                   )) - clock_timestamp())::float8
              FROM work_items
             WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s
               AND kind = 'session' AND status = 'pending' AND NOT settle_due
            """,
            {"environment_id": environment_id, "reclaim_seconds": reclaim_seconds},
        )
        return row[0]

    async def lock(self, environment_id: str, work_id: str) -> tuple[SessionItem, datetime] | None:
        """An item, held until the transaction ends, and the time."""
        row = await self._tx.maybe_one(
            "".join(
                (
                    "SELECT ",
                    _RETURNED,
                    """, clock_timestamp() FROM work_items w
             WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s AND id = %(id)s
               AND kind = 'session' FOR UPDATE""",
                )
            ),
            {"environment_id": environment_id, "id": work_id},
        )
        return (SessionItem(*row[:-1]), row[-1]) if row else None

    async def get(self, environment_id: str, work_id: str) -> SessionItem | None:
        """An item."""
        row = await self._tx.maybe_one(
            "".join(
                (
                    "SELECT ",
                    _RETURNED,
                    """ FROM work_items w
             WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s AND id = %(id)s
               AND kind = 'session'""",
                )
            ),
            {"environment_id": environment_id, "id": work_id},
        )
        return _item(row)

    async def save(self, item: SessionItem) -> bool:
        """Stores an item that was read at this revision; False where it was moved since."""
        changed = await self._tx.execute(
            """
            UPDATE work_items
               SET status = %(status)s, metadata = %(metadata)s, available_at = %(available_at)s,
                   polled_at = %(polled_at)s, token_sha256 = %(token_sha256)s,
                   lost_token_sha256 = %(lost_token_sha256)s, acknowledged_at = %(acknowledged_at)s,
                   started_at = %(started_at)s, heartbeat_at = %(heartbeat_at)s,
                   previous_heartbeat_at = %(previous_heartbeat_at)s,
                   heartbeat_repeated = %(heartbeat_repeated)s, ttl_seconds = %(ttl_seconds)s,
                   lease_expires_at = %(lease_expires_at)s, stop_requested_at = %(stop_requested_at)s,
                   finished_at = %(finished_at)s, duty_seq = %(duty_seq)s, waiting_call_id = %(waiting_call_id)s,
                   fruitless = %(fruitless)s, settle_due = %(settle_due)s, follow_up_due = %(follow_up_due)s,
                   lease_holder = CASE WHEN %(status)s <> 'pending' THEN 'worker' END,
                   revision = revision + 1
             WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND revision = %(revision)s
            """,
            {name: getattr(item, name) for name in SessionItem.__slots__ if name != "workspace_id"},
        )
        return changed > 0

    async def need(
        self,
        work_id: str,
        environment_id: str,
        session_id: str,
        *,
        duty_seq: int = 0,
        waiting_call_id: str = "",
        fruitless: int = 0,
        pause_seconds: float = 0.0,
    ) -> None:
        """Puts an item in for a session, unless one is live."""
        await self._tx.execute(
            """
            INSERT INTO work_items (id, workspace_id, environment_id, session_id, kind, payload, status, duty_seq,
                waiting_call_id, fruitless, available_at, created_at)
            VALUES (%(id)s, %(workspace_id)s, %(environment_id)s, %(session_id)s, 'session', '{}', 'pending',
                %(duty_seq)s, %(waiting_call_id)s, %(fruitless)s,
                CASE WHEN %(pause_seconds)s > 0 THEN clock_timestamp() + make_interval(secs => %(pause_seconds)s) END,
                clock_timestamp())
            ON CONFLICT (session_id) WHERE kind = 'session' AND finished_at IS NULL
            DO UPDATE SET duty_seq = greatest(work_items.duty_seq, excluded.duty_seq)
            """,
            {
                "id": work_id,
                "environment_id": environment_id,
                "session_id": session_id,
                "duty_seq": duty_seq,
                "waiting_call_id": waiting_call_id,
                "fruitless": fruitless,
                "pause_seconds": pause_seconds,
            },
        )

    async def lock_live(self, session_id: str) -> tuple[SessionItem, datetime] | None:
        """The live item of a session, held until the transaction ends, and the time."""
        row = await self._tx.maybe_one(
            "".join(
                (
                    "SELECT ",
                    _RETURNED,
                    """, clock_timestamp() FROM work_items w
             WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND kind = 'session'
               AND finished_at IS NULL FOR UPDATE""",
                )
            ),
            {"session_id": session_id},
        )
        return (SessionItem(*row[:-1]), row[-1]) if row else None

    async def is_held(self, environment_id: str, session_id: str) -> bool:
        """Whether an item of the session is out with a worker."""
        row = await self._tx.one(
            """
            SELECT EXISTS (
                SELECT FROM work_items
                 WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s
                   AND session_id = %(session_id)s AND kind = 'session' AND finished_at IS NULL
                   AND (status = 'claimed' OR polled_at IS NOT NULL)
            )
            """,
            {"environment_id": environment_id, "session_id": session_id},
        )
        return bool(row[0])

    async def page(self, environment_id: str, before: tuple[datetime, str] | None, limit: int) -> list[SessionItem]:
        """Items, newest first."""
        created_at, work_id = before or (None, "")
        rows = await self._tx.all(
            "".join(
                (
                    "SELECT ",
                    _RETURNED,
                    """ FROM work_items w
             WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s AND kind = 'session'
               AND (created_at, id) < (coalesce(%(created_at)s::timestamptz, 'infinity'), %(id)s)
             ORDER BY created_at DESC, id DESC LIMIT %(limit)s""",
                )
            ),
            {"environment_id": environment_id, "created_at": created_at, "id": work_id, "limit": limit},
        )
        return [SessionItem(*row) for row in rows]

    async def stats(self, environment_id: str) -> tuple[int, int, datetime | None]:
        """How many items wait, how many are handed out and not acknowledged, and since when the oldest is there."""
        row = await self._tx.one(
            """
            SELECT count(*) FILTER (WHERE polled_at IS NULL), count(*) FILTER (WHERE polled_at IS NOT NULL),
                   min(created_at)
              FROM work_items
             WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s
               AND kind = 'session' AND status = 'pending'
            """,
            {"environment_id": environment_id},
        )
        return row[0], row[1], row[2]

    async def of_token(self, token_sha256: bytes) -> tuple[SessionItem, bool] | None:
        """The item that a token was made for, of any workspace, and whether its attempt is the current one."""
        row = await self._tx.maybe_one(
            "".join(
                (
                    "SELECT ",
                    _RETURNED,
                    """, token_sha256 = %(token)s AND finished_at IS NULL FROM work_items w
             -- platform-wide: the token tells the workspace
             WHERE token_sha256 = %(token)s OR lost_token_sha256 = %(token)s
             ORDER BY created_at DESC LIMIT 1""",
                )
            ),
            {"token": token_sha256},
        )
        return (SessionItem(*row[:-1]), bool(row[-1])) if row else None

    async def lapsed(self, limit: int) -> list[tuple[SessionItem, datetime]]:
        """Items whose lease is over, of any workspace, held until the transaction ends."""
        rows = await self._tx.all(
            "".join(
                (
                    "SELECT ",
                    _RETURNED,
                    """, clock_timestamp() FROM work_items w -- platform-wide: sweep
             WHERE kind = 'session' AND status = 'claimed' AND lease_expires_at <= clock_timestamp()
             ORDER BY lease_expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED""",
                )
            ),
            {"limit": limit},
        )
        return [(SessionItem(*row[:-1]), row[-1]) for row in rows]

    async def due(self, limit: int) -> list[SessionItem]:
        """Items after which something is to be done, of any workspace; environments take turns."""
        rows = await self._tx.all(
            "".join(
                (
                    "SELECT ",
                    _RETURNED,
                    """ FROM work_items w -- platform-wide: sweep
             WHERE settle_due OR follow_up_due
             ORDER BY row_number() OVER (PARTITION BY w.environment_id ORDER BY w.id), w.id LIMIT %(limit)s""",
                )
            ),
            {"limit": limit},
        )
        return [SessionItem(*row) for row in rows]

    async def next_lapse(self) -> float | None:
        """Seconds until the next lease is over; None where nobody holds one."""
        row = await self._tx.one(
            """
            SELECT extract(epoch FROM min(lease_expires_at) - clock_timestamp())::float8
              FROM work_items -- platform-wide: sweep
             WHERE kind = 'session' AND status = 'claimed'
            """
        )
        return row[0]


class PollingWorkers:
    """Who polled when."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def note(self, polls: Sequence[dict[str, Any]]) -> None:
        """Stores when workers polled last."""
        await self._tx.execute(
            """
            INSERT INTO polling_workers (workspace_id, environment_id, worker_id, polled_at)
            SELECT p.workspace_id, p.environment_id, p.worker_id, clock_timestamp() - make_interval(secs => p.age)
              -- platform-wide: one statement for all who polled here
              FROM json_to_recordset(%(polls)s::json)
                   AS p(workspace_id text, environment_id text, worker_id text, age float8)
             ORDER BY 1, 2, 3
            ON CONFLICT (workspace_id, environment_id, worker_id)
            DO UPDATE SET polled_at = greatest(polling_workers.polled_at, excluded.polled_at)
            """,
            {"polls": _json(polls)},
        )

    async def forget(self, older_than_seconds: float) -> None:
        """Drops those that did not poll for so long."""
        await self._tx.execute(
            """
            DELETE FROM polling_workers -- platform-wide: sweep
             WHERE polled_at < clock_timestamp() - make_interval(secs => %(seconds)s)
            """,
            {"seconds": older_than_seconds},
        )

    async def count(self, environment_id: str, within_seconds: float) -> int:
        """How many workers of an environment polled lately."""
        row = await self._tx.one(
            """
            SELECT count(*) FROM polling_workers
             WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s
               AND polled_at > clock_timestamp() - make_interval(secs => %(seconds)s)
            """,
            {"environment_id": environment_id, "seconds": within_seconds},
        )
        return row[0]


def _item(row: tuple[Any, ...] | None) -> SessionItem | None:
    return SessionItem(*row) if row else None


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
