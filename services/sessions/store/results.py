"""Results of workers that are in a log already, for whoever sends one again."""

from collections.abc import Sequence
from typing import Any

import orjson

from kit.postgres import Tx
from services.sessions.domain.inbound import USER_TOOL_RESULT, ClientEvent
from services.sessions.domain.log import LoggedEvent

# A result is sent again within the time of a lease; a log does not grow by more until then.
LOOK_BACK = 2_000


class ResultStore:
    """Reads of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def stored(self, session_id: str, events: Sequence[ClientEvent]) -> list[LoggedEvent] | None:
        """The stored results that these events repeat, all of them; None where one is new or other than stored."""
        if any(event.type != USER_TOOL_RESULT for event in events):
            return None
        known = await self._newest(session_id)
        found: list[LoggedEvent] = []
        for event in events:
            match = next((logged for logged, body in known if _is_same(event.fields, body)), None)
            if match is None:
                return None
            found.append(match)
        return found

    async def _newest(self, session_id: str) -> list[tuple[LoggedEvent, dict[str, Any]]]:
        rows = await self._tx.all(
            """
            SELECT id, seq, type, created_at, body FROM (
                SELECT id, seq, type, created_at, body FROM events
                WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s
                ORDER BY seq DESC LIMIT %(look_back)s
            ) newest WHERE type = %(type)s ORDER BY seq DESC LIMIT 200
            """,
            {"session_id": session_id, "look_back": LOOK_BACK, "type": USER_TOOL_RESULT},
        )
        return [
            (LoggedEvent(event_id, seq, kind, created_at, body.encode()), orjson.loads(body))
            for event_id, seq, kind, created_at, body in rows
        ]


def _is_same(sent: dict[str, Any], stored: dict[str, Any]) -> bool:
    names = (stored.get("tool_use_id"), (stored.get("metadata") or {}).get("tool_use_id"))
    return sent["tool_use_id"] in names and all(sent.get(name) == stored.get(name) for name in ("content", "is_error"))
