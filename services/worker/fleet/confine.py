"""Files below one folder of the operator's machine, and nothing else of it.

Every path is walked folder by folder through descriptors, and no component is ever opened through a link: a link is
read, and what it says is walked in turn. `..` takes one step back on the way that was walked, so it means the same
whatever is renamed meanwhile. Whatever would lead out of the folder, by `..`, by an absolute path or by a link, raises
`Outside`; nothing is opened, made or asked about out there.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALIAS = "/workspace"
MAX_LINKS = 40
MAX_PATH_CHARS = 4096
MAX_ENTRIES = 10_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class PathRefused(Exception):
    """The path can't be used; the text says why, without telling anything of what lies outside."""


class Outside(PathRefused):
    """The path leads out of the folder."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: this leads out of the worker's folder")


@dataclass(slots=True)
class _Way:
    """The folders that were walked, each open, outermost first; and what is left to walk, next one last."""

    opened: list[tuple[str, int]]
    left: list[str]
    links: int = 0


class Confined:
    """One folder, held open. Thread-safe, as nothing but its descriptor is kept."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # A folder is known by the names under which work may call it.
        self._names = tuple(dict.fromkeys((str(self.root), os.path.abspath(root), ALIAS)))

    def close(self) -> None:
        """Release the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, path: str, most_bytes: int) -> bytes:
        """The bytes of a regular file."""
        with self._reached(path) as (parent, name):
            fd = _open(path, name or ".", _READ, parent)
        try:
            status = os.fstat(fd)
            _require_regular(path, status)
            if status.st_size > most_bytes:
                raise PathRefused(f"{path} has {status.st_size} bytes; at most {most_bytes} are read")
            with open(fd, "rb", closefd=False) as stream:
                data = stream.read(most_bytes + 1)
        except OSError as error:
            raise PathRefused(f"{path}: {reason(error)}") from error
        finally:
            os.close(fd)
        if len(data) > most_bytes:
            raise PathRefused(f"{path} has more than the {most_bytes} bytes that are read")
        return data

    def write(self, path: str, data: bytes) -> None:
        """Put a file in place, whole or not at all; folders above it are made, and its mode is kept."""
        with self._reached(path, make=True) as (parent, name):
            if not name:
                raise PathRefused(f"{path} is a folder")
            mode = _mode_of(path, name, parent)
            temporary = f".{secrets.token_hex(8)}.tmp"
            try:
                with open(_open(path, temporary, _CREATE, parent, 0o600), "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fchmod(stream.fileno(), mode)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                if isinstance(error, OSError):
                    raise PathRefused(f"{path}: {reason(error)}") from error
                raise

    def entries(self, path: str) -> tuple[list[dict[str, Any]], bool]:
        """What is in a folder, by name, and whether there is more than is told. Links are told as links."""
        found: list[dict[str, Any]] = []
        with self.folder(path) as fd, os.scandir(fd) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found.append(_described(entry.name, entry.stat(follow_symlinks=False)))
                if len(found) > MAX_ENTRIES:
                    break
        return sorted(found[:MAX_ENTRIES], key=lambda each: each["name"]), len(found) > MAX_ENTRIES

    def inside(self, path: str) -> str:
        """The folder that a path leads to, from the root on and without links: `` for the root, else `/a/b`."""
        with self._walked(path, folder=True) as way:
            return "".join(f"/{name}" for name, _ in way.opened)

    @contextmanager
    def folder(self, path: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of a folder."""
        with self._walked(path, folder=True, make=make) as way:
            yield way.opened[-1][1] if way.opened else self._fd

    @contextmanager
    def _reached(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The folder that holds what a path leads to, and the name there; no name where it is the root itself."""
        with self._walked(path, make=make) as way:
            name = way.left.pop() if way.left else ""
            yield (way.opened[-1][1] if way.opened else self._fd), name

    @contextmanager
    def _walked(self, path: str, *, folder: bool = False, make: bool = False) -> Iterator[_Way]:
        """Walk a path: to its end where that is a folder that is asked for, else to the last name before it."""
        way = _Way([], self._parts(path, path))
        try:
            self._walk(path, way, folder=folder or path.endswith("/"), make=make)
            yield way
        finally:
            for _, fd in way.opened:
                os.close(fd)

    def _walk(self, path: str, way: _Way, *, folder: bool, make: bool) -> None:
        while way.left:
            name = way.left.pop()
            if name == "..":
                if not way.opened:
                    raise Outside(path)
                os.close(way.opened.pop()[1])
                continue
            parent = way.opened[-1][1] if way.opened else self._fd
            target = _link(path, name, parent)
            if target is not None:
                self._follow(path, target, way)
                continue
            if not way.left and not folder:
                # The last name is what the caller wants to open by itself. A folder is walked into, so that
                # whoever lists it or refuses it sees what it is.
                way.left.append(name)
                return
            way.opened.append((name, _step(path, name, parent, make=make)))

    def _follow(self, path: str, target: str, way: _Way) -> None:
        way.links += 1
        if way.links > MAX_LINKS:
            raise PathRefused(f"{path}: {os.strerror(errno.ELOOP).lower()}")
        parts = self._parts(path, target)
        if target.startswith("/"):
            while way.opened:
                os.close(way.opened.pop()[1])
        if len(way.left) + len(parts) > MAX_PATH_CHARS:
            raise PathRefused(f"{path}: {os.strerror(errno.ENAMETOOLONG).lower()}")
        way.left += parts

    def _parts(self, asked: str, path: str) -> list[str]:
        """What is to be walked from the root, or from where a link stands; next one last."""
        if not path or "\0" in path or len(path) > MAX_PATH_CHARS:
            raise PathRefused(f"a path has 1 to {MAX_PATH_CHARS} characters and no NUL")
        try:
            path.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise PathRefused("a path is text of valid Unicode") from None
        if path.startswith("/"):
            path = self._below(asked, path)
        return [part for part in reversed(path.split("/")) if part not in ("", ".")]

    def _below(self, asked: str, path: str) -> str:
        for name in self._names:
            if path == name or path.startswith(f"{name.rstrip('/')}/"):
                return path[len(name) :]
        raise Outside(asked)


def reason(error: OSError) -> str:
    """What the system refused, in a few words; never a path."""
    return (os.strerror(error.errno) if error.errno else "input/output error").lower()


def _open(path: str, name: str, flags: int, parent: int, mode: int = 0o600) -> int:
    try:
        return os.open(name, flags, mode, dir_fd=parent)
    except OSError as error:
        raise PathRefused(f"{path}: {reason(error)}") from error


def _step(path: str, name: str, parent: int, *, make: bool) -> int:
    if make:
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            pass
        except OSError as error:
            raise PathRefused(f"{path}: {reason(error)}") from error
    return _open(path, name, _FOLDER, parent)


def _link(path: str, name: str, parent: int) -> str | None:
    """What a link says; None for everything else, also for what is not there."""
    try:
        if not stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            return None
        return os.readlink(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PathRefused(f"{path}: {reason(error)}") from error


def _mode_of(path: str, name: str, parent: int) -> int:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return 0o644
    except OSError as error:
        raise PathRefused(f"{path}: {reason(error)}") from error
    _require_regular(path, status)
    return stat.S_IMODE(status.st_mode) & 0o777


def _require_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise PathRefused(f"{path} is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise PathRefused(f"{path} is not a regular file")


def _described(name: str, status: os.stat_result) -> dict[str, Any]:
    kind = "other"
    for test, word in ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink")):
        if test(status.st_mode):
            kind = word
    # What is no text can't be told in JSON as it is.
    shown = os.fsencode(name).decode("utf-8", "replace")
    return {"name": shown, "type": kind, "size": status.st_size, "modified_ns": status.st_mtime_ns}
