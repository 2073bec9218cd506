"""A NATS server of our own in a data folder: loopback only, JetStream on disk, shared by processes.

The server picks a free port itself and writes it to a file, so there is no race for one; a restart takes the former
port again where it can, so that connected clients find their way back. Programs in a sandbox could reach loopback,
hence a random token guards it.

A stream whose file met a full disk takes no message any more, also when there is room again, until its server starts
anew. The server tells so only in its log, so whoever watches over it calls `end_broken` now and then.
"""

import json
import os
import re
import secrets
import signal
from pathlib import Path

from kit.embedded import binaries, processes
from kit.embedded.errors import EmbeddedServerError
from kit.embedded.locks import exclusive
from kit.embedded.server import SharedServer

_ANY_PORT = -1
# A message that a stream could not store for want of its file: the operation, the path and what the system said.
_BROKEN = re.compile(rb"failed to store a msg on stream .*: \w+ /.*: ")
_ROOM_BYTES = 16 * 1024 * 1024

_CONFIGURATION = """\
host: "127.0.0.1"
port: {port}
authorization {{ token: "{token}" }}
ports_file_dir: "{ports}"
pid_file: "{pid_file}"
max_payload: 8MB
max_pending: 64MB
write_deadline: "10s"
jetstream {{
  store_dir: "{store}"
  max_memory_store: 64MB
  max_file_store: 8GB
  sync_interval: "10s"
}}
"""


class EmbeddedNats(SharedServer):
    """The server of one folder. `start()` returns its URL, token included."""

    program = "nats-server"
    start_seconds = 30.0

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._configuration = self.data_dir / "nats.conf"
        self._pid_file = self.data_dir / "nats.pid"
        self._ports = self.data_dir / "ports"
        self._last_port = self.data_dir / "port"
        self._read_log = self._log_mark()
        self._broken = False

    def pid(self) -> int | None:
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if processes.runs(pid, program=self.program, argument=str(self._configuration)) else None

    def end_broken(self) -> bool:
        """End a server with a stream that takes nothing any more, once its disk has room; whether it did."""
        self._broken = self._broken or _BROKEN.search(self._new_log()) is not None
        if not self._broken or (pid := self.pid()) is None or not self._has_room():
            return False
        with exclusive(self.data_dir / "start.lock"):
            self._terminate(pid)
            self._reap()
        self._broken = False
        self._read_log = self._log_mark()
        return True

    def _new_log(self) -> bytes:
        """What the server wrote since the last look."""
        mark = self._log_mark()
        if mark == self._read_log:
            return b""
        with open(self.log_path, "rb") as log:
            log.seek(self._read_log if mark > self._read_log else 0)
            read = log.read()
            self._read_log = log.tell()
        return read

    def _has_room(self) -> bool:
        found = os.statvfs(self.data_dir)
        return found.f_bavail * found.f_frsize > _ROOM_BYTES

    def address(self) -> str:
        pid = self.pid()
        port = self._port_of(pid) if pid is not None else None
        if port is None:
            raise EmbeddedServerError(f"nats-server of {self.data_dir} ended right after its start.")
        return f"nats://{self._token()}@127.0.0.1:{port}"

    def _launch(self) -> None:
        program = binaries.nats_server()
        processes.wait_until(self._predecessor_gone, 5.0)
        for pid in processes.started_with(str(self._configuration), program=self.program):
            # Its folder was deleted under it, pid file included.
            processes.send(pid, signal.SIGKILL)
        former = self._former_port()
        if former is not None and self._serve(program, former):
            return
        mark = self._log_mark()
        if not self._serve(program, _ANY_PORT):
            raise self._failed("to start", mark)

    def _predecessor_gone(self) -> bool:
        """A killed server loses its arguments a moment before its port; without this wait the port would change."""
        try:
            return not processes.runs(int(self._pid_file.read_text()), program=self.program)
        except (OSError, ValueError):
            return True

    def _serve(self, program: Path, port: int) -> bool:
        """Whether a server came up; it may not when another program took the port meanwhile."""
        self._ports.mkdir(mode=0o700, exist_ok=True)
        for stale in (self._pid_file, *self._ports.iterdir()):
            stale.unlink(missing_ok=True)
        self._write_private(
            self._configuration,
            _CONFIGURATION.format(
                port=port,
                token=self._token(),
                ports=self._ports,
                pid_file=self._pid_file,
                store=self.data_dir / "jetstream",
            ),
        )
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.data_dir)}
        child = self._child = self._spawn([str(program), "-c", str(self._configuration)], environment)
        processes.wait_until(
            lambda: child.poll() is not None or self._port_of(child.pid) is not None, self.start_seconds
        )
        bound = self._port_of(child.pid)
        if child.poll() is not None or bound is None or self.pid() is None:
            if child.poll() is None:
                child.kill()
                child.wait()
            return False
        self._write_private(self._last_port, str(bound))
        return True

    def _port_of(self, pid: int) -> int | None:
        """The client port as the server wrote it, or None while it hasn't (or has only half)."""
        try:
            written = json.loads((self._ports / f"nats-server_{pid}.ports").read_text())
            return int(written["nats"][0].rpartition(":")[2])
        except (OSError, ValueError, LookupError):
            return None

    def _former_port(self) -> int | None:
        try:
            return int(self._last_port.read_text())
        except (OSError, ValueError):
            return None

    def _token(self) -> str:
        path = self.data_dir / "token"
        if not path.exists():
            self._write_private(path, secrets.token_urlsafe(32))
        return path.read_text()

    def _write_private(self, path: Path, text: str) -> None:
        """Whole or not at all, and never readable for others."""
        draft = path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        draft.replace(path)
