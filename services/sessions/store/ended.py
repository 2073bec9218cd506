"""Which sessions have ended, for those who hand out their work."""

from collections.abc import Sequence

from kit.postgres import Tx


class EndedStore:
    """Reads of one transaction, over all workspaces."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def ended(self, session_ids: Sequence[str]) -> list[str]:
        """Those of the sessions that take nothing more. An id without a row is not among them."""
        rows = await self._tx.all(
            """
            SELECT id FROM sessions -- platform-wide: the queue hands out items of every workspace
            WHERE id = ANY(%(ids)s)
              AND (archived_at IS NOT NULL OR deleted_at IS NOT NULL OR status IN ('terminated', 'timed_out'))
            """,
            {"ids": list(session_ids)},
        )
        return [session_id for (session_id,) in rows]
