"""The part of MemoryService that is about memories and their versions."""

from typing import Any

import orjson

from kit.errors import InvalidArgument
from kit.pages import InvalidCursor, decode_cursor, encode_cursor
from kit.rpc.server import current_context
from managed_agents.sessions.v1 import memory_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import PageInfo
from services.sessions.domain.memory import (
    OPERATIONS,
    Memory,
    Text,
    check_path,
    check_prefix,
    read_digest,
    read_precondition,
    read_text,
    require_content,
)
from services.sessions.domain.memory_errors import (
    MemoryNotFound,
    MemoryVersionIsHead,
    MemoryVersionNotFound,
)
from services.sessions.domain.session_errors import InvalidRequest
from services.sessions.handlers.definitions import can_exist, once, page_limit
from services.sessions.handlers.memory_messages import caller, memory_message, version_message
from services.sessions.handlers.memory_stores import MemoryStoreRpcs, known_store
from services.sessions.handlers.moments import read_moment
from services.sessions.operations.memory_writes import require_active, writing
from services.sessions.store.memories import MemoryTable
from services.sessions.store.memory_stores import MemoryStoreTable
from services.sessions.store.memory_versions import MemoryVersionTable, VersionFilter


class MemoryRpcs(MemoryStoreRpcs):
    """Memories."""

    async def CreateMemory(self, request: Any, context: Any) -> pb.CreateMemoryResponse:
        """Adds a memory at a free path."""
        store_id, path, text = (
            known_store(request.memory_store_id),
            check_path(request.path),
            read_text(request.content),
        )
        revision = 0
        async with self._database.transaction(current_context().workspace_id) as tx:

            async def create() -> pb.CreateMemoryResponse:
                nonlocal revision
                store = await MemoryStoreTable(tx).lock(store_id)
                require_active(store)
                async with writing(tx, store, caller(current_context()), self._clock.now()) as writer:
                    memory = await writer.create(path, text)
                    revision = writer.revision
                return pb.CreateMemoryResponse(memory=memory_message(memory))

            answer = await once(tx, request.idempotency, pb.CreateMemoryResponse, create)
        if revision:
            await self._tell(store_id, revision)
        return answer

    async def GetMemory(self, request: Any, context: Any) -> pb.GetMemoryResponse:
        """Reads one with its text."""
        store_id, memory_id = known_store(request.memory_store_id), _known_memory(request.memory_id)
        async with self._database.read(current_context().workspace_id) as tx:
            await MemoryStoreTable(tx).load(store_id)
            found = await MemoryTable(tx, store_id).load(memory_id)
        return pb.GetMemoryResponse(memory=memory_message(found))

    async def UpdateMemory(self, request: Any, context: Any) -> pb.UpdateMemoryResponse:
        """Changes text, path or both; what changes nothing is answered without a new version."""
        store_id, memory_id = known_store(request.memory_store_id), _known_memory(request.memory_id)
        path = check_path(request.path) if request.HasField("path") else None
        text = read_text(request.content) if request.HasField("content") else None
        expected = read_precondition(orjson.loads(request.precondition_json) if request.precondition_json else None)
        revision = 0
        async with self._database.transaction(current_context().workspace_id) as tx:
            store = await MemoryStoreTable(tx).lock(store_id)
            require_active(store)
            table = MemoryTable(tx, store_id)
            current = await table.load(memory_id)
            if not _is_as_asked(current, path, text):
                require_content(current, expected)
                async with writing(tx, store, caller(current_context()), self._clock.now()) as writer:
                    if path is not None and path != current.path:
                        await writer.require_free(path)
                    kept = Text(current.content or "", current.content_sha256, current.content_size)
                    current = await writer.modify(current, path or current.path, text or kept)
                    revision = writer.revision
        if revision:
            await self._tell(store_id, revision)
        return pb.UpdateMemoryResponse(memory=memory_message(current))

    async def ListMemories(self, request: Any, context: Any) -> pb.ListMemoriesResponse:
        """Pages in the order of paths; at depth 1 each folder is one item."""
        store_id, prefix = known_store(request.memory_store_id), check_prefix(request.path_prefix)
        if request.depth not in (0, 1):
            raise InvalidRequest("depth must be 0 or 1.", field="depth")
        scope, limit = f"memories?{store_id}&{request.depth}&{prefix}", page_limit(request.page)
        after = _path_position(request.page.cursor, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            await MemoryStoreTable(tx).load(store_id)
            table = MemoryTable(tx, store_id)
            if request.depth == 0:
                found = await table.below(prefix, after=after, limit=limit + 1, with_content=request.with_content)
                items = [pb.MemoryListItem(memory=memory_message(memory)) for memory in found[:limit]]
                following = found[limit - 1].path if len(found) > limit else ""
            else:
                items, following = await _children(table, prefix, after, limit, request.with_content)
        cursor = encode_cursor(scope, {"path": following}) if following else ""
        return pb.ListMemoriesResponse(items=items, page_info=PageInfo(next_cursor=cursor))

    async def DeleteMemory(self, request: Any, context: Any) -> pb.DeleteMemoryResponse:
        """Removes one, also from an archived store; its versions stay."""
        store_id, memory_id = known_store(request.memory_store_id), _known_memory(request.memory_id)
        expected = request.expected_content_sha256
        if expected:
            read_digest(expected, "expected_content_sha256")
        async with self._database.transaction(current_context().workspace_id) as tx:
            store = await MemoryStoreTable(tx).lock(store_id)
            current = await MemoryTable(tx, store_id).load(memory_id, with_content=False)
            require_content(current, expected)
            async with writing(tx, store, caller(current_context()), self._clock.now()) as writer:
                await writer.delete(current)
        await self._tell(store_id, writer.revision)
        return pb.DeleteMemoryResponse()

    async def ListMemoryVersions(self, request: Any, context: Any) -> pb.ListMemoryVersionsResponse:
        """Pages the history newest first."""
        store_id, narrowed = known_store(request.memory_store_id), _version_filter(request)
        scope, limit = f"memory_versions?{store_id}&{narrowed}", page_limit(request.page)
        before = _revision_position(request.page.cursor, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            await MemoryStoreTable(tx).load(store_id)
            found = await MemoryVersionTable(tx, store_id).page(
                narrowed, before=before, limit=limit + 1, with_content=request.with_content
            )
        page = found[:limit]
        cursor = encode_cursor(scope, {"revision": page[-1].revision}) if len(found) > limit else ""
        return pb.ListMemoryVersionsResponse(
            versions=[version_message(version) for version in page], page_info=PageInfo(next_cursor=cursor)
        )

    async def GetMemoryVersion(self, request: Any, context: Any) -> pb.GetMemoryVersionResponse:
        """Reads one version with its text."""
        store_id, version_id = known_store(request.memory_store_id), _known_version(request.memory_version_id)
        async with self._database.read(current_context().workspace_id) as tx:
            await MemoryStoreTable(tx).load(store_id)
            found = await MemoryVersionTable(tx, store_id).load(version_id)
        return pb.GetMemoryVersionResponse(version=version_message(found))

    async def RedactMemoryVersion(self, request: Any, context: Any) -> pb.RedactMemoryVersionResponse:
        """Empties a version for good, unless it is what a live memory has now."""
        store_id, version_id = known_store(request.memory_store_id), _known_version(request.memory_version_id)
        async with self._database.transaction(current_context().workspace_id) as tx:
            await MemoryStoreTable(tx).lock(store_id)
            table = MemoryVersionTable(tx, store_id)
            version = await table.load(version_id)
            if await _is_head(MemoryTable(tx, store_id), version.memory_id, version_id):
                raise MemoryVersionIsHead(
                    f"{version_id} is the newest version of {version.memory_id}. Update or delete the memory first.",
                    memory_version_id=version_id,
                )
            redacted = await table.redact(version_id, caller(current_context()), self._clock.now())
        return pb.RedactMemoryVersionResponse(version=version_message(redacted))


async def _children(
    table: MemoryTable, prefix: str, from_path: str, limit: int, with_content: bool
) -> tuple[list[pb.MemoryListItem], str]:
    found = await table.children(prefix, from_path=from_path, limit=limit + 1)
    page = found[:limit]
    paths = [item for item, _ in page if not item.endswith("/")]
    memories = await table.at(paths, with_content=with_content) if paths else {}
    items = [
        pb.MemoryListItem(prefix=item)
        if item.endswith("/")
        else pb.MemoryListItem(memory=memory_message(memories[item]))
        for item, _ in page
        # One that was deleted between the two reads is left out.
        if item.endswith("/") or item in memories
    ]
    return items, page[-1][1] if len(found) > limit else ""


async def _is_head(table: MemoryTable, memory_id: str, version_id: str) -> bool:
    try:
        return (await table.load(memory_id, with_content=False)).version_id == version_id
    except MemoryNotFound:
        return False


def _is_as_asked(current: Memory, path: str | None, text: Text | None) -> bool:
    same_path = path is None or path == current.path
    return same_path and (text is None or text.sha256 == current.content_sha256)


def _version_filter(request: Any) -> VersionFilter:
    names = ("memory_id", "operation", "session_id", "api_key_id", "service_account_id")
    for name in names:
        if "\x00" in getattr(request, name):
            raise InvalidRequest(f"{name} must not contain NUL characters.", field=name)
    if request.operation and request.operation not in OPERATIONS:
        raise InvalidArgument(f"operation must be one of {', '.join(OPERATIONS)}.", field="operation")
    return VersionFilter(
        **{name: getattr(request, name) for name in names},
        created_at_gte=read_moment(request.created_at_gte, "created_at[gte]"),
        created_at_lte=read_moment(request.created_at_lte, "created_at[lte]"),
    )


def _path_position(cursor: str, scope: str) -> str:
    path = decode_cursor(cursor, scope).get("path") if cursor else ""
    if not isinstance(path, str) or "\x00" in path:
        raise InvalidCursor("The page cursor was not issued by this listing.", field="page")
    return path


def _revision_position(cursor: str, scope: str) -> int | None:
    if not cursor:
        return None
    revision = decode_cursor(cursor, scope).get("revision")
    if type(revision) is not int or not 0 < revision < 2**63:
        raise InvalidCursor("The page cursor was not issued by this listing.", field="page")
    return revision


def _known_memory(memory_id: str) -> str:
    if not can_exist(memory_id):
        raise MemoryNotFound("Memory not found.")
    return memory_id


def _known_version(version_id: str) -> str:
    if not can_exist(version_id):
        raise MemoryVersionNotFound("Memory version not found.")
    return version_id
