"""The files that an agent may see, under the paths by which it knows them.

A `FileView` maps the agent's absolute paths onto one folder of the host. Only
its visible roots exist for the file tools; some are read-only. Only regular
files are read, and opening never blocks (a fifo or a device is refused). Writes
are atomic: a temporary file beside the target, then a rename, mode kept.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.worker.tools.outcome import ToolFailed
from services.worker.tools.resolve import Opened, RootedOpener

_MAX_LINKS = 40
_FOLDER = os.O_RDONLY | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class VisibleRoot:
    """A folder that exists for the agent."""

    path: str
    writable: bool = True


class FileView:
    """One agent's file system. Thread-safe; close it when the session ends."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        cwd: str,
        roots: Sequence[VisibleRoot],
        use_kernel: bool | None = None,
    ) -> None:
        self._folder = os.fspath(folder)
        self.cwd = cwd
        self.roots = tuple(roots)
        self._opener = RootedOpener(folder, use_kernel=use_kernel)
        # Where a shell runs without its own view it prints host paths; they are
        # taken as the same files.
        self._host_prefix = os.path.realpath(folder).rstrip("/")

    def close(self) -> None:
        """Release the folder."""
        self._opener.close()

    def describe(self) -> dict[str, Any]:
        """Say in JSON how to make the same view in another process."""
        roots = [[root.path, root.writable] for root in self.roots]
        return {"folder": self._folder, "cwd": self.cwd, "roots": roots}

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> "FileView":
        """Make the view that `describe` told of."""
        roots = [VisibleRoot(path, writable) for path, writable in description["roots"]]
        return cls(description["folder"], cwd=description["cwd"], roots=roots)

    def absolute(self, path: str) -> str:
        """Return `path` as an absolute path of the view, links unresolved."""
        if not path.startswith("/"):
            path = f"{self.cwd.rstrip('/')}/{path}"
        elif path == self._host_prefix or path.startswith(self._host_prefix + "/"):
            path = path[len(self._host_prefix) :] or "/"
        return path

    def open_folder(self, path: str) -> Opened:
        """Open a folder for listing."""
        opened = self._open(path, _FOLDER)
        try:
            self._check_visible(path, opened.path, inner_ok=True)
        except BaseException:
            os.close(opened.fd)
            raise
        return opened

    def open_file(self, path: str) -> tuple[Opened, os.stat_result]:
        """Open a regular file for reading."""
        # Without O_NONBLOCK a fifo would wait for its other end.
        opened = self._open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            self._check_visible(path, opened.path)
            status = os.fstat(opened.fd)
            if stat.S_ISDIR(status.st_mode):
                raise ToolFailed(f"{path} is a folder")
            if not stat.S_ISREG(status.st_mode):
                raise ToolFailed(f"{path} is not a regular file")
        except BaseException:
            os.close(opened.fd)
            raise
        return opened, status

    def write_file(self, path: str, data: bytes) -> str:
        """Put `data` in place of the file at `path`; return its resolved path."""
        folder, name = self._open_parent(path)
        try:
            target = f"{folder.path.rstrip('/')}/{name}"
            self._check_writable(path, target)
            try:
                _replace(folder.fd, name, data)
            except OSError as error:
                raise ToolFailed(f"{path}: {reason(error)}") from error
        finally:
            os.close(folder.fd)
        return target

    def _open_parent(self, path: str) -> tuple[Opened, str]:
        """Open the folder that holds the file which `path` leads to, making it if need be."""
        where = self.absolute(path)
        for _ in range(_MAX_LINKS):
            parent, _, name = where.rstrip("/").rpartition("/")
            if name in ("", ".", "..") or where.endswith("/"):
                raise ToolFailed(f"{path} is a folder")
            folder = self._open_or_make(path, parent or "/")
            try:
                status = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
                if not stat.S_ISLNK(status.st_mode):
                    _refuse_irregular(path, status)
                    return folder, name
                target = os.readlink(name, dir_fd=folder.fd)
            except FileNotFoundError:
                return folder, name
            except BaseException:
                os.close(folder.fd)
                raise
            os.close(folder.fd)
            where = target if target.startswith("/") else f"{folder.path.rstrip('/')}/{target}"
        raise ToolFailed(f"{path}: too many levels of symbolic links")

    def _open_or_make(self, asked: str, folder: str) -> Opened:
        try:
            return self._opener.open(folder, _FOLDER)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._failure(asked, error) from error
        parent, _, name = folder.rstrip("/").rpartition("/")
        if name in (".", ".."):
            raise self._failure(asked, FileNotFoundError(errno.ENOENT, ""))
        above = self._open_or_make(asked, parent or "/")
        try:
            self._check_writable(asked, f"{above.path.rstrip('/')}/{name}")
            # A dangling link in place of the folder is left as it is.
            os.mkdir(name, 0o755, dir_fd=above.fd)
        except FileExistsError:
            pass
        except OSError as error:
            raise self._failure(asked, error) from error
        finally:
            os.close(above.fd)
        return self._open(folder, _FOLDER, asked=asked)

    def _open(self, path: str, flags: int, *, asked: str | None = None) -> Opened:
        try:
            return self._opener.open(self.absolute(path), flags)
        except OSError as error:
            raise self._failure(asked or path, error) from error

    def _failure(self, path: str, error: OSError) -> ToolFailed:
        if isinstance(error, FileNotFoundError):
            return self._not_found(path)
        return ToolFailed(f"{path}: {reason(error)}")

    def _not_found(self, path: str) -> ToolFailed:
        known = ", ".join(root.path for root in self.roots)
        return ToolFailed(f"{path}: no such file or folder (the file tools see {known})")

    def _check_visible(self, asked: str, resolved: str, *, inner_ok: bool = False) -> None:
        if self._root_of(resolved) is not None:
            return
        if inner_ok and any(root.path.startswith(resolved.rstrip("/") + "/") for root in self.roots):
            return
        raise self._not_found(asked)

    def _check_writable(self, asked: str, resolved: str) -> None:
        root = self._root_of(resolved)
        if root is None:
            raise self._not_found(asked)
        if not root.writable:
            raise ToolFailed(f"{asked}: {root.path} is read-only")
        if resolved == root.path:
            raise ToolFailed(f"{asked} is a folder")

    def _root_of(self, resolved: str) -> VisibleRoot | None:
        for root in self.roots:
            if resolved == root.path or resolved.startswith(root.path.rstrip("/") + "/"):
                return root
        return None


def reason(error: OSError) -> str:
    """Say in a few words what the system refused; never a path of the host."""
    return (os.strerror(error.errno) if error.errno else "input/output error").lower()


def _refuse_irregular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolFailed(f"{path} is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise ToolFailed(f"{path} is not a regular file")


def _replace(folder_fd: int, name: str, data: bytes) -> None:
    try:
        mode = stat.S_IMODE(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode) & 0o777
    except FileNotFoundError:
        mode = 0o644
    temporary = f".{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=folder_fd)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(fd, mode)
        os.rename(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder_fd)
        raise
