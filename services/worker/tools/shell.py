"""One persistent bash: what a command changes, the next one finds.

The shell reads its script from its standard input, one byte at a time as bash
does on a pipe. For each command the script is an `eval` of the quoted command
followed by a line that reports its end on a descriptor of its own:

    eval '<command>' </dev/null 9>&-
    builtin printf '%s %d %s\\0' <marker> "$?" "$PWD" >&9

The marker is random and is read by the shell only after the command has ended,
so no output can pass for an end; children inherit neither descriptor. Without a
loop around it, `break`, `continue` and `return` in a command do no harm.

A command that outlives its time, is interrupted, or takes the shell with it ends
everything that runs in the shell; the next command gets a new shell in the last
known folder. Output is read with pauses, so a command that floods cannot keep
the event loop busy.
"""

import asyncio
import contextlib
import enum
import fcntl
import os
import secrets
import struct
import termios
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from services.worker.tools.overflow import SpillBuffer

STATUS_FD = 9
SHELL_ARGV = ("bash", "--noprofile", "--norc", "-s")
# The report is a plain command: after a syntax error in an eval, bash 5.2 does not
# take `{` for a keyword.
_SCRIPT = """\
eval '%s' </dev/null %d>&-
builtin printf '%%s %%d %%s\\0' %s "$?" "$PWD" >&%d
"""
_READ_BYTES = 64 * 1024
_READS_PER_WAKE = 4
_PAUSE_SECONDS = 0.002
_BACKGROUND_BYTES = 8 * 1024
_WATCH_SECONDS = 2.0
# How long the dead may take to go before they are given up.
_DEATH_SECONDS = 5.0
_PATIENCE_SECONDS = 0.2


class ShellProcess(Protocol):
    """A started bash. The three descriptors are ours, non-blocking, and closed by the shell's owner."""

    control_fd: int
    output_fd: int
    status_fd: int

    def kill(self) -> None:
        """End the shell and everything that it ever started, at once."""
        ...

    async def wait(self) -> int | None:
        """Wait until it is gone; return its exit code, None where unknown."""
        ...


# Starts a bash whose working directory is the given path; raises ShellUnavailable.
StartShell = Callable[[str], Awaitable[ShellProcess]]
# Looked at every few seconds while a command runs; a text ends the command.
Watch = Callable[[], Awaitable[str | None]]


class ShellUnavailable(Exception):
    """No shell can be started; the text says why, for the model and for people."""


class Ending(enum.Enum):
    """How a command came to its end."""

    FINISHED = "finished"
    SHELL_DIED = "shell_died"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """The end of one command; `reason` is set where it was stopped by a watch."""

    ending: Ending
    exit_code: int | None = None
    reason: str = ""


class PersistentShell:
    """Runs commands one at a time in one bash, started when first needed."""

    def __init__(self, start: StartShell, *, cwd: str) -> None:
        self._start = start
        self._home = cwd
        self._cwd = cwd
        self._lock = asyncio.Lock()
        self._live: _LiveShell | None = None
        self._interrupts = 0

    @property
    def running(self) -> bool:
        """Whether a shell process exists."""
        return self._live is not None

    async def run(
        self, command: str, *, timeout_seconds: float, buffer: SpillBuffer, watch: Watch | None = None
    ) -> CommandEnd:
        """Run `command`, feeding its output to `buffer`."""
        asked = self._interrupts
        async with self._lock:
            # An interrupt meant for this call may come while it waits for its turn.
            if self._interrupts != asked:
                return CommandEnd(Ending.INTERRUPTED)
            live = await self._ensure()
            if self._interrupts != asked:
                return CommandEnd(Ending.INTERRUPTED)
            try:
                end = await live.run(command, timeout_seconds=timeout_seconds, buffer=buffer, watch=watch)
            except BaseException:
                await self._drop()
                raise
            self._cwd = live.cwd or self._cwd
            if end.ending is not Ending.FINISHED:
                died = end.ending is Ending.SHELL_DIED
                # One that ends by itself is left the moment that it needs, for the sake of its exit code.
                code = await self._drop(patience_seconds=_PATIENCE_SECONDS if died else 0)
                if died:
                    return CommandEnd(Ending.SHELL_DIED, code)
            return end

    def interrupt(self) -> bool:
        """End the running command and all that the shell started; True if there was a shell."""
        self._interrupts += 1
        live = self._live
        if live is None:
            return False
        live.stop(CommandEnd(Ending.INTERRUPTED))
        return True

    async def restart(self) -> None:
        """End the shell; the next command gets a new one in the first folder."""
        self.interrupt()
        async with self._lock:
            await self._drop()
            self._cwd = self._home

    async def close(self) -> None:
        """End the shell and wait until everything in it is gone."""
        self.interrupt()
        async with self._lock:
            await self._drop()

    async def _ensure(self) -> "_LiveShell":
        if self._live is not None and self._live.ended:
            await self._drop()
        if self._live is None:
            self._live = _LiveShell(await self._start(self._cwd))
        return self._live

    async def _drop(self, *, patience_seconds: float = 0) -> int | None:
        live, self._live = self._live, None
        return await live.close(patience_seconds) if live else None


class _LiveShell:
    """The descriptors of one bash process and the command that it runs."""

    def __init__(self, process: ShellProcess) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[CommandEnd] | None = None
        self._buffer: SpillBuffer | None = None
        self._marker = b""
        self._status = bytearray()
        self._background = bytearray()
        self._killed = False
        self._reading = True
        self._closed = False
        self.cwd: str | None = None
        self.ended = False
        self._loop.add_reader(process.output_fd, self._on_output)
        self._loop.add_reader(process.status_fd, self._on_status)

    async def run(
        self, command: str, *, timeout_seconds: float, buffer: SpillBuffer, watch: Watch | None
    ) -> CommandEnd:
        marker = secrets.token_hex(16)
        self._marker = marker.encode()
        self._end = self._loop.create_future()
        self._buffer = buffer
        if self._background:
            buffer.feed(b"[output of background processes]\n" + bytes(self._background).rstrip(b"\n") + b"\n")
            self._background.clear()
        quoted = command.replace("'", "'\\''")
        script = _SCRIPT % (quoted, STATUS_FD, marker, STATUS_FD)
        deadline = self._loop.time() + timeout_seconds
        try:
            await self._send(script.encode(), deadline)
            return await self._wait(deadline, watch)
        finally:
            self._buffer = None
            self._end = None

    async def _send(self, script: bytes, deadline: float) -> None:
        """Write the script; a long one takes as long as bash needs to read it."""
        view = memoryview(script)
        while view and self._end is not None and not self._end.done():
            try:
                view = view[os.write(self._process.control_fd, view) :]
            except BlockingIOError:
                if self._loop.time() > deadline:
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
            except OSError:
                # Nobody reads any more: the status descriptor tells the end.
                return

    async def _wait(self, deadline: float, watch: Watch | None) -> CommandEnd:
        end = self._end
        assert end is not None
        while True:
            left = deadline - self._loop.time()
            wait = min(left, _WATCH_SECONDS) if watch else left
            done, _ = await asyncio.wait((end,), timeout=max(wait, 0))
            if done:
                return end.result()
            if self._loop.time() >= deadline:
                self.stop(CommandEnd(Ending.TIMED_OUT))
            elif watch and (reason := await watch()):
                self.stop(CommandEnd(Ending.STOPPED, reason=reason))

    def stop(self, end: CommandEnd) -> None:
        """Kill everything; the running command, if any, ends with `end`."""
        self._kill()
        # What it had said up to now is worth knowing.
        self._take_remaining()
        self._finish(end)

    async def close(self, patience_seconds: float = 0) -> int | None:
        """Kill, wait until all are gone, release the descriptors."""
        waiting = asyncio.ensure_future(self._process.wait())
        try:
            if patience_seconds:
                await asyncio.wait((waiting,), timeout=patience_seconds)
            self._kill()
            await asyncio.wait((waiting,), timeout=_DEATH_SECONDS)
            return waiting.result() if waiting.done() else None
        finally:
            self._kill()
            waiting.cancel()
            self._release()

    def _kill(self) -> None:
        self.ended = True
        if not self._killed:
            self._killed = True
            self._process.kill()

    def _release(self) -> None:
        if self._closed:
            return
        self._closed = True
        process = self._process
        self._loop.remove_reader(process.output_fd)
        self._loop.remove_reader(process.status_fd)
        for fd in (process.control_fd, process.output_fd, process.status_fd):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _finish(self, end: CommandEnd) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(end)

    def _on_status(self) -> None:
        try:
            data = os.read(self._process.status_fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # The shell is gone, or has become another program: nothing can be run in it.
            self.ended = True
            self._loop.remove_reader(self._process.status_fd)
            self._take_remaining()
            self._finish(CommandEnd(Ending.SHELL_DIED))
            return
        self._status += data
        while (stop := self._status.find(0)) >= 0:
            report = bytes(self._status[:stop])
            del self._status[: stop + 1]
            self._on_report(report)

    def _on_report(self, report: bytes) -> None:
        marker, _, rest = report.partition(b" ")
        if marker != self._marker or not self._marker:
            return
        self._marker = b""
        code, _, cwd = rest.partition(b" ")
        self.cwd = cwd.decode("utf-8", "surrogateescape") if cwd.startswith(b"/") else None
        self._take_remaining()
        self._finish(CommandEnd(Ending.FINISHED, int(code) if code.isdigit() else None))

    def _on_output(self) -> None:
        for _ in range(_READS_PER_WAKE):
            if not self._read(_READ_BYTES):
                return
        # More than a few reads at once is a flood: let the rest of the process work.
        self._loop.remove_reader(self._process.output_fd)
        self._reading = False
        self._loop.call_later(_PAUSE_SECONDS, self._resume_reading)

    def _resume_reading(self) -> None:
        if not self._closed and not self._reading:
            self._reading = True
            self._loop.add_reader(self._process.output_fd, self._on_output)

    def _take_remaining(self) -> None:
        """Read exactly what lies in the pipe now: later bytes are not this command's."""
        waiting = fcntl.ioctl(self._process.output_fd, termios.FIONREAD, b"\0\0\0\0")
        left = struct.unpack("i", waiting)[0]
        while left > 0 and (taken := self._read(min(left, _READ_BYTES))):
            left -= taken

    def _read(self, size: int) -> int:
        try:
            data = os.read(self._process.output_fd, size)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._process.output_fd)
            return 0
        if self._buffer is not None and self._end is not None and not self._end.done():
            self._buffer.feed(data)
        else:
            room = _BACKGROUND_BYTES - len(self._background)
            self._background += data[: max(room, 0)]
        return len(data) if len(data) == size else 0
