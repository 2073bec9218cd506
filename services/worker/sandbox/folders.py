"""The folders of a session on the host, and how full they are.

Owns `<root>/<session>/`: it has the shape of the agent's own file system, so
`/workspace` of the agent is `<root>/<session>/workspace`. Folders outlive
sandboxes and runners; only `remove` deletes them.
"""

import asyncio
import errno
import itertools
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.worker.tools import VisibleRoot

WORKSPACE = "/workspace"
UPLOADS = "/mnt/session/uploads"
OUTPUTS = "/mnt/session/outputs"
TOOL_OUTPUTS = "/mnt/session/tool_outputs"
TEMPORARY = "/tmp"

VISIBLE = (
    VisibleRoot(WORKSPACE),
    VisibleRoot(UPLOADS, writable=False),
    VisibleRoot(OUTPUTS),
    VisibleRoot(TOOL_OUTPUTS),
    VisibleRoot(TEMPORARY),
)
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_INLINE_ENTRIES = 256
_HIDING = frozenset({errno.ENAMETOOLONG, errno.EACCES, errno.EPERM})
# A measurement that took t seconds is not repeated for this many times t.
_REST_FACTOR = 20


class SessionIdInvalid(ValueError):
    """The id cannot name a folder."""


@dataclass(frozen=True, slots=True)
class SessionFolders:
    """The folder of one session."""

    session_id: str
    path: Path
    # What tools and shell see.
    roots: tuple[VisibleRoot, ...] = VISIBLE

    def host(self, inside: str) -> str:
        """The host's path of a path inside."""
        return f"{self.path}{inside}"

    def bound(self, *, writable: bool) -> list[str]:
        """The roots that the agent may write to, or those that it may only read."""
        return [root.path for root in self.roots if root.writable is writable]


class FolderStore:
    """All sessions' folders below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def open(self, session_id: str, extra: Sequence[VisibleRoot] = ()) -> SessionFolders:
        """Return the session's folders, made if need be; with `extra` roots beside those that every session has."""
        folders = SessionFolders(session_id, self._path(session_id), (*VISIBLE, *extra))
        if not folders.path.is_dir():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folders.path.mkdir(mode=0o700, exist_ok=True)
        for root in folders.roots:
            _make_private(folders.path, root.path)
        return folders

    async def remove(self, session_id: str) -> None:
        """Delete a session's folders, whatever the agent left in them."""
        await asyncio.to_thread(remove_tree, self._path(session_id))

    def _path(self, session_id: str) -> Path:
        if not _SESSION_ID.fullmatch(session_id):
            raise SessionIdInvalid(f"{session_id!r} is not a session id")
        return self.root / session_id


def _make_private(folder: Path, inside: str) -> None:
    """Make folders for the platform's user alone; `makedirs` would give the ones between the usual mode."""
    for part in inside.strip("/").split("/"):
        folder /= part
        folder.mkdir(mode=0o700, exist_ok=True)


def remove_tree(path: Path) -> None:
    """Empty and delete a folder without recursion: the agent may have nested folders deeper than any stack or path.

    What lies in a subfolder moves up to the top, so only two folders are ever open.
    """
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    # Random, since an earlier attempt may have been cut short.
    prefix = f".removed-{secrets.token_hex(8)}-"
    names = (f"{prefix}{number}" for number in itertools.count())
    try:
        while entries := _entries(top):
            for name, is_folder in entries:
                if is_folder:
                    _empty_into(top, name, names)
                    os.rmdir(name, dir_fd=top)
                else:
                    os.unlink(name, dir_fd=top)
    finally:
        os.close(top)
    path.rmdir()


def _empty_into(top: int, name: str, names: Iterator[str]) -> None:
    """Delete the files of a subfolder and move its folders to the top."""
    # The agent may have taken its own permissions away.
    os.chmod(name, 0o700, dir_fd=top)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        for inner, is_folder in _entries(folder):
            if not is_folder:
                os.unlink(inner, dir_fd=folder)
                continue
            # Moving a folder changes its own "..", which takes the right to write it.
            os.chmod(inner, 0o700, dir_fd=folder)
            os.rename(inner, next(names), src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)


def _entries(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


class DiskMeter:
    """Measures a folder, seldom enough to be cheap: small trees at once, large ones in a thread.

    `held` tells how much is taken by files that no folder shows any more.
    """

    def __init__(self, folder: str, held: Callable[[], Awaitable[int]]) -> None:
        self._folder = folder
        self._held = held
        self._rest_until = 0.0
        self.used_bytes = 0
        # Something lies in folders into which this process cannot look.
        self.hidden = False

    async def measure(self, *, now: bool = False) -> int:
        """Return the bytes in use; unless `now`, as of a while ago for a large folder."""
        began = time.monotonic()
        if began < self._rest_until and not now:
            return self.used_bytes
        hidden: list[str] = []
        sizes = _sizes(self._folder, hidden)
        # First, so that what is deleted between the two looks is not counted twice.
        total = await self._held()
        for count, size in enumerate(sizes):
            total += size
            if count >= _INLINE_ENTRIES:
                total += await asyncio.to_thread(sum, sizes)
                break
        ended = time.monotonic()
        self._rest_until = ended + _REST_FACTOR * (ended - began)
        self.used_bytes = total
        self.hidden = bool(hidden)
        return total


def _sizes(folder: str, hidden: list[str]) -> Iterator[int]:
    """Sizes on disk of all that lies below; what vanishes meanwhile counts nothing.

    Folders that are there but cannot be opened, since their path is too long or
    the agent took the right away, are put into `hidden`.
    """
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        try:
            with os.scandir(current) as entries:
                for entry in entries:
                    try:
                        yield entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                    except (FileNotFoundError, NotADirectoryError):
                        continue
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno in _HIDING:
                hidden.append(current)
