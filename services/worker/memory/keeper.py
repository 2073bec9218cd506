"""Makes one folder and its store agree: what the agent did goes out, what others did comes in.

Whatever it is cut off at, the next time goes on: a change that the store has already is the same there, a file that is
in place already is the same here, and what was moved aside is found and kept. A file is only ever replaced by the
store's text; what else was there is kept under /mnt/session/tool_outputs and told.
"""

import asyncio
import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Any

from kit import failpoints
from services.worker.memory import base as bases
from services.worker.memory.base import Base, Entry, Signature
from services.worker.memory.difference import (
    Found,
    LocalChange,
    Scan,
    changes_of,
    oddities,
    state_of,
    to_read,
)
from services.worker.memory.store import CONFLICT, WRITTEN, MemoryStore, Pulled, portions
from services.worker.memory.tree import MAX_ENTRIES, NoPlace, Tree
from services.worker.memory.wording import Wording

COPIES = "/mnt/session/tool_outputs"
_LOCK_PAUSE_SECONDS = 0.02
# How often a file is moved aside that comes back at once.
_ATTEMPTS = 3
# Texts that are held at once.
_READ_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class Folder:
    """One store in one session."""

    # The session's folder on the host.
    session_folder: Path
    resource_id: str
    store_id: str
    mount_path: str
    read_only: bool

    @property
    def beside(self) -> Path:
        """Where the state of the folder is kept; no tool and no shell sees it."""
        return self.session_folder / ".memory" / self.resource_id


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose turn it is."""

    session_id: str
    epoch: int


class Keeper:
    """One pass over a folder. `notes` are for the agent."""

    def __init__(self, folder: Folder, client: MemoryStore) -> None:
        self.folder = folder
        self.client = client
        self.notes: list[str] = []
        self._say = Wording(folder.mount_path, self.notes)

    async def agree(self, holder: Holder, *, pull: bool) -> int:
        """Push what changed here, and with `pull` take in what changed there. The revision that the folder has."""
        state = self.folder.beside / "base.json"
        async with _locked(self.folder.beside):
            base = await asyncio.to_thread(bases.load, state)
            try:
                tree = await asyncio.to_thread(
                    Tree.open, self.folder.session_folder, self.folder.mount_path, self.folder.beside / "staging"
                )
            except NoPlace:
                self._say.no_folder()
                return base.revision
            before = _mark(base)
            try:
                await self._agree(tree, base, holder, pull)
            finally:
                if base.surer or _mark(base) != before:
                    await asyncio.to_thread(_save, tree, base, state)
                tree.close()
            return base.revision

    async def _agree(self, tree: Tree, base: Base, holder: Holder, pull: bool) -> None:
        full = await asyncio.to_thread(self._take_stock, tree, base)
        looked: set[str] = set()
        changed = more = True
        while more:
            scan, read, more = await asyncio.to_thread(_look, tree, base, looked)
            changes = [
                each
                for each in changes_of(base, scan, read)
                # What the store refused is offered again by the next turn, or once the file is another one.
                if pull or base.told.get(each.path) != state_of(each, read)
            ]
            self._tell_odd(base, scan, read)
            changed = bool(changes)
            if changes:
                await failpoints.point("runner.memory.changed")
                full = await self._send(tree, base, holder, changes, read) or full
                await failpoints.point("runner.memory.pushed")
        # What had no place may have one now.
        full = full or (bool(base.hidden) and (changed or pull)) or (pull and not base.revision)
        if pull or full:
            await self._take_in(tree, base, full)

    def _take_stock(self, tree: Tree, base: Base) -> bool:
        """Deal with what an earlier pass left; true where the folder is another one and has to be filled anew."""
        known = {entry.sha256 for entry in base.entries.values()}
        for aside in tree.leftovers():
            if tree.aside_sha(aside) in known:
                tree.drop(aside)
            else:
                self._say.left_over(self._keep(tree, aside, "recovered"))
        another = base.folder not in (0, tree.identity)
        if another:
            # Nothing was deleted one by one: the folder itself was moved or replaced.
            base.entries.clear()
            base.revision = 0
            self._say.replaced()
        base.folder = tree.identity
        return another

    def _tell_odd(self, base: Base, scan: Scan, read: Mapping[str, Found]) -> None:
        if not scan.whole:
            self._say.too_many(MAX_ENTRIES)
        for path, reason, signature in oddities(base, scan, read):
            self._say.not_stored(path, reason)
            base.told[path] = list(signature)
        for path, state in list(base.told.items()):
            if (path not in base.entries or path in scan.files) if state == [-1] else path not in scan.files | scan.odd:
                del base.told[path]

    async def _send(
        self, tree: Tree, base: Base, holder: Holder, changes: Sequence[LocalChange], read: Mapping[str, Found]
    ) -> bool:
        """Have the store take the changes; true where the folder needs the store's whole state."""
        if self.folder.read_only:
            await asyncio.to_thread(self._undo, tree, base, changes)
            return True
        deleted: list[str] = []
        for portion in portions(changes):
            pushed = await self.client.push(holder.session_id, holder.epoch, self.folder.store_id, portion)
            self._note_state(base, pushed.state)
            await asyncio.to_thread(self._settle_results, tree, base, pushed.results, read, deleted)
            if base.revision == pushed.previous_revision:
                base.revision = pushed.revision
        self._say.deleted(deleted)
        return False

    def _settle_results(
        self,
        tree: Tree,
        base: Base,
        results: Sequence[tuple[LocalChange, Any]],
        read: Mapping[str, Found],
        deleted: list[str],
    ) -> None:
        for change, result in results:
            if result.outcome == WRITTEN:
                self._note_written(tree, base, change, result.memory, deleted)
            elif result.outcome == CONFLICT:
                memory = result.memory if result.memory and result.memory.id else None
                newer = None if memory is None else memory.content
                self._say.conflict(change.path, newer, deleting=change.content is None)
                self._settle(tree, base, change.path, memory)
            elif base.told.get(change.path) != state_of(change, read):
                self._say.not_stored(change.path, result.refusal)
                base.told[change.path] = state_of(change, read)

    def _note_written(self, tree: Tree, base: Base, change: LocalChange, memory: Any, deleted: list[str]) -> None:
        base.told.pop(change.path, None)
        if change.content is None:
            base.entries.pop(change.path, None)
            deleted.append(change.path)
            return
        # Its signature is taken anew: where the file is another one by now, its digest differs and it goes out again.
        found = tree.read(change.path)
        signature = found.signature if found and found.sha256 == memory.content_sha256 else (0, 0, 0, 0)
        base.entries[change.path] = _entry(memory, signature)

    def _undo(self, tree: Tree, base: Base, changes: Sequence[LocalChange]) -> None:
        """Take changes of a read-only folder out of it; the store's texts come back with the next pull."""
        for change in changes:
            if change.content is not None:
                self._settle(tree, base, change.path, None)
            base.entries.pop(change.path, None)
        base.revision = 0
        self._say.undone([change.path for change in changes])

    async def _take_in(self, tree: Tree, base: Base, full: bool) -> None:
        """Make the folder what the store is, as far as it was told."""
        # Usually one; two where a conflict brought a memory to a place before its move was heard of.
        places: dict[str, list[str]] = {}
        for path, entry in base.entries.items():
            places.setdefault(entry.memory_id, []).append(path)
        hidden, revision = dict(base.hidden), 0
        present: set[str] = set()
        async for part in self.client.pull(self.folder.store_id, 0 if full else base.revision):
            self._note_state(base, part.state)
            if part.state == "deleted":
                return
            revision = part.revision
            present.update(memory.id for memory in part.changed)
            await asyncio.to_thread(self._take_in_part, tree, base, part, places, hidden)
        if full:
            await asyncio.to_thread(self._remove, tree, base, places, places.keys() - present)
            base.hidden = {path: memory_id for path, memory_id in base.hidden.items() if memory_id in present}
        base.revision = revision

    def _take_in_part(
        self, tree: Tree, base: Base, part: Pulled, places: Mapping[str, list[str]], hidden: Mapping[str, str]
    ) -> None:
        self._remove(tree, base, places, part.deleted_ids)
        for memory in part.changed:
            self._remove(tree, base, places, (memory.id,), but=memory.path)
        there = {*part.deleted_ids, *(memory.id for memory in part.changed)}
        base.hidden = {path: memory_id for path, memory_id in base.hidden.items() if memory_id not in there}
        # Deeper ones first: where a memory has the path of a folder, the folder is what is shown.
        for memory in sorted(part.changed, key=lambda each: (-each.path.count("/"), each.path)):
            entry = base.entries.get(memory.path)
            if entry is None or (entry.memory_id, entry.sha256) != (memory.id, memory.content_sha256):
                self._settle(tree, base, memory.path, memory)
                if memory.path in base.hidden and memory.path not in hidden:
                    self._say.hidden(memory.path)

    def _remove(
        self, tree: Tree, base: Base, places: Mapping[str, list[str]], memory_ids: Iterable[str], but: str = ""
    ) -> None:
        """Take memories away from where they were, unless another one is there by now."""
        for memory_id in memory_ids:
            for path in places.get(memory_id, ()):
                if path != but and (entry := base.entries.get(path)) and entry.memory_id == memory_id:
                    self._settle(tree, base, path, None)

    def _note_state(self, base: Base, state: str) -> None:
        if state != base.state:
            base.state = state
            self._say.state(state)

    def _settle(self, tree: Tree, base: Base, path: str, memory: Any) -> None:
        """Have at a path what the store has there, and keep whatever else was at it."""
        entry = base.entries.get(path)
        for _ in range(_ATTEMPTS):
            if memory is not None and (found := tree.read(path)) and found.sha256 == memory.content_sha256:
                base.entries[path] = _entry(memory, found.signature)
                return
            try:
                if aside := tree.take(path):
                    self._deal_with(tree, aside, path, {entry.sha256} if entry else set())
                base.entries.pop(path, None)
                if memory is None:
                    tree.prune(path)
                    return
                base.entries[path] = _entry(memory, tree.put(path, memory.content.encode()))
                base.told.pop(path, None)
                return
            except FileExistsError:
                # Somebody wrote it this very moment.
                continue
            except NoPlace:
                base.entries.pop(path, None)
                if memory is not None:
                    base.hidden[path] = memory.id
                return

    def _deal_with(self, tree: Tree, aside: str, path: str, known: set[str]) -> None:
        if tree.aside_sha(aside) in known:
            tree.drop(aside)
        else:
            self._say.kept(path, self._keep(tree, aside, path.rpartition("/")[2]))

    def _keep(self, tree: Tree, aside: str, name: str) -> str:
        """Put aside's file where the agent can read it; its path there."""
        kept = f"memory-{secrets.token_hex(4)}-{name.encode()[:80].decode(errors='ignore')}"
        tree.keep(aside, Path(f"{self.folder.session_folder}{COPIES}"), kept)
        return f"{COPIES}/{kept}"


def _look(tree: Tree, base: Base, looked: set[str]) -> tuple[Scan, dict[str, Found], bool]:
    """The folder as it is, the texts that may be new, and whether there are more than fit into memory at once."""
    scan, read, size = tree.scan(), dict[str, Found](), 0
    for path in to_read(base, scan):
        if path in looked:
            continue
        if size > _READ_BYTES:
            return scan, read, True
        looked.add(path)
        found = tree.read(path)
        if found is None:
            scan.restless.add(path)
            continue
        entry = base.entries.get(path)
        if entry and found.sha256 == entry.sha256:
            base.entries[path] = Entry(entry.memory_id, entry.sha256, found.signature, time_ns())
            base.surer = base.surer or base.entries[path].surely_is(found.signature)
            continue
        read[path] = found
        size += len(found.content or "")
    return scan, read, False


def _save(tree: Tree, base: Base, state: Path) -> None:
    tree.flush()
    bases.save(base, state)


def _entry(memory: Any, signature: Signature) -> Entry:
    return Entry(memory.id, memory.content_sha256, signature, time_ns())


def _mark(base: Base) -> Any:
    """What has to be kept of a base; when a file was last looked at has not."""
    entries = {path: (entry.memory_id, entry.sha256) for path, entry in base.entries.items()}
    return (base.revision, base.folder, base.state, dict(base.hidden), dict(base.told), entries)


@asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[None]:
    """Alone with a folder: threads of a session may be at work on several runners that share its disk."""
    await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(fd)
