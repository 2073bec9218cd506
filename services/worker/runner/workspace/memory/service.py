"""The sessions service as folders use it."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from managed_agents.sessions.v1 import memory_pb2 as pb
from services.worker.memory.difference import LocalChange
from services.worker.memory.store import Pulled, Pushed

_SECONDS = 30.0
# A full store is a gigabyte at most.
_PULL_SECONDS = 300.0
_STATES = {
    pb.MEMORY_STORE_STATE_ACTIVE: "active",
    pb.MEMORY_STORE_STATE_ARCHIVED: "archived",
    pb.MEMORY_STORE_STATE_DELETED: "deleted",
}


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
        """Write changes that fit into one message; see `store.portions`."""
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
