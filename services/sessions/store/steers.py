"""How the ids of steers were used, kept in the transaction of their events."""

from collections.abc import Iterable, Sequence

import orjson

from kit.postgres import Tx
from services.sessions.domain.steering import SteerState, Used


class SteerStore:
    """Reads and writes of one transaction; the session is locked."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def used(self, session_id: str, input_ids: Sequence[str]) -> dict[str, Used]:
        """What is known of these ids."""
        rows = await self._tx.all(
            """
            SELECT input_id, steer_text, state, turn_id FROM steers
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND input_id = ANY(%(ids)s)
            ORDER BY input_id LIMIT 1000
            """,
            {"session_id": session_id, "ids": list(input_ids)},
        )
        return {
            input_id: Used(text, None if state == "pending" else SteerState(state), turn_id)
            for input_id, text, state, turn_id in rows
        }

    async def keep(self, session_id: str, used: Iterable[tuple[str, Used]]) -> None:
        """Keeps the newest use of each id; its text never changes."""
        values = [
            {"input_id": input_id, "steer_text": use.text, "state": use.state or "pending", "turn_id": use.turn_id}
            for input_id, use in used
        ]
        await self._tx.execute(
            """
            INSERT INTO steers (workspace_id, session_id, input_id, steer_text, state, turn_id)
            SELECT %(workspace_id)s, %(session_id)s, u.input_id, u.steer_text, u.state, u.turn_id
            FROM json_to_recordset(%(used)s::json) AS u(input_id text, steer_text text, state text, turn_id text)
            ON CONFLICT (session_id, input_id) DO UPDATE SET state = excluded.state, turn_id = excluded.turn_id
            """,
            {"session_id": session_id, "used": orjson.dumps(values).decode()},
        )
