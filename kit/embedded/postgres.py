"""A PostgreSQL server of our own in a data folder: reached by a unix socket only, durable, shared by processes.

Crash behaviour: a stale postmaster.pid (dead, zombie, or recycled by another program) is removed under the lock and
only after no live postgres works in the folder; an initdb that was cut off never served anyone and is made anew.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from kit.embedded import binaries, processes, unprivileged
from kit.embedded.errors import EmbeddedServerError
from kit.embedded.server import SharedServer

SUPERUSER = "postgres"
_SOCKET_NAME = ".s.PGSQL.5432"
_SOCKET_PATH_LIMIT = 100
_READY_LINE = 7

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "120",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "wal_compression": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    "autovacuum_naptime": "15s",
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.05",
    "autovacuum_vacuum_cost_limit": "1000",
    # Short statements over small results: planning for parallel workers and compiling only cost here.
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
    "timezone": "UTC",
}


class EmbeddedPostgres(SharedServer):
    """The server of one folder. `start()` returns the superuser's DSN."""

    program = "postgres"

    def __init__(self, data_dir: Path, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._cluster = self.data_dir / "cluster"
        self._initialised = self.data_dir / "init.ok"

    def pid(self) -> int | None:
        try:
            pid = int((self._cluster / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None
        return pid if processes.runs(pid, program="postgres", folder=self._cluster) else None

    def address(self) -> str:
        return self.address_of(SUPERUSER, "postgres")

    def address_of(self, user: str, database: str) -> str:
        """Where a role reaches a database of this server."""
        return dsn(user=user, database=database, host=str(self.socket_dir))

    def once(self, name: str, prepare: Callable[[], object]) -> None:
        """Do something to the running cluster that lasts. The note that it was done lies in the cluster, and goes
        with it; one that is lost only makes it be done again, so `prepare` must bear that."""
        note = self._cluster / f"{name}.done"
        if not note.exists():
            prepare()
            note.touch(mode=0o600)

    def _leave(self) -> None:
        super()._leave()
        if self.socket_dir.parent != self.data_dir and self.pid() is None:
            with contextlib.suppress(OSError):
                self.socket_dir.rmdir()

    @property
    def socket_dir(self) -> Path:
        """In the data folder, unless its path is too long for a socket's name."""
        inside = self.data_dir / "run"
        if len(os.fsencode(inside / _SOCKET_NAME)) <= _SOCKET_PATH_LIMIT:
            return inside
        name = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:16]
        return Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp") / f"epg-{name}"

    def _launch(self) -> None:
        folder = binaries.postgres_folder()
        self._make_socket_dir()
        self._clear_remains()
        if not self._initialised.exists():
            self._initialise(folder)
        self._check_version(folder)
        mark = self._log_mark()
        command = [str(folder / "postgres"), "-D", str(self._cluster)]
        for name, value in {**self._settings, "unix_socket_directories": str(self.socket_dir)}.items():
            command += ["-c", f"{name}={value}"]
        child = self._child = self._spawn(self._as_ordinary_user(command), _environment())
        up = processes.wait_until(lambda: child.poll() is not None or self._ready(), self.start_seconds)
        if child.poll() is not None:
            raise self._failed("to start", mark)
        if not up:
            self._terminate(child.pid)
            raise self._failed(f"to become ready within {self.start_seconds:.0f} seconds", mark)

    def _ready(self) -> bool:
        try:
            lines = (self._cluster / "postmaster.pid").read_text().split("\n")
        except OSError:
            return False
        return len(lines) > _READY_LINE and lines[_READY_LINE].strip() == "ready" and self.pid() is not None

    def _initialise(self, folder: Path) -> None:
        """Make the database cluster. The marker is written last, so a cut-off attempt is thrown away."""
        shutil.rmtree(self._cluster, ignore_errors=True)
        self._cluster.mkdir(mode=0o700)
        mark = self._log_mark()
        command = [str(folder / "initdb"), "-D", str(self._cluster), "-U", SUPERUSER, "--auth=trust", "-E", "UTF8"]
        if _major_version(folder) >= 17:
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        command += ["--locale=C"]
        if self._settings["fsync"] == "off":
            command += ["--no-sync"]
        child = self._spawn(self._as_ordinary_user(command), _environment())
        try:
            code = child.wait(timeout=self.start_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if code != 0:
            raise self._failed("to make a new database", mark)
        self._initialised.touch(mode=0o600)

    def _check_version(self, folder: Path) -> None:
        made_by = (self._cluster / "PG_VERSION").read_text().strip()
        ours = str(_major_version(folder))
        if made_by != ours:
            raise EmbeddedServerError(
                f"The database in {self._cluster} was made by PostgreSQL {made_by}, but the programs in {folder} are "
                f"version {ours}. Point PG_BIN at PostgreSQL {made_by}, or choose another data directory."
            )

    def _clear_remains(self) -> None:
        """After a crash: let orphaned backends end, then remove the lock files that no live server stands behind.

        A server whose folder was deleted under it also ends here: later it would take the new one's socket with it.
        """

        def remains() -> list[int]:
            return processes.started_in(self._cluster, program="postgres")

        def gone() -> bool:
            return not remains()

        for pid in processes.started_with(str(self._cluster), program="initdb"):
            # First of all: one that sees its own child die would empty the folder behind our back.
            processes.send(pid, signal.SIGKILL)
        # Backends end by themselves once they see that the postmaster is gone.
        for number, patience in ((signal.SIGCONT, 3.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
            for pid in remains():
                processes.send(pid, number)
            if processes.wait_until(gone, patience, every_seconds=0.02):
                break
        else:
            raise EmbeddedServerError(f"Processes of an earlier PostgreSQL in {self._cluster} can't be ended.")
        for path in (self._cluster / "postmaster.pid", self.socket_dir / f"{_SOCKET_NAME}.lock"):
            path.unlink(missing_ok=True)

    def _make_socket_dir(self) -> None:
        folder = self.socket_dir
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if folder.is_symlink() or (os.getuid() != 0 and found.st_uid != os.getuid()) or found.st_mode & 0o077:
            raise EmbeddedServerError(f"{folder} must be a private folder of this user; remove it and start again.")

    def _as_ordinary_user(self, command: list[str]) -> list[str]:
        if os.getuid() != 0:
            return command
        script = unprivileged.__file__
        return [sys.executable, "-I", "-S", script, str(self.data_dir), str(self.socket_dir), "--", *command]


def dsn(*, user: str, database: str, password: str = "", **options: str) -> str:
    """A libpq URL; option `host` may be the folder of a unix socket."""

    def quoted(text: str) -> str:
        return quote(text, safe="")

    secret = f":{quoted(password)}" if password else ""
    query = "&".join(f"{name}={quoted(value)}" for name, value in options.items() if value)
    return f"postgresql://{quoted(user)}{secret}@/{quoted(database)}?{query}"


def _environment() -> dict[str, str]:
    """Nothing of ours reaches the server: its surroundings must not depend on who happened to start it."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC", "HOME": "/"}


def _major_version(folder: Path) -> int:
    said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.split()[2].split(".")[0].split("devel")[0].split("beta")[0])
