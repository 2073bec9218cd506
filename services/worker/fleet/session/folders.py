"""Each session's folder on this machine, and who is at it.

A folder is held by a lock that the kernel lets go when its worker dies, however it dies. One whose lock is free but was
never given back was left by a killed worker: nobody knows how far its work had come, so it is moved aside, reported,
and the session goes on in a fresh one. A session whose item ended in order finds its files again.
"""

import contextlib
import fcntl
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.sandbox.folders import remove_tree

SESSIONS = "sessions"
_HELD = ".held"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_NOTE_BYTES = 4096


class SessionBusy(Exception):
    """Another worker of this machine is at the session."""


@dataclass(frozen=True, slots=True)
class LeftFolder:
    """What a killed worker left, and the call that it ran, where it ran one."""

    session_id: str
    path: Path
    call_id: str | None
    worker_id: str


class HeldFolder:
    """A session's folder, held. `note_call` and `release` belong to its holder."""

    def __init__(
        self, session_id: str, path: Path, lock: Path, fd: int, worker_id: str, left: LeftFolder | None
    ) -> None:
        self.session_id = session_id
        self.path = path
        self.left = left
        self._lock = lock
        self._fd = fd
        self._worker_id = worker_id

    def note_call(self, call_id: str | None) -> None:
        """Have it on the disk which call is about to run, so that nobody runs it a second time after a crash."""
        _write_note(self._fd, {"worker_id": self._worker_id, "call_id": call_id})

    def release(self, *, remove: bool = False) -> None:
        """Give it back in order; with `remove` the files go too."""
        if remove:
            with contextlib.suppress(OSError):
                remove_tree(self.path)
        with contextlib.suppress(OSError):
            os.unlink(self._lock)
        os.close(self._fd)

    def abandon(self) -> None:
        """Let go of it as it is: whoever comes next is to look at it."""
        os.close(self._fd)


class SessionFolders:
    """All of them, below one workdir. Blocking: call it in a thread."""

    def __init__(self, workdir: Path, worker_id: str) -> None:
        self.root = workdir / SESSIONS
        self._held = self.root / _HELD
        self._worker_id = worker_id
        for folder in (self.root, self._held):
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.is_symlink():
                raise NotADirectoryError(0, "is a link", str(folder))

    def left(self) -> list[LeftFolder]:
        """Folders whose worker was killed and which nobody has asked for since."""
        found: list[LeftFolder] = []
        for name in sorted(os.listdir(self._held)):
            if _NAME.fullmatch(name) is None:
                continue
            fd = os.open(self._held / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append(self._described(name, self.root / name, _read_note(fd)))
            except BlockingIOError:
                pass
            finally:
                os.close(fd)
        return found

    def hold(self, session_id: str) -> HeldFolder:
        """Take a session's folder. SessionBusy where somebody is at it; ValueError for what is no id."""
        if _NAME.fullmatch(session_id) is None:
            raise ValueError(f"{session_id[:100]!r} cannot name a folder")
        lock, path = self._held / session_id, self.root / session_id
        while True:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise SessionBusy(f"another worker on this machine is at {session_id}") from None
            # Between opening and locking, its former holder may have given it back and taken the name away.
            if _same(fd, lock):
                break
            os.close(fd)
        try:
            note = _read_note(fd)
            left = self._move_aside(session_id, path, note) if note else None
            held = HeldFolder(session_id, path, lock, fd, self._worker_id, left)
            held.note_call(None)
            return held
        except BaseException:
            os.close(fd)
            raise

    def _move_aside(self, session_id: str, path: Path, note: dict[str, Any]) -> LeftFolder:
        aside = self.root / f"{session_id}.left-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(2).hex()}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, aside)
        return self._described(session_id, aside, note)

    def _described(self, session_id: str, path: Path, note: dict[str, Any]) -> LeftFolder:
        call_id = note.get("call_id")
        return LeftFolder(
            session_id, path, call_id if isinstance(call_id, str) else None, str(note.get("worker_id") or "")
        )


def _same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _read_note(fd: int) -> dict[str, Any]:
    try:
        note = json.loads(os.pread(fd, _NOTE_BYTES, 0) or b"{}")
    except ValueError:
        # It was being written when its writer died.
        return {"worker_id": "unknown"}
    return note if isinstance(note, dict) else {}


def _write_note(fd: int, note: dict[str, Any]) -> None:
    data = json.dumps(note).encode()
    os.pwrite(fd, data.ljust(_NOTE_BYTES), 0)
    os.fdatasync(fd)
