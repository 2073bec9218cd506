"""The runner's side of the launcher process: starts shells, watches, kills.

Owns one launcher process, started with the first sandbox and again if it died.
Dropping it (or the death of this process) ends every sandbox.
"""

import asyncio
import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.waiting import within
from services.worker.tools import ShellUnavailable

_PROGRAM = Path(__file__).with_name("launcher.py")
_START_SECONDS = 10.0
_DEATH_POLL_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What the sandbox's process is to be."""

    argv: list[str]
    env: dict[str, str]
    cwd: str = "/"
    # Files to write the child's own pid to.
    cgroups: list[str] = field(default_factory=list)
    # Listen on this port of lo in a network of its own; 0 for none.
    network_port: int = 0
    landlock: dict[str, list[str]] | None = None
    # A random word in the environment by which strays are found; empty with a process namespace.
    tag: str = ""


class LaunchedShell:
    """One sandbox process with the shell's pipes; a `ShellProcess`."""

    def __init__(self, launcher: "Launcher", identity: int, fds: tuple[int, int, int], exit_fd: int) -> None:
        self.control_fd, self.output_fd, self.status_fd = fds
        self.listener: socket.socket | None = None
        # The first process of the sandbox, as the host counts; 0 until it has started.
        self.pid = 0
        self._launcher = launcher
        self._identity = identity
        self._exit_fd = exit_fd
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int | None] = self._loop.create_future()
        self._loop.add_reader(exit_fd, self._on_exit)

    @property
    def ended(self) -> bool:
        """Whether the first process has ended; its pid may be another's by now."""
        return self._exit.done()

    async def exited(self) -> None:
        """Wait until the first process has ended."""
        await asyncio.shield(self._exit)

    def kill(self) -> None:
        """Kill everything in the sandbox."""
        self._launcher.kill(self._identity)

    async def wait(self) -> int | None:
        """Wait for the exit code, and until the last process has let go of the pipes."""
        code = await asyncio.shield(self._exit)
        poll = select.poll()
        poll.register(self.control_fd, 0)
        for seconds in itertools.chain(_DEATH_POLL_SECONDS, itertools.repeat(0.03)):
            # No reader is left on the shell's standard input: nobody is left at all.
            if poll.poll(0):
                break
            await asyncio.sleep(seconds)
        return code

    def _on_exit(self) -> None:
        data = os.read(self._exit_fd, 16)
        self._loop.remove_reader(self._exit_fd)
        os.close(self._exit_fd)
        if not self._exit.done():
            self._exit.set_result(int(data) if data else None)


class Launcher:
    """Talks to the launcher process. Use from one event loop."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int:
        """The launcher's own process, to which strays come; 0 before the first sandbox."""
        return self._process.pid if self._process else 0

    async def spawn(self, request: LaunchRequest) -> LaunchedShell:
        """Start a sandbox; raises ShellUnavailable with the reason."""
        identity = next(self._ids)
        stdin_read, control_fd = os.pipe2(os.O_CLOEXEC)
        output_fd, output_write = os.pipe2(os.O_CLOEXEC)
        status_fd, status_write = os.pipe2(os.O_CLOEXEC)
        exit_fd, exit_write = os.pipe2(os.O_CLOEXEC)
        reply, reply_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs = [stdin_read, output_write, status_write, exit_write, reply_child.fileno()]
        for fd in (control_fd, output_fd, status_fd, exit_fd):
            os.set_blocking(fd, False)
        reply.setblocking(False)
        message = {"op": "spawn", "id": identity, **_as_message(request)}
        try:
            self._send(message, theirs)
        except OSError as error:
            for fd in (control_fd, output_fd, status_fd, exit_fd):
                os.close(fd)
            reply.close()
            raise ShellUnavailable(f"the launcher cannot be reached: {error.strerror}") from error
        finally:
            for fd in theirs[:4]:
                os.close(fd)
            reply_child.close()
        shell = LaunchedShell(self, identity, (control_fd, output_fd, status_fd), exit_fd)
        try:
            with reply:
                shell.pid, shell.listener = await within(_await_ready(reply), _START_SECONDS)
        except BaseException as error:
            shell.kill()
            for fd in (control_fd, output_fd, status_fd):
                os.close(fd)
            if isinstance(error, TimeoutError):
                raise ShellUnavailable("the sandbox did not start in time") from error
            raise
        return shell

    def kill(self, identity: int) -> None:
        """Kill one sandbox; unknown and dead ones are fine."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"op": "kill", "id": identity}).encode())

    async def aclose(self) -> None:
        """End the launcher and with it every sandbox."""
        process, control = self._process, self._control
        self._process = self._control = None
        if control is not None:
            control.close()
        if process is not None:
            await asyncio.to_thread(process.wait)

    def _send(self, message: dict[str, Any], fds: list[int]) -> None:
        data = json.dumps(message).encode()
        if self._control is None:
            self._start()
        try:
            socket.send_fds(self._require(), [data], fds)
        except (BrokenPipeError, ConnectionResetError):
            # It died, and took its sandboxes with it: start another.
            self._discard()
            self._start()
            socket.send_fds(self._require(), [data], fds)

    def _require(self) -> socket.socket:
        assert self._control is not None
        return self._control

    def _start(self) -> None:
        # Forked here, in the event loop's own thread: the launcher lives as long as
        # its socket, whichever thread asks.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_PROGRAM), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        self._control = ours

    def _discard(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None


def _as_message(request: LaunchRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in LaunchRequest.__slots__}


async def _await_ready(reply: socket.socket) -> tuple[int, socket.socket | None]:
    """Read the child's answers until it has become the sandbox (end of file); its pid and its listening socket."""
    loop = asyncio.get_running_loop()
    listener: socket.socket | None = None
    pid = 0
    try:
        while True:
            data, fds = await _receive(loop, reply)
            if fds:
                listener = socket.socket(fileno=fds[0])
            if data.startswith(b"failed"):
                raise ShellUnavailable(data.decode("utf-8", "replace").removeprefix("failed: "))
            if not data:
                break
            pid = int(data.removeprefix(b"ready "))
        if not pid:
            raise ShellUnavailable("the launcher ended while the sandbox was starting")
    except BaseException:
        if listener is not None:
            listener.close()
        raise
    return pid, listener


async def _receive(loop: asyncio.AbstractEventLoop, reply: socket.socket) -> tuple[bytes, list[int]]:
    readable: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(reply.fileno(), on_readable)
    try:
        await readable
    finally:
        loop.remove_reader(reply.fileno())
    try:
        data, fds, _, _ = socket.recv_fds(reply, 8192, 1)
    except ConnectionResetError:
        return b"", []
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds
