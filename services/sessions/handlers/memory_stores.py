"""The part of MemoryService that is about stores."""

from datetime import UTC, datetime
from typing import Any

import orjson

from kit.clock import Clock, rfc3339
from kit.ids import new_id
from kit.nats import Nats
from kit.pages import InvalidCursor, decode_cursor, encode_cursor
from kit.postgres import Database
from kit.rpc.server import current_context
from managed_agents.sessions.v1 import memory_pb2 as pb
from managed_agents.sessions.v1 import memory_pb2_grpc
from managed_agents.sessions.v1.common_pb2 import PageInfo
from services.sessions.domain.memory import Store, merge_store, validate_store
from services.sessions.handlers.definitions import can_exist, once, page_limit, read_body
from services.sessions.handlers.memory_messages import store_message
from services.sessions.handlers.moments import read_moment
from services.sessions.operations.memory_writes import require_active
from services.sessions.store.memory_stores import MemoryStoreTable, StoreFilter, not_found

# Folders that follow a store look at it when they hear this; who misses it looks at the next turn.
CHANGED = "memory.changed."


class MemoryStoreRpcs(memory_pb2_grpc.MemoryServiceServicer):
    """Stores."""

    def __init__(self, database: Database, clock: Clock, nats: Nats) -> None:
        self._database = database
        self._clock = clock
        self._nats = nats

    async def CreateMemoryStore(self, request: Any, context: Any) -> pb.CreateMemoryStoreResponse:
        """Makes an empty store."""
        content = validate_store(read_body(request.definition_json))
        async with self._database.transaction(current_context().workspace_id) as tx:

            async def create() -> pb.CreateMemoryStoreResponse:
                saved = await MemoryStoreTable(tx).insert(new_id("memstore"), content, self._clock.now())
                return pb.CreateMemoryStoreResponse(memory_store=store_message(saved))

            return await once(tx, request.idempotency, pb.CreateMemoryStoreResponse, create)

    async def GetMemoryStore(self, request: Any, context: Any) -> pb.GetMemoryStoreResponse:
        """Reads one."""
        store_id = known_store(request.memory_store_id)
        async with self._database.read(current_context().workspace_id) as tx:
            found = await MemoryStoreTable(tx).load(store_id)
        if found.archived_at is not None and not request.include_archived:
            raise not_found(store_id)
        return pb.GetMemoryStoreResponse(memory_store=store_message(found))

    async def UpdateMemoryStore(self, request: Any, context: Any) -> pb.UpdateMemoryStoreResponse:
        """Merges a partial definition; one that changes nothing writes nothing."""
        store_id = known_store(request.memory_store_id)
        body = read_body(request.patch_json)
        async with self._database.transaction(current_context().workspace_id) as tx:
            table = MemoryStoreTable(tx)
            current = await table.lock(store_id)
            require_active(current)
            content = merge_store(current.definition(), body)
            if content != current.definition():
                current = await table.save(store_id, content, self._clock.now())
        return pb.UpdateMemoryStoreResponse(memory_store=store_message(current))

    async def ListMemoryStores(self, request: Any, context: Any) -> pb.ListMemoryStoresResponse:
        """Pages newest first, and leads back."""
        narrowed = StoreFilter(
            request.include_archived,
            read_moment(request.created_at_gte, "created_at[gte]"),
            read_moment(request.created_at_lte, "created_at[lte]"),
        )
        limit, scope = page_limit(request.page), _scope(narrowed)
        after, backwards = _position(request.page.cursor, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            found = await MemoryStoreTable(tx).page(narrowed, limit=limit + 1, after=after, backwards=backwards)
        more, page = len(found) > limit, found[:limit]
        if backwards:
            page.reverse()
        # Whoever came by a cursor left a page behind: it is where they came from.
        before, behind = (more, True) if backwards else (after is not None, more)
        info = PageInfo()
        if page:
            info.next_cursor = _cursor(scope, page[-1], "next") if behind else ""
            info.previous_cursor = _cursor(scope, page[0], "previous") if before else ""
        return pb.ListMemoryStoresResponse(memory_stores=[store_message(store) for store in page], page_info=info)

    async def ArchiveMemoryStore(self, request: Any, context: Any) -> pb.ArchiveMemoryStoreResponse:
        """Archives for good."""
        store_id = known_store(request.memory_store_id)
        async with self._database.transaction(current_context().workspace_id) as tx:
            archived = await MemoryStoreTable(tx).archive(store_id, self._clock.now())
        # Folders learn by it that nothing of theirs is taken any more.
        await self._tell(store_id, 0)
        return pb.ArchiveMemoryStoreResponse(memory_store=store_message(archived))

    async def DeleteMemoryStore(self, request: Any, context: Any) -> pb.DeleteMemoryStoreResponse:
        """Deletes a store with all that is in it."""
        store_id = known_store(request.memory_store_id)
        async with self._database.transaction(current_context().workspace_id) as tx:
            await MemoryStoreTable(tx).delete(store_id)
        await self._tell(store_id, 0)
        return pb.DeleteMemoryStoreResponse()

    async def _tell(self, store_id: str, revision: int) -> None:
        """Hint at a change, after its commit; a revision of 0 is one of the store itself."""
        await self._nats.publish(f"{CHANGED}{store_id}", str(revision).encode())


def known_store(store_id: str) -> str:
    """The id, or the refusal of one that no store can have."""
    if not can_exist(store_id):
        raise not_found(store_id[:64].replace("\x00", ""))
    return store_id


def _scope(narrowed: StoreFilter) -> str:
    bounds = [narrowed.include_archived, narrowed.created_at_gte, narrowed.created_at_lte]
    return "memory_stores" + orjson.dumps(bounds).decode()


def _cursor(scope: str, store: Store, way: str) -> str:
    return encode_cursor(scope, {"way": way, "created_at": rfc3339(store.created_at), "id": store.id})


def _position(cursor: str, scope: str) -> tuple[tuple[datetime, str] | None, bool]:
    if not cursor:
        return None, False
    position = decode_cursor(cursor, scope)
    try:
        created_at, store_id, way = position["created_at"], position["id"], position["way"]
        if can_exist(store_id) and way in ("next", "previous"):
            return (datetime.fromisoformat(created_at).astimezone(UTC), store_id), way == "previous"
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    raise InvalidCursor("The page cursor was not issued by this listing.", field="page")
