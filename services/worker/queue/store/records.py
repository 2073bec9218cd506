"""What is shown of items, and for how long they are kept."""

from __future__ import annotations

from datetime import datetime
from typing import LiteralString

from kit.postgres import Tx
from services.worker.queue.domain.item import Item

from .work_items import COLUMNS, WIDTH, item_of

_LISTED: LiteralString = "".join(
    (
        "SELECT ",
        COLUMNS,
        """, w.payload::text
    FROM work_items w
    WHERE w.workspace_id = %(workspace_id)s AND w.environment_id = %(environment_id)s AND w.kind <> 'session'
      AND (w.created_at, w.id) < (coalesce(%(before)s::timestamptz, 'infinity'), %(before_id)s)
      AND (%(status)s = '' OR w.status = %(status)s)
    ORDER BY w.created_at DESC, w.id DESC LIMIT %(limit)s
    """,
    )
)


class RecordStore:
    """Reads and sweeps of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def newest(
        self, environment_id: str, *, before: datetime | None, before_id: str, status: str, limit: int
    ) -> list[tuple[Item, bytes]]:
        """Items of an environment with what they are to do, newest first, from before one of them on."""
        rows = await self._tx.all(
            _LISTED,
            {
                "environment_id": environment_id,
                "before": before,
                "before_id": before_id,
                "status": status,
                "limit": limit,
            },
        )
        return [(item_of(row), row[WIDTH].encode()) for row in rows]

    async def count_by_status(self, environment_id: str) -> dict[str, int]:
        """How many items of the environment are in each status; absent means none."""
        rows = await self._tx.all(
            """
            SELECT status, count(*) FROM work_items
             WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s AND kind <> 'session'
             GROUP BY status
            """,
            {"environment_id": environment_id},
        )
        return dict(rows)

    async def forget_items(self, keep_seconds: float, limit: int) -> int:
        """Deletes items that ended long ago, after which nothing is left to do; how many went."""
        return await self._tx.execute(
            """
            DELETE FROM work_items -- platform-wide: the sweep looks after every workspace
            WHERE id IN (
                SELECT w.id FROM work_items w
                WHERE w.finished_at < clock_timestamp() - make_interval(secs => %(seconds)s)
                  AND NOT (w.settle_due OR w.follow_up_due)
                ORDER BY w.finished_at LIMIT %(limit)s
                FOR UPDATE SKIP LOCKED
            )
            """,
            {"seconds": keep_seconds, "limit": limit},
        )

    async def forget_sessions(self, keep_seconds: float) -> int:
        """Forgets sessions that ended so long ago that the service that owns them is asked in time."""
        return await self._tx.execute(
            """
            DELETE FROM ended_sessions -- platform-wide: the sweep looks after every workspace
            WHERE ended_at < clock_timestamp() - make_interval(secs => %(seconds)s)
            """,
            {"seconds": keep_seconds},
        )
