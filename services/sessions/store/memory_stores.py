"""The table `memory_stores`. Whoever changes a memory holds the lock of its store's row."""

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

import orjson

from kit.postgres import Tx
from services.sessions.domain.memory import Store, StoreDefinition
from services.sessions.domain.memory_errors import MemoryStoreNotFound


@dataclass(frozen=True, slots=True)
class StoreFilter:
    """Which stores a listing shows."""

    include_archived: bool
    created_at_gte: datetime | None
    created_at_lte: datetime | None


class MemoryStoreTable:
    """Stores of the workspace that the transaction belongs to."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def insert(self, store_id: str, content: StoreDefinition, now: datetime) -> Store:
        """Saves a new, empty store."""
        return await self._tx.one(
            """
            INSERT INTO memory_stores (workspace_id, id, name, description, metadata, created_at, updated_at)
            VALUES (%(workspace_id)s, %(id)s, %(name)s, %(description)s, %(metadata)s, %(now)s, %(now)s)
            RETURNING id, name, description, metadata, created_at, updated_at, archived_at, memory_count, revision
            """,
            {"id": store_id, "now": now} | _columns(content),
            row=Store,
        )

    async def load(self, store_id: str) -> Store:
        """The store, archived or not."""
        return _present(await self.find(store_id), store_id)

    async def find(self, store_id: str) -> Store | None:
        """The store, or None where there is none."""
        return await self._tx.maybe_one(
            """
            SELECT id, name, description, metadata, created_at, updated_at, archived_at, memory_count, revision
            FROM memory_stores WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            """,
            {"id": store_id},
            row=Store,
        )

    async def active(self, store_ids: list[str]) -> dict[str, Store]:
        """Those of the stores that exist and are not archived, by id."""
        found = await self._tx.all(
            """
            SELECT id, name, description, metadata, created_at, updated_at, archived_at, memory_count, revision
            FROM memory_stores
            WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s) AND archived_at IS NULL
            """,
            {"ids": store_ids},
            row=Store,
        )
        return {store.id: store for store in found}

    async def lock(self, store_id: str) -> Store:
        """The store, locked until the transaction ends."""
        return _present(await self.find_locked(store_id), store_id)

    async def find_locked(self, store_id: str) -> Store | None:
        """As `lock`, or None where there is none."""
        return await self._tx.maybe_one(
            """
            SELECT id, name, description, metadata, created_at, updated_at, archived_at, memory_count, revision
            FROM memory_stores WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            FOR NO KEY UPDATE
            """,
            {"id": store_id},
            row=Store,
        )

    async def save(self, store_id: str, content: StoreDefinition, now: datetime) -> Store:
        """Replaces the definition of a locked store."""
        return await self._tx.one(
            """
            UPDATE memory_stores
            SET name = %(name)s, description = %(description)s, metadata = %(metadata)s, updated_at = %(now)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            RETURNING id, name, description, metadata, created_at, updated_at, archived_at, memory_count, revision
            """,
            {"id": store_id, "now": now} | _columns(content),
            row=Store,
        )

    async def archive(self, store_id: str, now: datetime) -> Store:
        """Archives a store; one that is archived stays as it is."""
        found = await self._tx.maybe_one(
            """
            UPDATE memory_stores
            SET archived_at = coalesce(archived_at, %(now)s),
                updated_at = CASE WHEN archived_at IS NULL THEN %(now)s ELSE updated_at END
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            RETURNING id, name, description, metadata, created_at, updated_at, archived_at, memory_count, revision
            """,
            {"id": store_id, "now": now},
            row=Store,
        )
        return _present(found, store_id)

    async def delete(self, store_id: str) -> None:
        """Deletes a store with its memories and their versions."""
        deleted = await self._tx.execute(
            "DELETE FROM memory_stores WHERE workspace_id = %(workspace_id)s AND id = %(id)s", {"id": store_id}
        )
        if not deleted:
            raise not_found(store_id)

    async def note_changes(self, store_id: str, revision: int, memory_count: int) -> None:
        """What a locked store stands at after changes of its memories."""
        await self._tx.execute(
            """
            UPDATE memory_stores SET revision = %(revision)s, memory_count = %(memory_count)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            """,
            {"id": store_id, "revision": revision, "memory_count": memory_count},
        )

    async def page(
        self, narrowed: StoreFilter, *, limit: int, after: tuple[datetime, str] | None, backwards: bool
    ) -> list[Store]:
        """Stores on one side of a position: older ones newest first, or newer ones oldest first."""
        edge, edge_id = after or (None, "")
        return await self._tx.all(
            _NEWER if backwards else _OLDER,
            {
                "limit": limit,
                "include_archived": narrowed.include_archived,
                "gte": narrowed.created_at_gte,
                "lte": narrowed.created_at_lte,
                "edge": edge,
                "edge_id": edge_id,
            },
            row=Store,
        )


_OLDER: LiteralString = """
SELECT id, name, description, metadata, created_at, updated_at, archived_at, memory_count, revision
FROM memory_stores
WHERE workspace_id = %(workspace_id)s
  AND (%(include_archived)s OR archived_at IS NULL)
  AND created_at >= coalesce(%(gte)s::timestamptz, '-infinity')
  AND created_at <= coalesce(%(lte)s::timestamptz, 'infinity')
  AND (created_at, id) < (coalesce(%(edge)s::timestamptz, 'infinity'), %(edge_id)s)
ORDER BY created_at DESC, id DESC
LIMIT %(limit)s
"""
_NEWER: LiteralString = """
SELECT id, name, description, metadata, created_at, updated_at, archived_at, memory_count, revision
FROM memory_stores
WHERE workspace_id = %(workspace_id)s
  AND (%(include_archived)s OR archived_at IS NULL)
  AND created_at >= coalesce(%(gte)s::timestamptz, '-infinity')
  AND created_at <= coalesce(%(lte)s::timestamptz, 'infinity')
  AND (created_at, id) > (coalesce(%(edge)s::timestamptz, '-infinity'), %(edge_id)s)
ORDER BY created_at, id
LIMIT %(limit)s
"""


def not_found(store_id: str) -> MemoryStoreNotFound:
    """The refusal of an id that names no store."""
    return MemoryStoreNotFound(f"Memory store not found: {store_id}", memory_store_id=store_id)


def _present(found: Store | None, store_id: str) -> Store:
    if found is None:
        raise not_found(store_id)
    return found


def _columns(content: StoreDefinition) -> dict[str, str]:
    return {
        "name": content.name,
        "description": content.description,
        "metadata": orjson.dumps(content.metadata).decode(),
    }
