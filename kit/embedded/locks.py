"""Locks between processes that the kernel drops when their holder dies, however it dies."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from kit.embedded.errors import EmbeddedServerError
from kit.embedded.processes import wait_until


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def exclusive(path: Path, *, timeout_seconds: float = 60.0) -> Iterator[None]:
    """Hold `path` alone; another holder is waited for."""
    descriptor = _open(path)
    try:
        if not wait_until(lambda: _try(descriptor, fcntl.LOCK_EX), timeout_seconds):
            raise EmbeddedServerError(f"{path} stayed locked by another process for {timeout_seconds:.0f} seconds.")
        yield
    finally:
        os.close(descriptor)


def try_exclusive(path: Path) -> int | None:
    """The descriptor of a lock on `path`, held until every copy of it is closed; None while another holds it."""
    descriptor = _open(path)
    if _try(descriptor, fcntl.LOCK_EX):
        return descriptor
    os.close(descriptor)
    return None


class UserCount:
    """How many processes use a server: each holds a shared lock on one file, so a killed one no longer counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def joined(self) -> bool:
        return self._descriptor is not None

    def join(self) -> None:
        if self._descriptor is None:
            descriptor = _open(self._path)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._descriptor = descriptor

    def leave(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def empty(self) -> bool:
        """Whether nobody uses the server. Only meaningful while the start lock is held."""
        descriptor = _open(self._path)
        try:
            return _try(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)
