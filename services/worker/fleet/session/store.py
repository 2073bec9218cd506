"""A memory store over the public API, as a pass over its folder asks for it.

The API tells no revisions, so they are counted here: a listing of paths and digests is compared with the one before,
and only texts that changed are fetched. Each write names the digest that the folder knew, so nobody's newer text is
overwritten; an answer that was lost is told apart by what the store has then.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from services.worker.fleet.errors import Refused
from services.worker.fleet.platform import segment
from services.worker.fleet.session.api import SessionApi
from services.worker.memory.difference import LocalChange
from services.worker.memory.store import CONFLICT, REFUSED, WRITTEN, Pulled, Pushed

_PAGE = 100
_FULL_PAGE = 20


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory; without an id there is none."""

    id: str = ""
    path: str = ""
    content: str = ""
    content_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a change."""

    outcome: int
    memory: Memory | None = None
    refusal: str = ""


class RestStore:
    """One store, for one folder."""

    def __init__(self, api: SessionApi) -> None:
        self._api = api
        # Id and digest of each path, as of the newest listing and what was written since.
        self._known: dict[str, tuple[str, str]] = {}
        self._listed = False
        self._revision = 0
        self._state = "active"

    async def pull(self, store_id: str, known_revision: int) -> AsyncIterator[Pulled]:
        """What the folder does not know."""
        try:
            if known_revision and known_revision == self._revision:
                async for part in self._changes(store_id):
                    yield part
                return
            found: dict[str, tuple[str, str]] = {}
            parts = [part async for part in self._pages(store_id, "full", _FULL_PAGE)]
            for part in parts:
                found |= {each["path"]: (each["id"], each["content_sha256"]) for each in part}
            self._known, self._listed = found, True
            self._revision += 1
            yield Pulled(self._state, self._revision, [], [])
            for part in parts:
                yield Pulled(self._state, self._revision, [_memory(each) for each in part], [])
        except Refused as refused:
            yield self._ended(refused)

    async def _changes(self, store_id: str) -> AsyncIterator[Pulled]:
        found: dict[str, tuple[str, str]] = {}
        async for part in self._pages(store_id, "basic", _PAGE):
            found |= {each["path"]: (each["id"], each["content_sha256"]) for each in part}
        here = {memory_id for memory_id, _ in found.values()}
        gone = [memory_id for memory_id, _ in self._known.values() if memory_id not in here]
        changed = [
            memory
            for path, state in found.items()
            if self._known.get(path) != state
            # One that went since the listing is gone with the next one.
            if (memory := await self._memory(store_id, state[0])) is not None
        ]
        if gone or changed:
            self._revision += 1
        self._known = found
        yield Pulled(self._state, self._revision, [], gone)
        for memory in changed:
            yield Pulled(self._state, self._revision, [memory], [])

    async def push(self, session_id: str, epoch: int, store_id: str, changes: Sequence[LocalChange]) -> Pushed:
        """Write changes, each by itself."""
        before = self._revision
        if not self._listed:
            await self._list(store_id)
        results = [(change, await self._write(store_id, change)) for change in changes]
        return Pushed(self._state, before, self._revision, results)

    async def _list(self, store_id: str) -> None:
        try:
            async for part in self._pages(store_id, "basic", _PAGE):
                self._known |= {each["path"]: (each["id"], each["content_sha256"]) for each in part}
        except Refused as refused:
            # The writes will be told the same, each by itself.
            self._ended(refused)
        self._listed = True

    async def _write(self, store_id: str, change: LocalChange) -> Result:
        try:
            if change.content is None:
                return await self._delete(store_id, change)
            known = self._known.get(change.path)
            if not change.base_sha256 or known is None:
                return await self._create(store_id, change)
            return await self._update(store_id, change, known[0])
        except Refused as refused:
            if refused.status in (401, 403):
                raise
            return Result(REFUSED, refusal=refused.message)

    async def _create(self, store_id: str, change: LocalChange) -> Result:
        assert change.content is not None
        try:
            answer = await self._api.memory("POST", store_id, body={"path": change.path, "content": change.content})
            return self._written(change, str(answer["id"]))
        except Refused as refused:
            if refused.status != 409:
                raise
            conflicting = refused.details.get("conflicting_memory_id")
            if not isinstance(conflicting, str):
                conflicting = await self._id_at(store_id, change.path)
            return await self._compared(store_id, change, conflicting)

    async def _update(self, store_id: str, change: LocalChange, memory_id: str) -> Result:
        precondition = {"type": "content_sha256", "content_sha256": change.base_sha256}
        body = {"content": change.content, "precondition": precondition}
        try:
            await self._api.memory("POST", store_id, f"/{segment(memory_id)}", body)
            return self._written(change, memory_id)
        except Refused as refused:
            if refused.status not in (404, 409, 412):
                raise
            return await self._compared(store_id, change, memory_id)

    async def _delete(self, store_id: str, change: LocalChange) -> Result:
        known = self._known.get(change.path)
        memory_id = known[0] if known else await self._id_at(store_id, change.path)
        if memory_id:
            query = {"expected_content_sha256": change.base_sha256}
            try:
                await self._api.memory("DELETE", store_id, f"/{segment(memory_id)}", query=query)
            except Refused as refused:
                if refused.status in (409, 412):
                    return await self._compared(store_id, change, memory_id)
                if refused.status != 404:
                    raise
        self._known.pop(change.path, None)
        return Result(WRITTEN)

    async def _compared(self, store_id: str, change: LocalChange, memory_id: str) -> Result:
        """After a refused write: the store may have it already, from an attempt whose answer was lost."""
        memory = await self._memory(store_id, memory_id) if memory_id else None
        if memory is None:
            self._known.pop(change.path, None)
            return Result(CONFLICT)
        self._known[memory.path] = (memory.id, memory.content_sha256)
        if memory.path == change.path and memory.content == change.content:
            return Result(WRITTEN, memory)
        return Result(CONFLICT, memory if memory.path == change.path else None)

    def _written(self, change: LocalChange, memory_id: str) -> Result:
        content = change.content or ""
        memory = Memory(memory_id, change.path, content, hashlib.sha256(content.encode()).hexdigest())
        self._known[change.path] = (memory.id, memory.content_sha256)
        return Result(WRITTEN, memory)

    async def _memory(self, store_id: str, memory_id: str) -> Memory | None:
        try:
            return _memory(await self._api.memory("GET", store_id, f"/{segment(memory_id)}", query={"view": "full"}))
        except Refused as refused:
            if refused.status != 404:
                raise
            return None

    async def _id_at(self, store_id: str, path: str) -> str:
        async for part in self._pages(store_id, "basic", _PAGE):
            for each in part:
                if each["path"] == path:
                    return str(each["id"])
        return ""

    async def _pages(self, store_id: str, view: str, limit: int) -> AsyncIterator[list[dict[str, Any]]]:
        query = {"view": view, "limit": str(limit)}
        while True:
            answer = await self._api.memory("GET", store_id, query=query)
            yield [each for each in answer["data"] if each.get("type") == "memory"]
            if not answer.get("next_page"):
                return
            query = query | {"page": str(answer["next_page"])}

    def _ended(self, refused: Refused) -> Pulled:
        """A store that is gone; anything else is an error of the pass."""
        if refused.status != 404:
            raise refused
        self._state = "deleted"
        return Pulled(self._state, self._revision, [], [])


def _memory(found: dict[str, Any]) -> Memory:
    content = str(found.get("content") or "")
    return Memory(str(found["id"]), str(found["path"]), content, str(found["content_sha256"]))
