"""A memory store in a few lines, that answers pulls and pushes as the sessions service does."""

import hashlib
from collections.abc import AsyncIterator, Sequence

from managed_agents.sessions.v1 import memory_pb2 as pb
from services.worker.memory.difference import LocalChange
from services.worker.memory.store import Pulled, Pushed

WRITTEN = pb.MEMORY_CHANGE_OUTCOME_WRITTEN
CONFLICT = pb.MEMORY_CHANGE_OUTCOME_CONFLICT
REFUSED = pb.MEMORY_CHANGE_OUTCOME_REFUSED


class Away(Exception):
    """The service can't be reached, or the runner died."""


class ModelStore:
    """Memories, what was deleted, and every text that the store ever had."""

    def __init__(self) -> None:
        self.memories: dict[str, pb.Memory] = {}
        self.revisions: dict[str, int] = {}
        self.deleted: list[tuple[int, str]] = []
        self.history: set[str] = set()
        self.revision = 0
        self.state = "active"
        self._ids = 0

    def write(self, path: str, content: str) -> pb.Memory:
        """As an API caller does it."""
        self.revision += 1
        memory = self.memories.get(path)
        if memory is None:
            self._ids += 1
            memory = pb.Memory(id=f"mem_{self._ids}", path=path)
        changed = pb.Memory(id=memory.id, path=path, content=content, content_sha256=sha(content))
        self.memories[path] = changed
        self.revisions[changed.id] = self.revision
        self.history.add(content)
        return changed

    def delete(self, path: str) -> None:
        """As an API caller does it."""
        if memory := self.memories.pop(path, None):
            self.revision += 1
            self.deleted.append((self.revision, memory.id))

    def move(self, path: str, to: str) -> None:
        """As an API caller does it."""
        if path in self.memories and to not in self.memories:
            self.revision += 1
            memory = self.memories.pop(path)
            memory.path = to
            self.memories[to] = memory
            self.revisions[memory.id] = self.revision

    def texts(self) -> dict[str, str]:
        """What it holds now."""
        return {path: memory.content for path, memory in self.memories.items()}

    async def pull(self, store_id: str, known_revision: int) -> AsyncIterator[Pulled]:
        """As MemoryClient does it."""
        gone = [memory_id for revision, memory_id in self.deleted if revision > known_revision]
        yield Pulled(self.state, self.revision, [], gone)
        changed = [each for each in self.memories.values() if self.revisions[each.id] > known_revision]
        for memory in sorted(changed, key=lambda each: self.revisions[each.id]):
            yield Pulled(self.state, self.revision, [copy_of(memory)], [])

    async def push(self, session_id: str, epoch: int, store_id: str, changes: Sequence[LocalChange]) -> Pushed:
        """As MemoryClient does it."""
        before = self.revision
        results = [(change, self._apply(change)) for change in changes]
        return Pushed(self.state, before, self.revision, results)

    def _apply(self, change: LocalChange) -> pb.MemoryChangeResult:
        if self.state != "active":
            return pb.MemoryChangeResult(outcome=REFUSED, refusal=f"The memory store was {self.state}.")
        current = self.memories.get(change.path)
        if current is None:
            if change.content is None:
                return pb.MemoryChangeResult(outcome=WRITTEN)
            if change.base_sha256:
                return pb.MemoryChangeResult(outcome=CONFLICT)
            return pb.MemoryChangeResult(outcome=WRITTEN, memory=self.write(change.path, change.content))
        if change.content is not None and current.content == change.content:
            return pb.MemoryChangeResult(outcome=WRITTEN, memory=current)
        if change.base_sha256 != current.content_sha256:
            return pb.MemoryChangeResult(outcome=CONFLICT, memory=current)
        if change.content is None:
            self.delete(change.path)
            return pb.MemoryChangeResult(outcome=WRITTEN)
        return pb.MemoryChangeResult(outcome=WRITTEN, memory=self.write(change.path, change.content))


class Flaky:
    """A store behind a line that may break before or behind a call."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self.breaks = ""

    async def pull(self, store_id: str, known_revision: int) -> AsyncIterator[Pulled]:
        """Breaks in the middle."""
        async for part in self._store.pull(store_id, known_revision):
            yield part
            if self.breaks == "pull":
                raise Away

    async def push(self, *arguments: object) -> Pushed:
        """Breaks before the store has it, or after."""
        if self.breaks == "before":
            raise Away
        pushed = await self._store.push(*arguments)  # type: ignore[arg-type]
        if self.breaks == "behind":
            raise Away
        return pushed


def sha(text: str) -> str:
    """The digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def copy_of(memory: pb.Memory) -> pb.Memory:
    """What travels."""
    copied = pb.Memory()
    copied.CopyFrom(memory)
    return copied
