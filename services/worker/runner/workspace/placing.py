"""Putting things into a session's folder without being led outside of it.

The agent can write in most of the folder, so any component of a path may be a link that it made. Folders are opened
one by one and never through a link; what stands in the way is told by OSError. What was put where is kept in a file
beside the agent's folders, so that another runner, or this one after a restart, knows it.
"""

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from services.worker.sandbox.folders import remove_tree

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not below any folder that the agent sees.
OWN_FOLDER = ".mounts"
_IDENTITY = "identity"
_LONGEST_SECONDS = 3_600.0


@contextmanager
def opened_folder(root: Path, inside: str, *, make: bool = False) -> Iterator[int]:
    """A descriptor of a folder below `root`; with `make` it is made. No component may be a link."""
    current = os.open(root, _FOLDER)
    try:
        for name in inside.strip("/").split("/"):
            if not name:
                continue
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=current)
            following = os.open(name, _FOLDER, dir_fd=current)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def split(inside: str) -> tuple[str, str]:
    """The folder and the name of a path in the sandbox."""
    folder, _, name = inside.rpartition("/")
    return folder, name


class Incoming:
    """A file on its way: written where no agent looks, moved into its place when it is whole. One thread at a time."""

    def __init__(self, root: Path, inside: str) -> None:
        self._root = root
        self._inside = inside
        self._part = f"incoming-{secrets.token_hex(8)}"
        with opened_folder(root, OWN_FOLDER, make=True) as own_fd:
            self._fd = os.open(
                self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400, dir_fd=own_fd
            )

    def write(self, data: bytes) -> None:
        """The next bytes."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def keep(self) -> os.stat_result:
        """Move it into its place."""
        folder, name = split(self._inside)
        status = os.fstat(self._fd)
        with opened_folder(self._root, OWN_FOLDER) as own_fd, opened_folder(self._root, folder, make=True) as folder_fd:
            with contextlib.suppress(FileNotFoundError):
                there = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                if stat.S_ISDIR(there.st_mode):
                    os.rmdir(name, dir_fd=folder_fd)
            os.rename(self._part, name, src_dir_fd=own_fd, dst_dir_fd=folder_fd)
        self.close()
        return status

    def drop(self) -> None:
        """Leave nothing of it."""
        with contextlib.suppress(OSError), opened_folder(self._root, OWN_FOLDER) as own_fd:
            os.unlink(self._part, dir_fd=own_fd)
        self.close()

    def close(self) -> None:
        """Let the descriptor go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def own_folder(root: Path) -> Path:
    """A fresh folder where no agent looks, on the disk of the session's folder."""
    with opened_folder(root, OWN_FOLDER, make=True) as own_fd:
        name = f"incoming-{secrets.token_hex(8)}"
        os.mkdir(name, 0o700, dir_fd=own_fd)
    return root / OWN_FOLDER / name


def identity_of(root: Path) -> str:
    """A word that tells this folder from another one made later at its place; empty where there is none.

    Written into it when first asked for: numbers of the file system are given to the next folder once this one is gone.
    """
    try:
        with opened_folder(root, OWN_FOLDER, make=True) as own_fd:
            for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
                with contextlib.suppress(FileNotFoundError):
                    fd = os.open(_IDENTITY, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=own_fd)
                    try:
                        word = os.read(fd, 64).decode("ascii", "replace")
                        if not word and flags != os.O_RDONLY:
                            word = secrets.token_hex(16)
                            os.write(fd, word.encode())
                    finally:
                        os.close(fd)
                    if word:
                        return word
    except OSError:
        pass
    return ""


def tidy(root: Path) -> None:
    """Remove what was on its way so long ago that whoever brought it is gone."""
    limit = time.time() - _LONGEST_SECONDS
    with contextlib.suppress(FileNotFoundError), opened_folder(root, OWN_FOLDER) as own_fd:
        for name in os.listdir(own_fd):
            if not name.startswith("incoming-"):
                continue
            status = os.stat(name, dir_fd=own_fd, follow_symlinks=False)
            if status.st_mtime >= limit:
                continue
            if stat.S_ISDIR(status.st_mode):
                remove_tree(root / OWN_FOLDER / name)
            else:
                os.unlink(name, dir_fd=own_fd)


def remove_file(root: Path, inside: str, *, up_to: str) -> None:
    """Take a file out, and the folders above it that are empty then, up to one that stays."""
    folder, name = split(inside)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), opened_folder(root, folder) as folder_fd:
        os.unlink(name, dir_fd=folder_fd)
    while folder.startswith(f"{up_to}/"):
        parent, name = split(folder)
        try:
            with opened_folder(root, parent) as folder_fd:
                os.rmdir(name, dir_fd=folder_fd)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return
            raise
        folder = parent


def look(root: Path, inside: str) -> os.stat_result | None:
    """What stands at a path, links not followed; None where nothing does."""
    folder, name = split(inside)
    try:
        with opened_folder(root, folder) as folder_fd:
            return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except OSError:
        return None


class Record:
    """What one kind of mount has put into a folder, as JSON in a file of its own."""

    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._inside = f"/{OWN_FOLDER}/{name}.json"

    def read(self) -> dict[str, Any]:
        """Empty where there is none, or none that can be read."""
        folder, name = split(self._inside)
        try:
            with opened_folder(self._root, folder) as folder_fd:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
            with open(fd, "rb") as file:
                found = orjson.loads(file.read())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, entries: dict[str, Any]) -> None:
        """Replace it whole."""
        incoming = Incoming(self._root, self._inside)
        try:
            incoming.write(orjson.dumps(entries))
            incoming.keep()
        except BaseException:
            incoming.drop()
            raise
