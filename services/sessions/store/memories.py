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

_BASIC: LiteralString = """
    memories.id, memories.store_id, version_id, memories.version, memories.path, memories.content_sha256,
    memories.content_size, memories.created_at, memories.updated_at, memories.revision
"""
_NO_TEXT: LiteralString = " SELECT" + _BASIC + ", NULL::text AS content FROM memories "
_WITH_TEXT: LiteralString = (
    " SELECT"
    + _BASIC
    + """, memory_versions.content FROM memories JOIN memory_versions
    ON memory_versions.workspace_id = memories.workspace_id AND memory_versions.store_id = memories.store_id
    AND memory_versions.id = memories.version_id """
)
_IN_STORE: LiteralString = " WHERE memories.workspace_id = %(workspace_id)s AND memories.store_id = %(store_id)s "
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
        found = await self._tx.maybe_one(
            (_WITH_TEXT if with_content else _NO_TEXT) + _IN_STORE + " AND memories.id = %(id)s",
            {"store_id": self._store_id, "id": memory_id},
            row=Memory,
        )
        if found is None:
            raise MemoryNotFound(f"Memory not found: {memory_id}", memory_id=memory_id)
        return found

    async def at(self, paths: list[str]) -> dict[str, Memory]:
        """The memories at these paths, by path, without their texts."""
        found = await self._tx.all(
            _NO_TEXT + _IN_STORE + " AND memories.path = ANY(%(paths)s)",
            {"store_id": self._store_id, "paths": paths},
            row=Memory,
        )
        return {memory.path: memory for memory in found}

    async def below(self, prefix: str, *, after: str, limit: int, with_content: bool) -> list[Memory]:
        """All memories below a prefix in the order of their paths, behind the path `after`."""
        return await self._tx.all(
            (_WITH_TEXT if with_content else _NO_TEXT)
            + _IN_STORE
            + """ AND memories.path > %(after)s AND memories.path < %(end)s
            ORDER BY memories.path LIMIT %(limit)s""",
            {
                "store_id": self._store_id,
                "after": max(after, prefix),
                "end": prefix_end(prefix),
                "limit": limit,
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

    async def with_texts(self, paths: list[str]) -> dict[str, Memory]:
        """The memories at these paths, by path, with their texts."""
        found = await self._tx.all(
            _WITH_TEXT + _IN_STORE + " AND memories.path = ANY(%(paths)s)",
            {"store_id": self._store_id, "paths": paths},
            row=Memory,
        )
        return {memory.path: memory for memory in found}

    async def changed_after(self, revision: int, limit: int) -> list[Memory]:
        """Memories that were made or changed after a revision, in the order of their changes, with their texts."""
        return await self._tx.all(
            _WITH_TEXT + _IN_STORE + " AND memories.revision > %(revision)s ORDER BY memories.revision LIMIT %(limit)s",
            {"store_id": self._store_id, "revision": revision, "limit": limit},
            row=Memory,
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
            WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s AND id = %(id)s
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
            WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s AND id = %(id)s
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
