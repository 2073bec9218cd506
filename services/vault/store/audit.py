"""The table `credential_audit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import orjson

from kit.ids import new_id
from kit.postgres import Tx
from services.vault.store.paging import Position

_SELECT: LiteralString = """
SELECT id, vault_id, credential_id, action, actor, session_id, metadata, created_at
FROM credential_audit WHERE workspace_id = %(workspace_id)s AND vault_id = %(vault_id)s
"""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One thing that happened."""

    id: str
    vault_id: str
    credential_id: str
    action: str
    actor: str
    session_id: str
    # JSON object.
    metadata: str
    created_at: datetime


class AuditStore:
    """What happened to the credentials of the transaction's workspace."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def add(
        self,
        action: str,
        vault_id: str,
        credential_id: str,
        *,
        actor: str,
        now: datetime,
        session_id: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Appends an event."""
        await self._tx.execute(
            """
            INSERT INTO credential_audit (
                workspace_id, id, vault_id, credential_id, action, actor, session_id, metadata, created_at
            )
            VALUES (
                %(workspace_id)s, %(id)s, %(vault_id)s, %(credential_id)s, %(action)s, %(actor)s, %(session_id)s,
                %(metadata)s, %(now)s
            )
            """,
            _values(action, vault_id, credential_id, actor, session_id, metadata, now),
        )

    async def add_denial(
        self,
        vault_id: str,
        credential_id: str,
        *,
        actor: str,
        now: datetime,
        session_id: str,
        metadata: Mapping[str, Any],
        grain_seconds: float,
    ) -> None:
        """Appends a denial, unless the very same one was noted within the grain: an agent may try without end."""
        await self._tx.execute(
            """
            INSERT INTO credential_audit (
                workspace_id, id, vault_id, credential_id, action, actor, session_id, metadata, created_at
            )
            SELECT %(workspace_id)s, %(id)s, %(vault_id)s, %(credential_id)s, %(action)s, %(actor)s, %(session_id)s,
                   %(metadata)s, %(now)s
            WHERE NOT EXISTS (
                SELECT 1 FROM credential_audit
                WHERE workspace_id = %(workspace_id)s AND credential_id = %(credential_id)s
                  AND created_at > %(now)s::timestamptz - make_interval(secs => %(grain)s)
                  AND action = %(action)s AND session_id = %(session_id)s AND metadata = %(metadata)s
            )
            """,
            _values("runtime_denied", vault_id, credential_id, actor, session_id, metadata, now)
            | {"grain": grain_seconds},
        )

    async def page(self, vault_id: str, credential_id: str, position: Position, *, limit: int) -> list[AuditEvent]:
        """Events of a vault, or of one credential of it, beside the position."""
        values = {"vault_id": vault_id, "credential_id": credential_id, "limit": limit} | position.values()
        scoped: LiteralString = _SELECT + (" AND credential_id = %(credential_id)s" if credential_id else "")
        return await self._tx.all(scoped + position.condition(), values, row=AuditEvent)


def _values(
    action: str,
    vault_id: str,
    credential_id: str,
    actor: str,
    session_id: str,
    metadata: Mapping[str, Any] | None,
    now: datetime,
) -> dict[str, Any]:
    return {
        "id": new_id("vaud"),
        "vault_id": vault_id,
        "credential_id": credential_id,
        "action": action,
        "actor": actor,
        "session_id": session_id,
        "metadata": orjson.dumps(metadata or {}, option=orjson.OPT_SORT_KEYS).decode(),
        "now": now,
    }
