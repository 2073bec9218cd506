"""Memory of the sessions service as the tests drive it: one store, called as the gateway would."""

import hashlib
from typing import Any

import orjson

from kit.clock import SystemClock
from kit.nats import Nats
from kit.rpc.context import CallContext, use_context
from managed_agents.sessions.v1 import memory_pb2 as pb
from services.sessions.handlers.memory_folders import MemoryHandlers
from tests.integration.sessions.harness import WORKSPACE, Harness


class Memories:
    """The handlers, and the store that calls go to unless they name another."""

    def __init__(self, h: Harness, nats: Nats) -> None:
        self.h = h
        self.handlers = MemoryHandlers(h.database, SystemClock(), nats)
        self.store_id = ""
        self.principal = "anonymous"
        self.workspace = WORKSPACE

    async def call(self, method: str, request: Any) -> Any:
        """One rpc."""
        context = CallContext(workspace_id=self.workspace, principal_id=self.principal)
        with use_context(context):
            return await getattr(self.handlers, method)(request, None)

    async def make(self, name: str = "Notes", **fields: Any) -> pb.MemoryStore:
        """A new store, which the next calls go to."""
        request = pb.CreateMemoryStoreRequest(definition_json=orjson.dumps({"name": name} | fields))
        store = (await self.call("CreateMemoryStore", request)).memory_store
        self.store_id = store.id
        return store

    async def get(self, *, include_archived: bool = False) -> pb.MemoryStore:
        """The store."""
        request = pb.GetMemoryStoreRequest(memory_store_id=self.store_id, include_archived=include_archived)
        return (await self.call("GetMemoryStore", request)).memory_store

    async def update_store(self, **patch: Any) -> pb.MemoryStore:
        """The store after a patch."""
        request = pb.UpdateMemoryStoreRequest(memory_store_id=self.store_id, patch_json=orjson.dumps(patch))
        return (await self.call("UpdateMemoryStore", request)).memory_store

    async def archive(self) -> pb.MemoryStore:
        """The store, archived."""
        request = pb.ArchiveMemoryStoreRequest(memory_store_id=self.store_id)
        return (await self.call("ArchiveMemoryStore", request)).memory_store

    async def delete_store(self) -> None:
        """The store is gone."""
        await self.call("DeleteMemoryStore", pb.DeleteMemoryStoreRequest(memory_store_id=self.store_id))

    async def add(self, path: str, content: str = "text") -> pb.Memory:
        """A new memory."""
        request = pb.CreateMemoryRequest(memory_store_id=self.store_id, path=path, content=content)
        return (await self.call("CreateMemory", request)).memory

    async def read(self, memory_id: str) -> pb.Memory:
        """A memory with its text."""
        request = pb.GetMemoryRequest(memory_store_id=self.store_id, memory_id=memory_id)
        return (await self.call("GetMemory", request)).memory

    async def update(self, memory_id: str, *, expecting: Any = None, **fields: Any) -> pb.Memory:
        """A memory after an update; `expecting` is a digest, or the precondition itself."""
        if isinstance(expecting, str):
            expecting = {"type": "content_sha256", "content_sha256": expecting}
        request = pb.UpdateMemoryRequest(
            memory_store_id=self.store_id,
            memory_id=memory_id,
            precondition_json=b"" if expecting is None else orjson.dumps(expecting),
            **fields,
        )
        return (await self.call("UpdateMemory", request)).memory

    async def delete(self, memory_id: str, expecting: str = "") -> None:
        """The memory is gone."""
        request = pb.DeleteMemoryRequest(
            memory_store_id=self.store_id, memory_id=memory_id, expected_content_sha256=expecting
        )
        await self.call("DeleteMemory", request)

    async def page(self, *, limit: int = 20, cursor: str = "", **fields: Any) -> pb.ListMemoriesResponse:
        """One page of memories."""
        request = pb.ListMemoriesRequest(
            memory_store_id=self.store_id, page={"limit": limit, "cursor": cursor}, **fields
        )
        return await self.call("ListMemories", request)

    async def names(self, *, limit: int = 20, **fields: Any) -> list[str]:
        """All items of a listing over its pages: paths of memories, and of folders with their `/`."""
        found: list[str] = []
        cursor = ""
        while True:
            answer = await self.page(limit=limit, cursor=cursor, **fields)
            assert len(answer.items) <= limit
            found += [item.prefix or item.memory.path for item in answer.items]
            cursor = answer.page_info.next_cursor
            if not cursor:
                return found

    async def versions(self, *, limit: int = 100, cursor: str = "", **fields: Any) -> pb.ListMemoryVersionsResponse:
        """One page of versions."""
        request = pb.ListMemoryVersionsRequest(
            memory_store_id=self.store_id, page={"limit": limit, "cursor": cursor}, **fields
        )
        return await self.call("ListMemoryVersions", request)

    async def version(self, version_id: str) -> pb.MemoryVersion:
        """One version with its text."""
        request = pb.GetMemoryVersionRequest(memory_store_id=self.store_id, memory_version_id=version_id)
        return (await self.call("GetMemoryVersion", request)).version

    async def redact(self, version_id: str) -> pb.MemoryVersion:
        """A version, emptied."""
        request = pb.RedactMemoryVersionRequest(memory_store_id=self.store_id, memory_version_id=version_id)
        return (await self.call("RedactMemoryVersion", request)).version

    async def pull(self, known_revision: int = 0) -> list[pb.PullMemoriesResponse]:
        """All batches of what changed."""
        request = pb.PullMemoriesRequest(memory_store_id=self.store_id, known_revision=known_revision)
        with use_context(CallContext(workspace_id=self.workspace)):
            return [batch async for batch in self.handlers.PullMemories(request, None)]

    async def push(self, session_id: str, *changes: pb.MemoryChange, epoch: int = 1) -> pb.PushMemoriesResponse:
        """What became of the changes of a session's folder."""
        request = pb.PushMemoriesRequest(
            session_id=session_id, epoch=epoch, memory_store_id=self.store_id, changes=changes
        )
        return await self.call("PushMemories", request)

    async def session_with(self, *, access: str = "read_write") -> str:
        """A session that holds the store and whose turn has epoch 1."""
        session = await self.h.create(await self.h.agent(), initial_events=[{"type": "user.message", "content": "Go"}])
        await self.h.hold_turn(session.id)
        entry = {"type": "memory_store", "memory_store_id": self.store_id, "access": access}
        await self.h.execute(
            "UPDATE sessions SET resources = %(resources)s WHERE workspace_id = %(workspace_id)s AND id = %(id)s",
            id=session.id,
            resources=orjson.dumps([entry]).decode(),
        )
        return session.id


def sha(text: str) -> str:
    """The digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def changed(path: str, content: str | None, base: str = "") -> pb.MemoryChange:
    """A change; `base` is the text that the folder knew."""
    return pb.MemoryChange(path=path, content=content, base_sha256=sha(base) if base else "")
