"""What a push of a session's folder is judged by: whose turn it is, and what the session has attached."""

import orjson

from kit.postgres import Tx
from services.sessions.domain.resources import MEMORY_STORE


class MemoryFolderReads:
    """Sessions of the workspace that the transaction belongs to."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def holder(self, session_id: str) -> tuple[str, int, str] | None:
        """The session whose sandbox it is, the epoch of the turn, and the resources as JSON.

        `session_id` may be that of a thread, which works in the folder of its session.
        """
        return await self._tx.maybe_one(
            """
            SELECT root.id, sessions.turn_epoch, root.resources
            FROM sessions JOIN sessions AS root
              ON root.workspace_id = sessions.workspace_id AND root.id = coalesce(sessions.root_id, sessions.id)
            WHERE sessions.workspace_id = %(workspace_id)s AND sessions.id = %(id)s
              AND sessions.deleted_at IS NULL AND root.deleted_at IS NULL
            """,
            {"id": session_id},
        )


def may_write(resources: str, store_id: str) -> bool:
    """Whether a session with these resources may change this store."""
    return any(
        entry.get("type") == MEMORY_STORE
        and entry.get("memory_store_id") == store_id
        and entry.get("access") != "read_only"
        for entry in orjson.loads(resources)
    )
