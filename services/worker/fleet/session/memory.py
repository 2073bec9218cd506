"""The memory stores of a session as folders of it, kept in agreement with the platform while its item is here.

A pass runs after each tool, every few seconds where others may have changed something, and at the end. What it could
not do is done by the next one; a killed worker therefore loses nothing that a later pass on this machine can still
find, and at most what its last tool had written where the machine itself is gone.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.fleet.errors import Refused, Unreachable
from services.worker.fleet.reporter import Reporter
from services.worker.fleet.session.api import SessionApi
from services.worker.fleet.session.store import RestStore
from services.worker.memory import base as bases
from services.worker.memory.keeper import Folder, Holder, Keeper
from services.worker.sandbox.folders import remove_tree
from services.worker.tools import VisibleRoot

_MOUNTS = "/mnt/memory/"


class MountRefused(Exception):
    """A store can't be a folder here; the text names the store."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A store of a session."""

    store_id: str
    mount_path: str
    read_only: bool

    def folder(self, session_folder: Path) -> Folder:
        """Its folder in a session's."""
        return Folder(session_folder, self.store_id, self.store_id, self.mount_path, self.read_only)


def attached(session: dict[str, Any]) -> list[Attached]:
    """The stores of a session. MountRefused for a path that would be anywhere else than below /mnt/memory."""
    found: list[Attached] = []
    for each in session.get("resources") or ():
        if not isinstance(each, dict) or each.get("type") != "memory_store":
            continue
        store_id = str(each.get("memory_store_id") or "")
        path = str(each.get("mount_path") or f"{_MOUNTS}{store_id}")
        name = path.removeprefix(_MOUNTS)
        if not path.startswith(_MOUNTS) or not store_id.isidentifier() or name in ("", ".", "..") or "/" in name:
            raise MountRefused(f"the memory store {store_id or '?'} cannot be mounted at {path!r}")
        found.append(Attached(store_id, path, each.get("access") == "read_only"))
    return found


class Memories:
    """All stores of one session."""

    def __init__(
        self, api: SessionApi, session_id: str, stores: Sequence[Attached], *, seconds: float, reporter: Reporter
    ) -> None:
        self._api = api
        self._session_id = session_id
        self._stores = [(each, RestStore(api)) for each in stores]
        self._seconds = seconds
        self._reporter = reporter
        self._looked_at: float | None = None
        # Stores whose last pass failed: their folders hold what the platform may not have.
        self.behind: set[str] = set()

    @property
    def roots(self) -> list[VisibleRoot]:
        """What the tools see."""
        return [VisibleRoot(each.mount_path, not each.read_only) for each, _ in self._stores]

    async def agree(self, folder: Path, *, pull: bool) -> list[str]:
        """One pass over each folder; what the agent is to be told."""
        if not self._stores:
            return []
        now = time.monotonic()
        if self._looked_at is None:
            for each, _ in self._stores:
                _forget_revision(each.folder(folder))
        pull = pull or self._looked_at is None or now - self._looked_at >= self._seconds
        notes: list[str] = []
        for each, store in self._stores:
            keeper = Keeper(each.folder(folder), store)
            try:
                await keeper.agree(Holder(self._session_id, 0), pull=pull)
                self.behind.discard(each.store_id)
            except (Refused, Unreachable, OSError, LookupError, TypeError) as failed:
                self.behind.add(each.store_id)
                self._reporter.warning("memory is not in agreement yet", store=each.store_id, reason=str(failed))
                notes.append(
                    f"[Memory: {each.mount_path} ({each.store_id}) could not be brought into agreement with its store; "
                    "it is tried again after the next tool.]"
                )
            notes += keeper.notes
        if pull:
            self._looked_at = now
        return notes

    async def rescue(self, left: Path) -> None:
        """Bring what a killed worker's folder has beyond the stores into them, but over nobody's newer text."""
        for each, _ in self._stores:
            if not (left / ".memory" / each.store_id / "base.json").exists():
                continue
            keeper = Keeper(each.folder(left), RestStore(self._api))
            try:
                await keeper.agree(Holder(self._session_id, 0), pull=False)
            except (Refused, Unreachable, OSError, LookupError, TypeError) as failed:
                self._reporter.warning("memory that was left is not rescued", store=each.store_id, reason=str(failed))
            for note in keeper.notes:
                self._reporter.warning("memory that was left", store=each.store_id, note=note.strip("[]"))

    def clear(self, folder: Path) -> None:
        """Remove folders that hold nothing beyond their stores: the next item is to begin with what is there then."""
        for each, _ in self._stores:
            if each.store_id not in self.behind:
                for path in (Path(f"{folder}{each.mount_path}"), folder / ".memory" / each.store_id):
                    try:
                        remove_tree(path)
                    except OSError as error:
                        self._reporter.warning("a memory folder stays", path=str(path), reason=error.strerror)


def _forget_revision(folder: Folder) -> None:
    """A folder that an earlier item could not bring home is compared with all that its store has."""
    state = folder.beside / "base.json"
    if state.exists():
        base = bases.load(state)
        base.revision = 0
        bases.save(base, state)
