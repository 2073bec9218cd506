"""The table `memories`: reads, and changes together with the version that records each.

Writers hold the lock of the store's row. A text stands in `memory_versions` alone, so what
shows no text reads none.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import psycopg

from kit.errors import WriteConflict
from kit.postgres import Tx
from services.sessions.domain.memory import Actor, Memory, Text, prefix_end
from services.sessions.domain.memory_errors import MemoryNotFound

# Look-ups are by the whole of a key and one row at a time, so that they cost the same whatever the planner believes of
# the tables: row-level security hides from it how many rows a condition leaves.
_ONE: LiteralString = """
SELECT id, store_id, version_id, version, path, content_sha256, content_size, created_at, updated_at, revision,
       CASE WHEN %(with_content)s THEN (
           SELECT content FROM memory_versions
           WHERE memory_versions.workspace_id = memories.workspace_id AND memory_versions.id = memories.version_id
       ) END AS content
FROM memories WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""
_AT: LiteralString = """
SELECT found.id, found.store_id, found.version_id, found.version, found.path, found.content_sha256, found.content_size,
       found.created_at, found.updated_at, found.revision,
       CASE WHEN %(with_content)s THEN (
           SELECT content FROM memory_versions
           WHERE memory_versions.workspace_id = %(workspace_id)s AND memory_versions.id = found.version_id
       ) END AS content
FROM unnest(%(paths)s::text[]) AS wanted (path), LATERAL (
    SELECT * FROM memories
    WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s AND path = wanted.path
    ORDER BY path LIMIT 1
) AS found
"""
_BELOW: LiteralString = """
WITH RECURSIVE below AS (
    (
        SELECT id, store_id, version_id, version, path, content_sha256, content_size, created_at, updated_at, revision
        FROM memories
        WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s
          AND path > %(after)s AND path < %(end)s
        ORDER BY path LIMIT 1
    )
    UNION ALL
    SELECT found.* FROM below, LATERAL (
        SELECT id, store_id, version_id, version, path, content_sha256, content_size, created_at, updated_at, revision
        FROM memories
        WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s
          AND path > below.path AND path < %(end)s
        ORDER BY path LIMIT 1
    ) AS found
)
SELECT below.*, CASE WHEN %(with_content)s THEN (
    SELECT content FROM memory_versions
    WHERE memory_versions.workspace_id = %(workspace_id)s AND memory_versions.id = below.version_id
) END AS content
FROM below LIMIT %(limit)s
"""
_CHANGED: LiteralString = """
SELECT id, store_id, version_id, version, path, content_sha256, content_size, created_at, updated_at, revision, (
    SELECT content FROM memory_versions
    WHERE memory_versions.workspace_id = memories.workspace_id AND memory_versions.id = memories.version_id
) AS content
FROM memories
WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s AND revision > %(revision)s
ORDER BY revision LIMIT %(limit)s
"""
# Behind one item, the first path that belongs to another: a folder is left by its next
# sibling, a memory by the smallest path that is longer.
_CHILDREN: LiteralString = """
WITH RECURSIVE children (path, item, next_path) AS (
    (
        SELECT path, child_of(path, %(prefix)s), after_child(path, %(prefix)s)
        FROM memories
        WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s
          AND path >= %(from_path)s AND path < %(end)s
        ORDER BY path LIMIT 1
    )
    UNION ALL
    SELECT found.path, child_of(found.path, %(prefix)s), after_child(found.path, %(prefix)s)
    FROM children, LATERAL (
        SELECT path FROM memories
        WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s
          AND path >= children.next_path AND path < %(end)s
        ORDER BY path LIMIT 1
    ) AS found
)
SELECT item, next_path FROM children LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a memory, with the version that records it."""

    memory_id: str
    version_id: str
    version: int
    path: str
    revision: int


class MemoryTable:
    """Memories of one store."""

    def __init__(self, tx: Tx, store_id: str) -> None:
        self._tx = tx
        self._store_id = store_id

    async def load(self, memory_id: str, *, with_content: bool = True) -> Memory:
        """One memory by its id."""
        found = await self._tx.maybe_one(_ONE, {"id": memory_id, "with_content": with_content}, row=Memory)
        if found is None or found.store_id != self._store_id:
            raise MemoryNotFound(f"Memory not found: {memory_id}", memory_id=memory_id)
        return found

    async def at(self, paths: list[str], *, with_content: bool = False) -> dict[str, Memory]:
        """The memories at these paths, by path."""
        found = await self._tx.all(
            _AT, {"store_id": self._store_id, "paths": paths, "with_content": with_content}, row=Memory
        )
        return {memory.path: memory for memory in found}

    async def below(self, prefix: str, *, after: str, limit: int, with_content: bool) -> list[Memory]:
        """All memories below a prefix in the order of their paths, behind the path `after`."""
        return await self._tx.all(
            _BELOW,
            {
                "store_id": self._store_id,
                "after": max(after, prefix),
                "end": prefix_end(prefix),
                "limit": limit,
                "with_content": with_content,
            },
            row=Memory,
        )

    async def children(self, prefix: str, *, from_path: str, limit: int) -> list[tuple[str, str]]:
        """The direct children of a prefix from a path on: what each is called, and where the next one begins.

        A child that ends with `/` is a folder with memories in it; any other is a memory.
        """
        return await self._tx.all(
            _CHILDREN,
            {
                "store_id": self._store_id,
                "prefix": prefix,
                "from_path": max(from_path, prefix),
                "end": prefix_end(prefix),
                "limit": limit,
            },
        )

    async def changed_after(self, revision: int, limit: int) -> list[Memory]:
        """Memories that were made or changed after a revision, in the order of their changes, with their texts."""
        return await self._tx.all(
            _CHANGED, {"store_id": self._store_id, "revision": revision, "limit": limit}, row=Memory
        )

    async def create(self, change: Change, text: Text, actor: Actor, now: datetime) -> Memory:
        """Adds a memory; the path is free."""
        return await self._write(
            """
            INSERT INTO memories (
                workspace_id, store_id, id, version_id, version, path, content_sha256, content_size, created_at,
                updated_at, revision
            )
            VALUES (
                %(workspace_id)s, %(store_id)s, %(id)s, %(version_id)s, %(version)s, %(path)s, %(content_sha256)s,
                %(content_size)s, %(now)s, %(now)s, %(revision)s
            )
            RETURNING id, store_id, version_id, version, path, content_sha256, content_size, created_at, updated_at,
                revision, %(content)s::text AS content
            """,
            self._params(change, "created", text, actor, now),
        )

    async def modify(self, change: Change, text: Text, actor: Actor, now: datetime) -> Memory:
        """Gives a memory another text, path or both."""
        return await self._write(
            """
            UPDATE memories
            SET version_id = %(version_id)s, version = %(version)s, path = %(path)s, updated_at = %(now)s,
                content_sha256 = %(content_sha256)s, content_size = %(content_size)s, revision = %(revision)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            RETURNING id, store_id, version_id, version, path, content_sha256, content_size, created_at, updated_at,
                revision, %(content)s::text AS content
            """,
            self._params(change, "modified", text, actor, now),
        )

    async def delete(self, change: Change, actor: Actor, now: datetime) -> Memory:
        """Removes a memory; its versions stay. Answers what it was."""
        return await self._write(
            """
            DELETE FROM memories
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            RETURNING id, store_id, version_id, version, path, content_sha256, content_size, created_at, updated_at,
                revision, NULL::text AS content
            """,
            self._params(change, "deleted", None, actor, now),
        )

    async def _write(self, sql: LiteralString, params: dict[str, Any]) -> Memory:
        try:
            await self._tx.execute(
                """
                INSERT INTO memory_versions (
                    workspace_id, store_id, id, memory_id, version, operation, path, content, content_sha256,
                    content_size, actor_kind, actor_id, created_at, revision
                )
                VALUES (
                    %(workspace_id)s, %(store_id)s, %(version_id)s, %(id)s, %(version)s, %(operation)s, %(path)s,
                    %(content)s, %(content_sha256)s, %(content_size)s, %(actor_kind)s, %(actor_id)s, %(now)s,
                    %(revision)s
                )
                """,
                params,
            )
            return await self._tx.one(sql, params, row=Memory)
        except psycopg.errors.UniqueViolation as taken:
            # The lock of the store keeps writers apart; a number or path that is taken all the same is refused here.
            raise WriteConflict("Another request changed the same memory at the same time. Try again.") from taken

    def _params(self, change: Change, operation: str, text: Text | None, actor: Actor, now: datetime) -> dict[str, Any]:
        return {
            "store_id": self._store_id,
            "id": change.memory_id,
            "version_id": change.version_id,
            "version": change.version,
            "path": change.path,
            "revision": change.revision,
            "operation": operation,
            "content": text.content if text else None,
            "content_sha256": text.sha256 if text else None,
            "content_size": text.size if text else None,
            "actor_kind": actor.kind,
            "actor_id": actor.id,
            "now": now,
        }
