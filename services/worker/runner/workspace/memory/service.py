"""The sessions service as folders use it."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from managed_agents.sessions.v1 import memory_pb2 as pb
from services.worker.runner.workspace.memory.difference import LocalChange

# A push stays below both, so that its answer, which holds newer texts, fits into a message too.
_PUSH_CHANGES = 200
_PUSH_BYTES = 1_000_000
_SECONDS = 30.0
# A full store is a gigabyte at most.
_PULL_SECONDS = 300.0
_STATES = {
    pb.MEMORY_STORE_STATE_ACTIVE: "active",
    pb.MEMORY_STORE_STATE_ARCHIVED: "archived",
    pb.MEMORY_STORE_STATE_DELETED: "deleted",
}


@dataclass(frozen=True, slots=True)
class Pulled:
    """A part of what changed in a store; its revision holds once all parts are taken in."""

    state: str
    revision: int
    changed: Sequence[pb.Memory]
    deleted_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of some changes."""

    state: str
    previous_revision: int
    revision: int
    results: list[tuple[LocalChange, Any]]


class MemoryClient:
    """Calls of MemoryService under the call context of the turn's task."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    async def pull(self, store_id: str, known_revision: int) -> AsyncIterator[Pulled]:
        """Everything that a folder with this revision does not know, in parts that fit into memory."""
        request = pb.PullMemoriesRequest(memory_store_id=store_id, known_revision=known_revision)
        async for batch in self._stub.PullMemories(request, timeout_seconds=_PULL_SECONDS):
            yield Pulled(_STATES.get(batch.state, "active"), batch.revision, batch.changed, batch.deleted_ids)

    async def push(self, session_id: str, epoch: int, store_id: str, changes: Sequence[LocalChange]) -> Pushed:
        """Write changes that fit into one message; see `portions`."""
        request = pb.PushMemoriesRequest(
            session_id=session_id,
            epoch=epoch,
            memory_store_id=store_id,
            changes=[
                pb.MemoryChange(path=change.path, content=change.content, base_sha256=change.base_sha256)
                for change in changes
            ],
        )
        # Written twice is written once: a change that the store has already is answered as written.
        answer = await self._stub.PushMemories(request, timeout_seconds=_SECONDS, retry=True)
        return Pushed(
            _STATES.get(answer.state, "active"),
            answer.previous_revision,
            answer.revision,
            list(zip(changes, answer.results, strict=True)),
        )


def portions(changes: Sequence[LocalChange]) -> list[list[LocalChange]]:
    """Changes in portions that fit into a message. Deletions come first, also over all of them."""
    ordered = sorted(changes, key=lambda change: change.content is not None)
    found: list[list[LocalChange]] = []
    size = _PUSH_BYTES
    for change in ordered:
        bytes_of_change = len(change.path) + len(change.content or "")
        if size + bytes_of_change > _PUSH_BYTES or len(found[-1]) >= _PUSH_CHANGES:
            found.append([])
            size = 0
        found[-1].append(change)
        # A character may take four bytes.
        size += 4 * bytes_of_change
    return found
