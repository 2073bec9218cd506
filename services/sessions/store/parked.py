"""Sessions that wait for answers, found by when they were parked."""

from datetime import datetime

from kit.postgres import Tx


class ParkedStore:
    """Reads of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def workspaces(self) -> list[str]:
        """Workspaces with a session that waits; one probe of the index for each, however many sessions."""
        rows = await self._tx.all(
            """
            WITH RECURSIVE found AS ( -- platform-wide: the sweep looks after every workspace
                (SELECT workspace_id FROM sessions WHERE parked_at IS NOT NULL ORDER BY workspace_id LIMIT 1)
                UNION ALL
                SELECT (
                    SELECT s.workspace_id FROM sessions s
                    WHERE s.parked_at IS NOT NULL AND s.workspace_id > found.workspace_id
                    ORDER BY s.workspace_id LIMIT 1
                )
                FROM found WHERE found.workspace_id IS NOT NULL
            )
            SELECT workspace_id FROM found WHERE workspace_id IS NOT NULL ORDER BY workspace_id LIMIT 10000
            """
        )
        return [row[0] for row in rows]

    async def parked(
        self, until: datetime, after: tuple[datetime | None, str], limit: int
    ) -> list[tuple[str, datetime]]:
        """Sessions that were parked at or before a moment, the longest wait first, after one of them."""
        parked_at, session_id = after
        return await self._tx.all(  # type: ignore[return-value]
            """
            SELECT id, parked_at FROM sessions
            WHERE workspace_id = %(workspace_id)s AND parked_at <= %(until)s
              AND (parked_at, id) > (coalesce(%(after)s::timestamptz, '-infinity'), %(after_id)s)
            ORDER BY parked_at, id LIMIT %(limit)s
            """,
            {"until": until, "after": parked_at, "after_id": session_id, "limit": limit},
        )
