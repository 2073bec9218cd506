"""A store's folder on the disk: looked through, read and written without ever following a link.

The agent's processes may change the folder at any moment, so every step goes through open descriptors. A file is put
into place from a folder beside it, whole, and what it replaces is moved out of the way first: whoever wrote it a moment
ago finds it kept.
"""

import ctypes
import errno
import hashlib
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from services.worker.memory.base import Signature
from services.worker.memory.difference import MAX_CONTENT_BYTES, Found, Scan

# More than a full store has, with its folders; what lies beyond is not looked at.
MAX_ENTRIES = 25_000
MAX_DEPTH = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# From so many files on, the whole disk is flushed at once.
_FLUSH_ALL = 64
_NOT_A_PLACE = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOTEMPTY, errno.EEXIST})


class NoPlace(Exception):
    """The disk can't have a file at this path now."""


class Tree:
    """One folder, held open. Close it."""

    def __init__(self, root: int, staging: Path) -> None:
        self._root = root
        self._stage = os.open(staging, _FOLDER)
        self._placed: list[str] = []

    @classmethod
    def open(cls, folder: Path, mount_path: str, staging: Path) -> "Tree":
        """The folder at a path of a session, made if it is not there; NoPlace where something else is."""
        staging.mkdir(mode=0o700, parents=True, exist_ok=True)
        current = os.open(folder, _FOLDER)
        try:
            for part in mount_path.strip("/").split("/"):
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=current)
                inner = os.open(part, _FOLDER, dir_fd=current)
                os.close(current)
                current = inner
            return cls(current, staging)
        except OSError as error:
            os.close(current)
            raise NoPlace(f"{mount_path} is not a folder: {os.strerror(error.errno or 0).lower()}") from error

    @property
    def identity(self) -> int:
        """Tells another folder at the same place."""
        return os.fstat(self._root).st_ino

    def close(self) -> None:
        """Release the folder."""
        os.close(self._root)
        os.close(self._stage)

    def scan(self) -> Scan:
        """All files below, with what tells that they changed."""
        scan, seen = Scan(), 0
        waiting = ["/"]
        while waiting:
            prefix = waiting.pop()
            try:
                # By its whole path each time, so that few descriptors are open however wide the folder is.
                fd = self._parent(f"{prefix}x")
            except OSError as error:
                _note_unseen(scan, prefix, error)
                continue
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > MAX_ENTRIES:
                            scan.whole = False
                            return scan
                        if _note(scan, prefix, entry.name, fd):
                            waiting.append(f"{prefix}{entry.name}/")
            except OSError as error:
                _note_unseen(scan, prefix, error)
            finally:
                os.close(fd)
        return scan

    def read(self, path: str) -> Found | None:
        """The bytes of a file as text; None where there is no such file any more."""
        try:
            parent = self._parent(path)
        except OSError:
            return None
        try:
            fd = os.open(_name(path), _FILE, dir_fd=parent)
        except FileNotFoundError:
            return None
        except OSError as error:
            try:
                status = os.stat(_name(path), dir_fd=parent, follow_symlinks=False)
            except OSError:
                return None
            return Found(_signature(status), reason=f"it can't be read ({os.strerror(error.errno or 0).lower()})")
        finally:
            os.close(parent)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            return None
        with open(fd, "rb") as stream:
            if status.st_size > MAX_CONTENT_BYTES:
                return Found(_signature(status), reason=_too_large(status.st_size))
            data = stream.read(MAX_CONTENT_BYTES + 1)
            # What was written while it was read has another signature, and is looked at the next time.
            if len(data) > MAX_CONTENT_BYTES:
                return Found(_signature(status), reason=_too_large(len(data)))
        return _text(data, _signature(status))

    def put(self, path: str, data: bytes) -> Signature:
        """Place a file where nothing is; FileExistsError where something came to be, NoPlace where it can't be."""
        name = f"new-{secrets.token_hex(8)}"
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=self._stage)
        try:
            with open(fd, "wb") as stream:
                stream.write(data)
                stream.flush()
                if len(self._placed) < _FLUSH_ALL:
                    os.fsync(stream.fileno())
            parent = self._parent(path, make=True)
            try:
                # A link, since a rename would replace what the agent may just have written there.
                os.link(name, _name(path), src_dir_fd=self._stage, dst_dir_fd=parent, follow_symlinks=False)
                os.unlink(name, dir_fd=self._stage)
                self._placed.append(path)
                return _signature(os.stat(_name(path), dir_fd=parent, follow_symlinks=False))
            finally:
                os.close(parent)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in _NOT_A_PLACE:
                raise NoPlace(os.strerror(error.errno).lower()) from error
            raise
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._stage)

    def take(self, path: str) -> str | None:
        """Move what is at a path, unless it is a folder, out of the folder; the name that it has beside it.

        None where nothing is there. NoPlace where a folder is.
        """
        try:
            parent = self._parent(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, *_NOT_A_PLACE):
                return None
            raise
        try:
            status = os.stat(_name(path), dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                # An empty one holds nothing that could be lost.
                with suppress(OSError):
                    os.rmdir(_name(path), dir_fd=parent)
                    return None
                raise NoPlace("a folder is there")
            aside = f"aside-{secrets.token_hex(8)}"
            os.rename(_name(path), aside, src_dir_fd=parent, dst_dir_fd=self._stage)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return None
            raise
        finally:
            os.close(parent)
        return aside

    def aside_sha(self, aside: str) -> str:
        """The digest of what was moved aside; empty for what is no regular file."""
        try:
            fd = os.open(aside, _FILE, dir_fd=self._stage)
        except OSError:
            return ""
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return ""
        with open(fd, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def drop(self, aside: str) -> None:
        """Delete what was moved aside."""
        with suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=self._stage)

    def keep(self, aside: str, folder: Path, name: str) -> None:
        """Move what was moved aside to where the agent finds it."""
        target = os.open(folder, _FOLDER)
        try:
            os.rename(aside, name, src_dir_fd=self._stage, dst_dir_fd=target)
            os.fsync(target)
        finally:
            os.close(target)

    def leftovers(self) -> list[str]:
        """What a runner that died had moved aside and not dealt with."""
        names = os.listdir(self._stage)
        for name in names:
            if name.startswith("new-"):
                self.drop(name)
        return sorted(name for name in names if name.startswith("aside-"))

    def prune(self, path: str) -> None:
        """Remove the folders above a path that are empty now."""
        folder = path.rpartition("/")[0]
        while folder:
            try:
                parent = self._parent(folder)
            except OSError:
                return
            try:
                os.rmdir(_name(folder), dir_fd=parent)
            except OSError:
                return
            finally:
                os.close(parent)
            folder = folder.rpartition("/")[0]

    def flush(self) -> None:
        """Have what was placed on the disk, before it is said to be there."""
        if len(self._placed) >= _FLUSH_ALL and ctypes.CDLL(None).syncfs(self._root) != 0:
            os.sync()
        for folder in {path.rpartition("/")[0] for path in self._placed[:_FLUSH_ALL]}:
            with suppress(OSError):
                fd = self._parent(f"{folder}/x")
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        self._placed.clear()

    def _parent(self, path: str, *, make: bool = False) -> int:
        """A descriptor of the folder that a path is in."""
        current = os.dup(self._root)
        try:
            for part in path.split("/")[1:-1]:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=current)
                inner = os.open(part, _FOLDER, dir_fd=current)
                os.close(current)
                current = inner
        except BaseException:
            os.close(current)
            raise
        return current


def _note(scan: Scan, prefix: str, name: str, fd: int) -> bool:
    """Note one entry of a folder; true for a folder that is to be looked into."""
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    path = f"{prefix}{name}"
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        scan.odd[shown] = ("its name is not UTF-8", _signature(status))
        return False
    if stat.S_ISDIR(status.st_mode):
        if path.count("/") < MAX_DEPTH:
            return True
        scan.odd[path] = (f"it is nested deeper than {MAX_DEPTH} folders", _signature(status))
        scan.unseen.append(f"{path}/")
    elif stat.S_ISREG(status.st_mode):
        scan.files[path] = _signature(status)
    else:
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no regular file"
        scan.odd[path] = (f"it is {kind}", _signature(status))
    return False


def _note_unseen(scan: Scan, prefix: str, error: OSError) -> None:
    """A folder that was there a moment ago; one that is gone took its files with it, any other hides them."""
    if error.errno == errno.ENOENT:
        return
    scan.unseen.append(prefix)
    scan.odd[prefix[:-1]] = (f"the folder can't be looked into ({os.strerror(error.errno or 0).lower()})", (0, 0, 0, 0))


def _text(data: bytes, signature: Signature) -> Found:
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        content = data.decode()
    except UnicodeDecodeError:
        return Found(signature, sha256, reason="it is not UTF-8 text")
    if "\x00" in content:
        return Found(signature, sha256, reason="it holds NUL characters")
    return Found(signature, sha256, content)


def _too_large(size: int) -> str:
    return f"it has {size} bytes, and a memory holds at most {MAX_CONTENT_BYTES}"


def _signature(status: os.stat_result) -> Signature:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
