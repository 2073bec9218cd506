"""The part of MemoryService that runners use: a folder follows its store, and writes back what was changed in it."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from kit.rpc.server import current_context
from managed_agents.sessions.v1 import memory_pb2 as pb
from services.sessions.domain.memory import Actor, Memory, Store, check_path, read_text
from services.sessions.domain.memory_errors import (
    InvalidMemoryPath,
    MemoryPathConflict,
    MemoryStoreFull,
    MemoryStoreNotAttached,
    MemoryTooLarge,
)
from services.sessions.domain.session_errors import InvalidRequest, SessionNotFound
from services.sessions.domain.turn_errors import TurnLeaseLost
from services.sessions.handlers.memories import MemoryRpcs
from services.sessions.handlers.memory_messages import memory_message
from services.sessions.handlers.memory_stores import known_store
from services.sessions.operations.memory_writes import MemoryWriter, writing
from services.sessions.store.memories import MemoryTable
from services.sessions.store.memory_folders import MemoryFolderReads, may_write
from services.sessions.store.memory_stores import MemoryStoreTable
from services.sessions.store.memory_versions import MemoryVersionTable

MAX_CHANGES = 1_000
_BATCH_MEMORIES = 500
_BATCH_BYTES = 1_048_576
_WRITTEN = pb.MEMORY_CHANGE_OUTCOME_WRITTEN
_CONFLICT = pb.MEMORY_CHANGE_OUTCOME_CONFLICT
_REFUSED = pb.MEMORY_CHANGE_OUTCOME_REFUSED
# What the store can't take is told about its change; the others go on.
_REFUSALS = (InvalidMemoryPath, InvalidRequest, MemoryTooLarge, MemoryStoreFull, MemoryPathConflict)


class MemoryHandlers(MemoryRpcs):
    """All of MemoryService."""

    async def PullMemories(self, request: Any, context: Any) -> AsyncIterator[pb.PullMemoriesResponse]:
        """Streams what changed after a revision: what is gone first, then what there is, in the order of changes."""
        store_id, workspace_id = known_store(request.memory_store_id), current_context().workspace_id
        async with self._database.read(workspace_id) as tx:
            store = await MemoryStoreTable(tx).find(store_id)
            state = _state(store)
            if store is None:
                yield pb.PullMemoriesResponse(state=state)
                return
            deleted: list[str] = []
            if request.known_revision:
                deleted = await MemoryVersionTable(tx, store_id).deleted_after(request.known_revision, store.revision)
        yield pb.PullMemoriesResponse(state=state, revision=store.revision, deleted_ids=deleted)
        after = request.known_revision
        # Up to what the store stood at: what comes meanwhile is for the next pull.
        while after < store.revision:
            # No connection is held while the reader takes its time.
            async with self._database.read(workspace_id) as tx:
                found = await MemoryTable(tx, store_id).changed_after(after, _BATCH_MEMORIES)
            for batch in _batches(found):
                yield pb.PullMemoriesResponse(state=state, revision=store.revision, changed=batch)
            if len(found) < _BATCH_MEMORIES:
                return
            after = found[-1].revision

    async def PushMemories(self, request: Any, context: Any) -> pb.PushMemoriesResponse:
        """Writes changes one by one under their own preconditions, in one transaction."""
        store_id = known_store(request.memory_store_id)
        if len(request.changes) > MAX_CHANGES:
            raise InvalidRequest(f"changes holds more than {MAX_CHANGES} entries.", field="changes")
        async with self._database.transaction(current_context().workspace_id) as tx:
            session_id = await self._holder(tx, request, store_id)
            store = await MemoryStoreTable(tx).find_locked(store_id)
            state = _state(store)
            if store is None or store.archived_at is not None:
                sentence = "The memory store was deleted." if store is None else "The memory store is archived."
                refused = pb.MemoryChangeResult(outcome=_REFUSED, refusal=f"{sentence} It takes no changes any more.")
                return pb.PushMemoriesResponse(results=[refused] * len(request.changes), state=state)
            async with writing(tx, store, Actor("session", session_id), self._clock.now()) as writer:
                results = await _apply_all(writer, request.changes)
        if writer.revision != store.revision:
            await self._tell(store_id, writer.revision)
        return pb.PushMemoriesResponse(
            results=results, state=state, previous_revision=store.revision, revision=writer.revision
        )

    async def _holder(self, tx: Any, request: Any, store_id: str) -> str:
        """The session that changes the store, or the refusal of one that may not."""
        found = await MemoryFolderReads(tx).holder(request.session_id)
        if found is None:
            raise SessionNotFound(f"Session not found: {request.session_id}", session_id=request.session_id)
        session_id, epoch, resources = found
        if epoch != request.epoch:
            raise TurnLeaseLost(request.session_id, request.epoch)
        if not may_write(resources, store_id):
            raise MemoryStoreNotAttached(
                f"The session {session_id} may not change the memory store {store_id}.", memory_store_id=store_id
            )
        return session_id


async def _apply_all(writer: MemoryWriter, changes: Sequence[Any]) -> list[pb.MemoryChangeResult]:
    # Deletions first: a file may stand where a folder was, and a full store may get room.
    order = sorted(range(len(changes)), key=lambda index: changes[index].HasField("content"))
    results: dict[int, pb.MemoryChangeResult] = {}
    for index in order:
        results[index] = await _apply(writer, changes[index])
    return [results[index] for index in range(len(changes))]


async def _apply(writer: MemoryWriter, change: Any) -> pb.MemoryChangeResult:
    try:
        path = check_path(change.path)
        text = read_text(change.content) if change.HasField("content") else None
        current = (await writer.memories.at([path])).get(path)
        if current is None:
            if text is None:
                return pb.MemoryChangeResult(outcome=_WRITTEN)
            if change.base_sha256:
                return pb.MemoryChangeResult(outcome=_CONFLICT)
            return pb.MemoryChangeResult(outcome=_WRITTEN, memory=_told(await writer.create(path, text)))
        if text is not None and text.sha256 == current.content_sha256:
            return pb.MemoryChangeResult(outcome=_WRITTEN, memory=_told(current))
        if change.base_sha256 != current.content_sha256:
            newer = await writer.memories.load(current.id)
            return pb.MemoryChangeResult(outcome=_CONFLICT, memory=memory_message(newer))
        if text is None:
            await writer.delete(current)
            return pb.MemoryChangeResult(outcome=_WRITTEN)
        return pb.MemoryChangeResult(outcome=_WRITTEN, memory=_told(await writer.modify(current, path, text)))
    except _REFUSALS as refusal:
        return pb.MemoryChangeResult(outcome=_REFUSED, refusal=refusal.message)


def _told(memory: Memory) -> pb.Memory:
    """A memory whose text the folder has."""
    message = memory_message(memory)
    message.ClearField("content")
    return message


def _state(store: Store | None) -> pb.MemoryStoreState.ValueType:
    if store is None:
        return pb.MEMORY_STORE_STATE_DELETED
    return pb.MEMORY_STORE_STATE_ACTIVE if store.archived_at is None else pb.MEMORY_STORE_STATE_ARCHIVED


def _batches(found: Sequence[Memory]) -> list[list[pb.Memory]]:
    """Memories in messages of a bounded size."""
    batches: list[list[pb.Memory]] = []
    size = _BATCH_BYTES
    for memory in found:
        if size >= _BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(memory_message(memory))
        size += memory.content_size
    return batches
