"""The data folder of `up`: what lies where, who holds it, and the secrets made in it on the first run.

Two locks, both dropped by the kernel when their holders die: `up.lock` is the supervisor's; `services.lock` is
inherited by every service, so a new `up` can tell when the last one of a killed predecessor has gone.
"""

import contextlib
import hashlib
import json
import os
import secrets
import signal
import stat
from pathlib import Path

from cli.errors import CannotStart
from kit.embedded import processes
from kit.embedded.locks import try_exclusive

_LONGEST_SOCKET = "scheduler.sock"
_SOCKET_PATH_LIMIT = 100
_LOG_LIMIT_BYTES = 10 * 1024 * 1024
_LOGS_KEPT = 3


class DataFolder:
    """One platform's folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._held: int | None = None
        self.services_lock: int | None = None

    @property
    def secret_key(self) -> Path:
        return self.path / "secret.key"

    def first_secret(self) -> bytes:
        """The secret that the key began with, whatever versions it has by now."""
        content = self.secret_key.read_bytes().strip()
        return str(json.loads(content)["versions"][0]["secret"]).encode() if content.startswith(b"{") else content

    @property
    def internal_token(self) -> Path:
        return self.path / "internal.token"

    @property
    def run(self) -> Path:
        """Where the sockets are; outside the folder when its path is too long for a socket's name."""
        inside = self.path / "run"
        if len(os.fsencode(inside / _LONGEST_SOCKET)) <= _SOCKET_PATH_LIMIT:
            return inside
        return Path("/tmp") / f"managed-agents-{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]}"

    def log(self, service: str) -> Path:
        return self.path / "logs" / f"{service}.log"

    def holder(self) -> str | None:
        """Pid of the `up` that uses this folder now."""
        lock = self.path / "up.lock"
        if not os.access(lock, os.R_OK | os.W_OK):
            return None
        descriptor = try_exclusive(lock)
        if descriptor is None:
            return lock.read_text().strip() or "unknown"
        os.close(descriptor)
        return None

    def take(self) -> None:
        """Make the folder and hold it, or CannotStart with the reason."""
        try:
            for folder in (self.path, self.path / "logs", self.run):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = try_exclusive(self.path / "up.lock")
        except OSError as error:
            raise CannotStart(
                f"The data directory {self.path} can't be used: {error.strerror} ({error.filename}). "
                "Name one that this user may write with --data-dir."
            ) from error
        if self._held is None:
            pid = (self.path / "up.lock").read_text().strip() or "unknown"
            raise CannotStart(
                f"The data directory {self.path} is in use by another `managed-agents up` (pid {pid}). "
                "Stop that one, or name another directory with --data-dir."
            )
        os.ftruncate(self._held, 0)
        os.write(self._held, f"{os.getpid()}\n".encode())
        self._check_run()

    def release(self) -> None:
        """Give the folder back; one that was never taken is left alone."""
        if self.services_lock is not None:
            self._clear()
            if self.run.parent != self.path:
                with contextlib.suppress(OSError):
                    self.run.rmdir()
        for descriptor in (self._held, self.services_lock):
            if descriptor is not None:
                os.close(descriptor)
        self._held = self.services_lock = None

    def _check_run(self) -> None:
        found = self.run.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise CannotStart(f"{self.run} must be a private folder of this user; remove it and start again.")

    def take_services(self) -> bool:
        """Whether no service of an earlier run is left; from then on the lock is ours, to be inherited by ours."""
        self.services_lock = try_exclusive(self.path / "services.lock")
        if self.services_lock is None:
            return False
        self._clear()
        return True

    def _clear(self) -> None:
        """Remove what only means something while services run."""
        for path in (self.services_pids, *self.run.glob("*.sock")):
            path.unlink(missing_ok=True)

    def kill_leftovers(self) -> None:
        for pid in self._recorded_pids():
            processes.send(pid, signal.SIGKILL)

    @property
    def services_pids(self) -> Path:
        return self.path / "services.pids"

    def record_pid(self, pid: int) -> None:
        with os.fdopen(os.open(self.services_pids, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(f"{pid}\n")

    def _recorded_pids(self) -> list[int]:
        if not self.services_pids.exists():
            return []
        recorded = [int(line) for line in self.services_pids.read_text().split() if line.isdigit()]
        return [pid for pid in recorded if processes.runs(pid, program="", argument="services.")]

    def make_secrets(self) -> None:
        """Files that only this user reads, made once and kept."""
        for path in (self.secret_key, self.internal_token):
            if not path.exists():
                draft = path.with_suffix(".new")
                draft.unlink(missing_ok=True)
                with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(secrets.token_urlsafe(48) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(path)
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)

    def rotate_log(self, service: str, *, limit_bytes: int = _LOG_LIMIT_BYTES) -> None:
        """Set a log aside that has grown past the limit. A writer keeps its file: it is emptied, not replaced."""
        log = self.log(service)
        if not log.exists() or log.stat().st_size <= limit_bytes:
            return
        draft = log.with_suffix(".log.new")
        try:
            draft.touch(mode=0o600)
            draft.write_bytes(log.read_bytes())
        except OSError:
            # A full disk: the log waits for the next look, and what is kept already is not touched.
            draft.unlink(missing_ok=True)
            return
        for number in range(_LOGS_KEPT - 1, 0, -1):
            older = log.with_suffix(f".log.{number}")
            if older.exists():
                older.replace(log.with_suffix(f".log.{number + 1}"))
        draft.replace(log.with_suffix(".log.1"))
        os.truncate(log, 0)
