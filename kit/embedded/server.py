"""What both embedded servers share: who starts, who joins, who stops.

Every start and stop happens under one exclusive lock of the data folder. The server runs in a session of its own, so
a Ctrl-C at the terminal reaches only our services, which still need the server while they drain.
"""

import abc
import contextlib
import os
import signal
import subprocess
from pathlib import Path

from kit.embedded import processes
from kit.embedded.errors import EmbeddedServerError
from kit.embedded.locks import UserCount, exclusive

_LOG_LIMIT_BYTES = 10 * 1024 * 1024
_STOP_SECONDS = 20.0

# Children that outlived our use of them: kept so that they are reaped, and not reported as forgotten.
_left_running: list[subprocess.Popen[bytes]] = []


class SharedServer(abc.ABC):
    """One server per data folder, shared by any number of processes."""

    program: str
    start_seconds = 60.0

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = Path(data_dir).absolute()
        self._users = UserCount(self.data_dir / "users")
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return self.data_dir / f"{self.program}.log"

    def start(self) -> str:
        """Start the server or join the running one, and return its address. A second call brings a dead one back."""
        self._prepare_folder()
        with exclusive(self.data_dir / "start.lock"):
            self._users.join()
            try:
                if self.pid() is None:
                    self._disown()
                    self._launch()
                return self.address()
            except BaseException:
                self._leave()
                raise

    def stop(self) -> None:
        """Leave the server; whoever leaves last stops it."""
        if not self._users.joined:
            return
        with exclusive(self.data_dir / "start.lock"):
            self._leave()

    def kill(self) -> None:
        """Kill the server where it stands, as a crash would; for tests of what happens then."""
        pid = self.pid()
        if pid is not None:
            processes.send(pid, signal.SIGKILL)
            self._await_end(pid, _STOP_SECONDS)
        self._reap()

    @abc.abstractmethod
    def pid(self) -> int | None:
        """The pid of the live server of this folder."""

    @abc.abstractmethod
    def address(self) -> str:
        """Where the running server is reached."""

    @abc.abstractmethod
    def _launch(self) -> None:
        """Start the server and wait until it serves. Called under the lock, with none running."""

    def _prepare_folder(self) -> None:
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedServerError(f"The data folder {self.data_dir} can't be made: {error.strerror}.") from error
        if not os.access(self.data_dir, os.W_OK | os.X_OK):
            raise EmbeddedServerError(f"The data folder {self.data_dir} is not writable for this user.")

    def _leave(self) -> None:
        self._users.leave()
        pid = self.pid()
        if pid is not None and self._users.empty():
            self._terminate(pid)
        self._reap()
        self._disown()

    def _terminate(self, pid: int) -> None:
        for number, patience in ((signal.SIGINT, _STOP_SECONDS), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
            processes.send(pid, number)
            if self._await_end(pid, patience):
                return

    def _await_end(self, pid: int, patience_seconds: float) -> bool:
        """A child of ours is reaped here, so that nobody takes its zombie for a server."""

        def gone() -> bool:
            if self._child is not None and self._child.pid == pid:
                return self._child.poll() is not None
            return processes.ended(pid)

        return processes.wait_until(gone, patience_seconds)

    def _spawn(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Run a server program in its own session, with its output in the log."""
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_LIMIT_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        with open(self.log_path, "ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment,
                start_new_session=True,
            )

    def _log_mark(self) -> int:
        try:
            return self.log_path.stat().st_size
        except OSError:
            # Not there yet, or not ours to see: who starts the server is told then.
            return 0

    def _failed(self, doing: str, log_mark: int) -> EmbeddedServerError:
        with contextlib.suppress(OSError), open(self.log_path, "rb") as log:
            log.seek(log_mark)
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            if lines:
                said = "\n  ".join(lines[-6:])
                return EmbeddedServerError(f"{self.program} failed {doing} (log: {self.log_path}):\n  {said}")
        return EmbeddedServerError(f"{self.program} failed {doing}; its log {self.log_path} says nothing.")

    def _disown(self) -> None:
        if self._child is not None:
            _left_running.append(self._child)
            self._child = None
        self._reap()

    def _reap(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        _left_running[:] = [child for child in _left_running if child.poll() is None]
