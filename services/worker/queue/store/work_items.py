"""Rows of `work_items`."""

from __future__ import annotations

from kit.postgres import Tx


class WorkItemStore:
    """Work items of the transaction's workspace."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def count_by_status(self, environment_id: str) -> dict[str, int]:
        """How many items of the environment are in each status; absent means none."""
        rows = await self._tx.all(
            """
            SELECT status, count(*) FROM work_items
             WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s
             GROUP BY status
            """,
            {"environment_id": environment_id},
        )
        return dict(rows)
