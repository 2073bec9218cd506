"""Memory stores for tests of what is mounted, over a real sessions service."""

from pathlib import Path
from typing import Any

import orjson

from managed_agents.sessions.v1 import memory_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page
from managed_agents.sessions.v1.memory_pb2_grpc import MemoryServiceStub
from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, of, text_of
from tests.integration.runner.mounting import Mounting


class Remembering(Mounting):
    """One memory store, and sessions that have it attached."""

    def __init__(self, platform: World) -> None:
        super().__init__(platform)
        self._memory = self._channel.stub(MemoryServiceStub)
        self.store_id = ""

    async def ask(self, method: str, request: Any) -> Any:
        """One rpc."""
        return await getattr(self._memory, method)(request, context=self._context)

    async def make(self, name: str = "Notes", **memories: str) -> str:
        """A store with these memories, by path without its first slash; the next calls go to it."""
        definition = orjson.dumps({"name": name, "description": "What the team knows"})
        made = await self.ask("CreateMemoryStore", pb.CreateMemoryStoreRequest(definition_json=definition))
        self.store_id = made.memory_store.id
        for path, content in memories.items():
            await self.put(f"/{path}", content)
        return self.store_id

    async def attached(self, **fields: Any) -> str:
        """A session that has the store attached."""
        return await self.session({"type": "memory_store", "memory_store_id": self.store_id} | fields)

    async def memories(self) -> dict[str, pb.Memory]:
        """All memories of the store by path, with their texts."""
        request = pb.ListMemoriesRequest(memory_store_id=self.store_id, page=Page(limit=1000), with_content=True)
        return {item.memory.path: item.memory for item in (await self.ask("ListMemories", request)).items}

    async def texts(self) -> dict[str, str]:
        """All texts of the store by path."""
        return {path: memory.content for path, memory in (await self.memories()).items()}

    async def put(self, path: str, content: str) -> pb.Memory:
        """A memory, made or overwritten as an API caller does it."""
        if found := (await self.memories()).get(path):
            request = pb.UpdateMemoryRequest(memory_store_id=self.store_id, memory_id=found.id, content=content)
            return (await self.ask("UpdateMemory", request)).memory
        create = pb.CreateMemoryRequest(memory_store_id=self.store_id, path=path, content=content)
        return (await self.ask("CreateMemory", create)).memory

    async def move(self, path: str, to: str) -> None:
        """A memory gets another path."""
        memory_id = (await self.memories())[path].id
        await self.ask(
            "UpdateMemory", pb.UpdateMemoryRequest(memory_store_id=self.store_id, memory_id=memory_id, path=to)
        )

    async def drop(self, path: str) -> None:
        """A memory is deleted as an API caller does it."""
        memory_id = (await self.memories())[path].id
        await self.ask("DeleteMemory", pb.DeleteMemoryRequest(memory_store_id=self.store_id, memory_id=memory_id))

    async def history(self, **filters: Any) -> list[pb.MemoryVersion]:
        """Versions from oldest to newest, with their texts."""
        request = pb.ListMemoryVersionsRequest(
            memory_store_id=self.store_id, page=Page(limit=1000), with_content=True, **filters
        )
        return list((await self.ask("ListMemoryVersions", request)).versions)[::-1]

    async def tool(self, session_id: str, name: str, **value: Any) -> dict[str, Any]:
        """Have one tool run in a turn; its result."""
        await self.platform.say(session_id, f"TOOL:{name}:{orjson.dumps(value).decode()}")
        log = await self.platform.until(session_id, seconds=30)
        return of(log, "agent.tool_result")[-1]

    async def run(self, session_id: str, command: str) -> str:
        """Have a command run in a turn; what its result says."""
        return text_of(await self.tool(session_id, "bash", command=command))

    def folder(self, session_id: str, inside: str = "/mnt/memory/notes") -> Path:
        """A folder of the session on the host."""
        return Path(f"{self.platform.folder}/sandboxes/{session_id}{inside}")


def sandboxes(platform: World, kind: str = "auto") -> SandboxManager:
    """Real sandboxes below the world's folder."""
    return SandboxManager(platform.folder / "sandboxes", kind=kind)
