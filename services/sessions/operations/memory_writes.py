"""Changes of the memories of one store, within one transaction and under the lock of the store's row.

    async with writing(tx, store, actor, now) as writer:
        await writer.create(path, text)

Each change gets the store's next revision and writes its version with the memory; what
the store stands at is saved once, at the end of the block.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import orjson

from kit.ids import new_id
from kit.postgres import Tx
from services.sessions.domain.memory import MAX_MEMORIES, Actor, Memory, Store, Text
from services.sessions.domain.memory_errors import MemoryPathConflict, MemoryStoreArchived, MemoryStoreFull
from services.sessions.store.memories import Change, MemoryTable
from services.sessions.store.memory_stores import MemoryStoreTable


class MemoryWriter:
    """Writes memories of a locked store."""

    def __init__(self, tx: Tx, store: Store, actor: Actor, now: datetime) -> None:
        self.memories = MemoryTable(tx, store.id)
        self.revision = store.revision
        self.memory_count = store.memory_count
        self._store = store
        self._actor = actor
        self._now = now

    async def create(self, path: str, text: Text) -> Memory:
        """Adds a memory at a path that must be free."""
        await self.require_free(path)
        if self.memory_count >= MAX_MEMORIES:
            raise MemoryStoreFull(
                f"The memory store {self._store.id} holds {MAX_MEMORIES} memories, the most that one may hold. "
                "Delete some first; those that are there can still be read and changed.",
                memory_store_id=self._store.id,
            )
        self.memory_count += 1
        return await self.memories.create(self._change(new_id("mem"), 1, path), text, self._actor, self._now)

    async def modify(self, memory: Memory, path: str, text: Text) -> Memory:
        """Gives a memory another text, path or both; the path is free or its own."""
        change = self._change(memory.id, memory.version + 1, path)
        return await self.memories.modify(change, text, self._actor, self._now)

    async def delete(self, memory: Memory) -> None:
        """Removes a memory."""
        self.memory_count -= 1
        await self.memories.delete(self._change(memory.id, memory.version + 1, memory.path), self._actor, self._now)

    async def require_free(self, path: str) -> None:
        """Refuse a path at which a memory is."""
        if taken := (await self.memories.at([path])).get(path):
            raise MemoryPathConflict(
                f"The memory {taken.id} is at this path. Update that one, or choose another path.",
                field="path",
                details=orjson.dumps({"conflicting_memory_id": taken.id}).decode(),
            )

    def _change(self, memory_id: str, version: int, path: str) -> Change:
        self.revision += 1
        return Change(memory_id, new_id("memver"), version, path, self.revision)


def require_active(store: Store) -> None:
    """Refuse changes of an archived store."""
    if store.archived_at is not None:
        raise MemoryStoreArchived(
            f"The memory store {store.id} is archived: it can be read, and takes no change any more.",
            memory_store_id=store.id,
        )


@asynccontextmanager
async def writing(tx: Tx, store: Store, actor: Actor, now: datetime) -> AsyncIterator[MemoryWriter]:
    """A writer for a store that the transaction has locked."""
    writer = MemoryWriter(tx, store, actor, now)
    yield writer
    if writer.revision != store.revision:
        await MemoryStoreTable(tx).note_changes(store.id, writer.revision, writer.memory_count)
