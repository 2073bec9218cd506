"""The table `repository_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kit.postgres import Tx


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """Whose token is kept."""

    workspace_id: str
    session_id: str
    id: str


def row_identity(workspace_id: str, session_id: str, resource_id: str) -> str:
    """What a token's seal is bound to."""
    return f"repository_tokens:{workspace_id}:{session_id}:{resource_id}"


class RepositoryTokenStore:
    """Statements of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def put(self, resource_id: str, session_id: str, sealed: bytes) -> None:
        """Keeps a token in place of the former one."""
        await self._tx.execute(
            """
            INSERT INTO repository_tokens (workspace_id, id, session_id, sealed)
            VALUES (%(workspace_id)s, %(id)s, %(session_id)s, %(sealed)s)
            ON CONFLICT (workspace_id, id) DO UPDATE
            SET session_id = excluded.session_id, sealed = excluded.sealed, put_at = now()
            """,
            {"id": resource_id, "session_id": session_id, "sealed": sealed},
        )

    async def find(self, resource_id: str, session_id: str) -> bytes | None:
        """The sealed token of a session's resource."""
        found = await self._tx.maybe_one(
            """
            SELECT sealed FROM repository_tokens
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND session_id = %(session_id)s
            """,
            {"id": resource_id, "session_id": session_id},
        )
        return bytes(found[0]) if found else None

    async def drop(self, resource_ids: Sequence[str]) -> None:
        """Deletes tokens."""
        await self._tx.execute(
            "DELETE FROM repository_tokens WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s)",
            {"ids": list(resource_ids)},
        )

    async def page(self, after_id: str, older_than_seconds: int, limit: int) -> list[TokenOwner]:
        """Whose tokens are kept and not new, of every workspace, in the order of their ids."""
        return await self._tx.all(
            """
            SELECT workspace_id, session_id, id FROM repository_tokens -- platform-wide: what no session needs any more
            WHERE id > %(after_id)s AND put_at <= now() - make_interval(secs => %(older_than_seconds)s)
            ORDER BY id LIMIT %(limit)s
            """,
            {"after_id": after_id, "older_than_seconds": older_than_seconds, "limit": limit},
            row=TokenOwner,
        )
