"""Where the context of a session begins: at its first event, or where its newest compaction says."""

from typing import LiteralString

from kit.postgres import Tx
from services.sessions.domain.log import LoggedEvent

# The inner read finds the newest compaction by its index; the outer one begins where that says.
BEGIN: LiteralString = """
WITH beginning AS MATERIALIZED (
    SELECT greatest(%(after_seq)s::bigint, (
        SELECT (body::json ->> 'context_seq')::bigint FROM events
        WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s
          AND type = 'agent.thread_context_compacted' AND seq <= %(up_to_seq)s
        ORDER BY seq DESC LIMIT 1
    )) AS seq
)
SELECT e.id, e.seq, e.type, e.created_at, e.body, (SELECT seq FROM beginning) FROM events AS e
WHERE e.workspace_id = %(workspace_id)s AND e.session_id = %(session_id)s AND e.in_context
  AND e.seq > (SELECT seq FROM beginning) AND e.seq <= %(up_to_seq)s
ORDER BY e.seq LIMIT %(limit)s
"""


class ContextStore:
    """Reads of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def begin(self, session_id: str, after_seq: int, up_to_seq: int, limit: int) -> tuple[int, list[LoggedEvent]]:
        """The first events of the context after a seq, and the seq after which they start.

        That is a later one where a compaction replaced what is up to there: the caller then
        needs nothing that is before. One statement, and of what was replaced it reads nothing.
        """
        rows = await self._tx.all(
            BEGIN,
            {"session_id": session_id, "after_seq": after_seq, "up_to_seq": up_to_seq, "limit": limit},
        )
        events = [LoggedEvent(row[0], row[1], row[2], row[3], row[4].encode()) for row in rows]
        return (rows[0][5] if rows else after_seq), events
