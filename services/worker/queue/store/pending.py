"""What waits for a worker: pages of an environment that show each of its sessions, and what sweeps look for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from kit.postgres import Tx
from services.worker.queue.domain.item import Item

from .work_items import COLUMNS, WIDTH, item_of

MAX_ITEMS = 512
MAX_LANES = 128
MAX_OF_LANE = 32

_PAGE: LiteralString = "".join(
    (
        """
WITH RECURSIVE lanes AS ( -- platform-wide: claims are matched for every workspace, one at a time
    (
        SELECT session_id FROM work_items
        WHERE workspace_id = %(workspace)s AND environment_id = %(environment_id)s AND session_id > %(after)s
          AND status = 'pending' AND kind <> 'session'
        ORDER BY session_id LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT n.session_id FROM work_items n
        WHERE n.workspace_id = %(workspace)s AND n.environment_id = %(environment_id)s
          AND n.session_id > lanes.session_id AND n.status = 'pending' AND n.kind <> 'session'
        ORDER BY n.session_id LIMIT 1
    )
    FROM lanes WHERE lanes.session_id IS NOT NULL
), first AS (SELECT session_id FROM lanes WHERE session_id IS NOT NULL LIMIT %(max_lanes)s)
SELECT """,
        COLUMNS,
        """, w.place
FROM first CROSS JOIN LATERAL (
    SELECT p.*, row_number() OVER (ORDER BY p.created_at, p.id) AS place FROM work_items p
    WHERE p.workspace_id = %(workspace)s AND p.environment_id = %(environment_id)s AND p.session_id = first.session_id
      AND p.status = 'pending' AND p.kind <> 'session'
    ORDER BY p.created_at, p.id LIMIT %(max_of_lane)s
) w
ORDER BY w.place, w.session_id LIMIT %(max_items)s
""",
    )
)


@dataclass(frozen=True, slots=True)
class Page:
    """Pending items: the first of each session, then the second of each, and so on."""

    items: list[Item]
    # Whether nothing else is pending in the environment.
    is_whole: bool
    # The session after which the next page begins; empty for the start.
    next_after: str


class PendingStore:
    """Reads over all workspaces."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def page(self, workspace_id: str, environment_id: str, after: str) -> Page:
        """A page of the sessions after one of them."""
        rows = await self._tx.all(
            _PAGE,
            {
                "workspace": workspace_id,
                "environment_id": environment_id,
                "after": after,
                "max_lanes": MAX_LANES,
                "max_of_lane": MAX_OF_LANE,
                "max_items": MAX_ITEMS,
            },
        )
        items = [item_of(row) for row in rows]
        sessions = sorted({item.session_id for item in items})
        are_all = len(sessions) < MAX_LANES and len(rows) < MAX_ITEMS
        is_whole = not after and are_all and all(row[WIDTH] < MAX_OF_LANE for row in rows)
        return Page(items, is_whole, "" if len(sessions) < MAX_LANES else sessions[-1])

    async def of_session(self, workspace_id: str, session_id: str) -> list[Item]:
        """The next items of one session, in any environment."""
        rows = await self._tx.all(
            "".join(
                (
                    "SELECT ",
                    COLUMNS,
                    """
            FROM work_items w -- platform-wide: claims are matched for every workspace, one at a time
            WHERE w.workspace_id = %(workspace)s AND w.session_id = %(session_id)s AND w.finished_at IS NULL
              AND w.status = 'pending' AND w.kind <> 'session'
            ORDER BY w.created_at, w.id LIMIT %(limit)s
            """,
                )
            ),
            {"workspace": workspace_id, "session_id": session_id, "limit": MAX_OF_LANE},
        )
        return [item_of(row) for row in rows]

    async def environments(self, workspace_id: str) -> list[str]:
        """Environments of a workspace in which something is pending; one probe of the index for each."""
        rows = await self._tx.all(
            """
            WITH RECURSIVE found AS (
                (
                    SELECT environment_id FROM work_items
                    WHERE workspace_id = %(workspace)s AND status = 'pending' AND kind <> 'session'
                    ORDER BY environment_id LIMIT 1
                )
                UNION ALL
                SELECT (
                    SELECT n.environment_id FROM work_items n
                    WHERE n.workspace_id = %(workspace)s AND n.environment_id > found.environment_id
                      AND n.status = 'pending' AND n.kind <> 'session'
                    ORDER BY n.environment_id LIMIT 1
                )
                FROM found WHERE found.environment_id IS NOT NULL
            )
            SELECT environment_id FROM found -- platform-wide: claims are matched for every workspace, one at a time
            WHERE environment_id IS NOT NULL LIMIT 1000
            """,
            {"workspace": workspace_id},
        )
        return [environment_id for (environment_id,) in rows]

    async def filled(self, environments: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of the environments, named with their workspaces, in which something is pending."""
        rows = await self._tx.all(
            """
            SELECT e.workspace_id, e.id
            FROM unnest(%(workspaces)s::text[], %(ids)s::text[]) AS e(workspace_id, id)
            WHERE EXISTS ( -- platform-wide: the sweep looks after every waiting worker
                SELECT FROM work_items w
                WHERE w.workspace_id = e.workspace_id AND w.environment_id = e.id
                  AND w.status = 'pending' AND w.kind <> 'session'
            )
            """,
            {"workspaces": [pair[0] for pair in environments], "ids": [pair[1] for pair in environments]},
        )
        return {(workspace_id, environment_id) for workspace_id, environment_id in rows}

    async def lapsed(self, limit: int) -> list[str]:
        """Unaccepted claims whose lease is over."""
        rows = await self._tx.all(
            """
            SELECT w.id FROM work_items w -- platform-wide: the sweep looks after every workspace
            WHERE w.status = 'claimed' AND w.accepted_at IS NULL AND w.kind <> 'session'
              AND w.lease_expires_at <= clock_timestamp()
            ORDER BY w.lease_expires_at LIMIT %(limit)s
            """,
            {"limit": limit},
        )
        return [item_id for (item_id,) in rows]

    async def overdue(self, silence_seconds: float, limit: int) -> list[str]:
        """Items whose wait is over, or whose holder accepted them and has been silent for so long after its lease."""
        rows = await self._tx.all(
            """
            SELECT w.id FROM work_items w -- platform-wide: the sweep looks after every workspace
            WHERE w.finished_at IS NULL AND w.kind <> 'session'
              AND (w.wait_until <= clock_timestamp() OR (
                   w.accepted_at IS NOT NULL
                   AND w.lease_expires_at <= clock_timestamp() - make_interval(secs => %(silence)s)))
            ORDER BY w.wait_until LIMIT %(limit)s
            """,
            {"silence": silence_seconds, "limit": limit},
        )
        return [item_id for (item_id,) in rows]

    async def of_ended_sessions(self, limit: int) -> list[str]:
        """Pending items whose session ended while they were put in."""
        rows = await self._tx.all(
            """
            SELECT w.id FROM work_items w -- platform-wide: the sweep looks after every workspace
            JOIN ended_sessions e ON e.session_id = w.session_id
            WHERE w.finished_at IS NULL AND w.stopped_at IS NULL AND w.kind <> 'session'
              AND e.ended_at > now() - interval '1 hour'
            LIMIT %(limit)s
            """,
            {"limit": limit},
        )
        return [item_id for (item_id,) in rows]
