"""Opening paths beneath a folder as if it were the root of the file system.

`..` stops at the folder and absolute links start at it, as after a chroot, so
no name and no link leads outside, whatever changes while the path is walked.
Linux does it in the kernel (`openat2` with RESOLVE_IN_ROOT); where the call is
missing or refused, a walk does the same component by component, never following
a link that it has not read itself.
"""

import ctypes
import errno
import os
import stat
import sys
from dataclasses import dataclass

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
_MAX_LINKS = 40
# The kernel answers EAGAIN when something was renamed under its feet.
_RENAME_RETRIES = 64


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@dataclass(frozen=True, slots=True)
class Opened:
    """An open descriptor, and the path below the root that it was reached by.

    The path has no links and no `..` in it.
    """

    fd: int
    path: str


class RootedOpener:
    """Opens paths below one root folder. Owns the root's descriptor."""

    def __init__(self, root: str | os.PathLike[str], *, use_kernel: bool | None = None) -> None:
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._host_path = os.path.realpath(root)
        self.uses_kernel = _kernel_can() if use_kernel is None else use_kernel

    def close(self) -> None:
        """Release the root; nothing can be opened afterwards."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def open(self, path: str, flags: int) -> Opened:
        """Open an existing `path`; raises OSError as `open` does."""
        flags |= os.O_CLOEXEC | os.O_NOCTTY
        if not self.uses_kernel:
            return self._walk(path, flags)
        fd = _openat2(self._fd, path, flags)
        try:
            return Opened(fd, self._path_of(fd))
        except BaseException:
            os.close(fd)
            raise

    def _path_of(self, fd: int) -> str:
        host = os.readlink(f"/proc/self/fd/{fd}")
        if host == self._host_path:
            return "/"
        prefix = self._host_path.rstrip("/") + "/"
        if not host.startswith(prefix) or host.endswith(" (deleted)"):
            # It was removed while it was being opened; to the agent it is gone.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return "/" + host[len(prefix) :]

    def _walk(self, path: str, flags: int) -> Opened:
        trail: list[tuple[str, int]] = []
        pending = _parts(path)
        must_be_folder = _names_folder(path)
        links = 0
        try:
            while pending:
                name = pending.pop()
                if name == "..":
                    if trail:
                        os.close(trail.pop()[1])
                    continue
                parent = trail[-1][1] if trail else self._fd
                target = _read_link(name, parent)
                if target is not None:
                    links += 1
                    if links > _MAX_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    if target.startswith("/"):
                        _close_all(trail)
                    must_be_folder |= not pending and _names_folder(target)
                    pending += _parts(target)
                    continue
                last = not pending
                how = flags if last else os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                if last and must_be_folder:
                    how |= os.O_DIRECTORY
                trail.append((name, os.open(name, how | os.O_NOFOLLOW, dir_fd=parent)))
            return self._take(trail, flags)
        finally:
            _close_all(trail)

    def _take(self, trail: list[tuple[str, int]], flags: int) -> Opened:
        where = "/" + "/".join(name for name, _ in trail)
        fd = trail.pop()[1] if trail else os.open(".", flags, dir_fd=self._fd)
        return Opened(fd, where)


def _parts(path: str) -> list[str]:
    """The components that move, last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _names_folder(path: str) -> bool:
    return path.endswith(("/", "/.")) or path == "."


def _read_link(name: str, parent: int) -> str | None:
    if not stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        return None
    return os.readlink(name, dir_fd=parent)


def _close_all(trail: list[tuple[str, int]]) -> None:
    while trail:
        os.close(trail.pop()[1])


_libc: ctypes.CDLL | None = None


def _openat2(root_fd: int, path: str, flags: int) -> int:
    global _libc
    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
    how = _OpenHow(flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    # A relative "" means nothing to the kernel; the root itself is "/".
    name = os.fsencode(path) or b"/"
    for _ in range(_RENAME_RETRIES):
        fd = _libc.syscall(_OPENAT2, root_fd, ctypes.c_char_p(name), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            raise OSError(code, os.strerror(code))
    raise OSError(errno.EAGAIN, "the folder keeps changing while it is read")


_kernel_answer: bool | None = None


def _kernel_can() -> bool:
    """Whether openat2 works here: Linux 5.6 or newer, and no filter against it."""
    global _kernel_answer
    if _kernel_answer is None:
        _kernel_answer = sys.platform == "linux" and os.path.isdir("/proc/self/fd") and _probe()
    return _kernel_answer


def _probe() -> bool:
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(_openat2(root, "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        os.close(root)
    return True
