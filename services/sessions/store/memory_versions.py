"""The table `memory_versions`, read, and emptied where a version is redacted."""

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from kit.postgres import Tx
from services.sessions.domain.memory import Actor
from services.sessions.domain.memory_errors import MemoryVersionNotFound

_HEAD: LiteralString = """
SELECT id, store_id, memory_id, version, operation, path, content_sha256, content_size, actor_kind, actor_id,
       created_at, redacted_at, redacted_by_kind, redacted_by_id, revision,
"""
_PAGE: LiteralString = """
FROM memory_versions
WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s
  AND revision < coalesce(%(before)s::bigint, 9223372036854775807)
"""
# Filters, each added only where the query has it.
_FILTERS: dict[str, LiteralString] = {
    "memory_id": " AND memory_id = %(memory_id)s",
    "operation": " AND operation = %(operation)s",
    "session_id": " AND actor_kind = 'session' AND actor_id = %(session_id)s",
    "api_key_id": " AND actor_kind = 'api_key' AND actor_id = %(api_key_id)s",
    "service_account_id": " AND actor_kind = 'service_account' AND actor_id = %(service_account_id)s",
    "created_at_gte": " AND created_at >= %(created_at_gte)s",
    "created_at_lte": " AND created_at <= %(created_at_lte)s",
}


@dataclass(frozen=True, slots=True)
class Version:
    """One recorded change; a redaction leaves only what happened, when, and by whom."""

    id: str
    store_id: str
    memory_id: str
    version: int
    operation: str
    path: str | None
    content_sha256: str | None
    content_size: int | None
    actor_kind: str
    actor_id: str
    created_at: datetime
    redacted_at: datetime | None
    redacted_by_kind: str
    redacted_by_id: str
    revision: int
    # None also where it was not read.
    content: str | None


@dataclass(frozen=True, slots=True)
class VersionFilter:
    """Which versions a listing shows; empty members don't narrow."""

    memory_id: str = ""
    operation: str = ""
    session_id: str = ""
    api_key_id: str = ""
    service_account_id: str = ""
    created_at_gte: datetime | None = None
    created_at_lte: datetime | None = None


class MemoryVersionTable:
    """Versions of one store."""

    def __init__(self, tx: Tx, store_id: str) -> None:
        self._tx = tx
        self._store_id = store_id

    async def load(self, version_id: str) -> Version:
        """One version with its text."""
        return self._present(
            await self._tx.maybe_one(
                _HEAD + " content FROM memory_versions WHERE workspace_id = %(workspace_id)s AND id = %(id)s",
                {"id": version_id},
                row=Version,
            ),
            version_id,
        )

    async def page(
        self, narrowed: VersionFilter, *, before: int | None, limit: int, with_content: bool
    ) -> list[Version]:
        """Versions from newest to oldest, below a revision."""
        given = {name: getattr(narrowed, name) for name in _FILTERS if getattr(narrowed, name)}
        sql = _HEAD + (" content " if with_content else " NULL::text AS content ") + _PAGE
        for name in given:
            sql += _FILTERS[name]
        sql += " ORDER BY revision DESC LIMIT %(limit)s"
        return await self._tx.all(
            sql, {"store_id": self._store_id, "before": before, "limit": limit} | given, row=Version
        )

    async def deleted_after(self, revision: int, up_to: int) -> list[str]:
        """Ids of memories that were deleted after a revision."""
        rows = await self._tx.all(
            """
            SELECT memory_id FROM memory_versions
            WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s
              AND revision > %(revision)s AND revision <= %(up_to)s AND operation = 'deleted'
            """,
            {"store_id": self._store_id, "revision": revision, "up_to": up_to},
        )
        return [row[0] for row in rows]

    async def redact(self, version_id: str, actor: Actor, now: datetime) -> Version:
        """Empties a version that was loaded before; one that is empty stays as it is."""
        return self._present(
            await self._tx.maybe_one(
                """
                UPDATE memory_versions
                SET path = NULL, content = NULL, content_sha256 = NULL, content_size = NULL,
                    redacted_by_kind = CASE WHEN redacted_at IS NULL THEN %(kind)s ELSE redacted_by_kind END,
                    redacted_by_id = CASE WHEN redacted_at IS NULL THEN %(by)s ELSE redacted_by_id END,
                    redacted_at = coalesce(redacted_at, %(now)s)
                WHERE workspace_id = %(workspace_id)s AND id = %(id)s
                RETURNING id, store_id, memory_id, version, operation, path, content_sha256, content_size, actor_kind,
                          actor_id, created_at, redacted_at, redacted_by_kind, redacted_by_id, revision,
                          content
                """,
                {"id": version_id, "kind": actor.kind, "by": actor.id, "now": now},
                row=Version,
            ),
            version_id,
        )

    def _present(self, found: Version | None, version_id: str) -> Version:
        if found is None or found.store_id != self._store_id:
            raise MemoryVersionNotFound(f"Memory version not found: {version_id}", memory_version_id=version_id)
        return found
