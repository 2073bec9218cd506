"""One service process: started, watched, started again after a crash, stopped.

It runs in a process group of its own, so a Ctrl-C at the terminal reaches only the supervisor, which decides the
order; and it holds the read end of a pipe, so that it sees the supervisor's death as EOF and ends by itself.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable

import orjson

from cli.catalog import Process
from cli.config import PREFIX
from cli.data_folder import DataFolder
from cli.errors import CannotStart
from kit.waiting import within

# A single crash is over before anybody asks again; one that repeats costs a start every ten seconds.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
_SETTLED_SECONDS = 60.0


class Child:
    """`answers` resolves once a process that says it serves also answers; `say` tells about crashes.

    A process says that it serves by one byte on a pipe of its own: no polling, and no client of its protocol in here.
    """

    def __init__(
        self,
        process: Process,
        folder: DataFolder,
        *,
        supervisor_fd: int,
        answers: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        self.name = process.name
        self._process = process
        self._folder = folder
        self._supervisor_fd = supervisor_fd
        self._answers = answers
        self._say = say
        self._running: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._log_mark = 0
        self._hears: int | None = None

    @property
    def pid(self) -> int | None:
        return self._running.pid if self._running is not None and self._running.returncode is None else None

    async def start(self) -> None:
        self._folder.rotate_log(self.name)
        path = self._folder.log(self.name)
        self._stop_hearing()
        self._hears, says = os.pipe()
        inherited = [self._supervisor_fd, says]
        if self._folder.services_lock is not None:
            inherited.append(self._folder.services_lock)
        descriptors = {f"{PREFIX}SUPERVISOR_FD": str(self._supervisor_fd), f"{PREFIX}READY_FD": str(says)}
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._log_mark = os.fstat(log).st_size
            self._running = await asyncio.create_subprocess_exec(
                sys.executable,
                # The current folder must not be able to bring a `services` of its own.
                "-P",
                "-m",
                self._process.module,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._process.environment, **descriptors},
                cwd=self._folder.path,
                start_new_session=True,
                pass_fds=inherited,
            )
        finally:
            os.close(log)
            os.close(says)
        try:
            self._folder.record_pid(self._running.pid)
        except OSError:
            # One that a successor could not find must not run.
            os.killpg(self._running.pid, signal.SIGKILL)
            raise

    async def until_ready(self, timeout_seconds: float) -> None:
        """Return when it serves; CannotStart, in the words of its log, when it ends or stays silent."""
        assert self._running is not None
        ready, ended = asyncio.ensure_future(self._serves()), asyncio.ensure_future(self._running.wait())
        try:
            await asyncio.wait({ready, ended}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise CannotStart(f"{self.name} ended with code {ended.result()} while starting. {self._last_words()}")
            if not ready.done():
                raise CannotStart(f"{self.name} did not become ready in {timeout_seconds:.0f} s. {self._last_words()}")
            ready.result()
        finally:
            for task in (ready, ended):
                task.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)
            self._stop_hearing()

    async def _serves(self) -> None:
        """Return when it has said so, and answers. The end of file before that means that it ended."""
        loop, hears = asyncio.get_running_loop(), self._hears
        assert hears is not None
        readable = asyncio.Event()
        loop.add_reader(hears, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(hears)
        if not os.read(hears, 1):
            await asyncio.Event().wait()
        await self._answers()

    def _stop_hearing(self) -> None:
        if self._hears is not None:
            os.close(self._hears)
            self._hears = None

    async def keep_running(self, ready_seconds: float) -> None:
        """Start it again whenever it ends, more slowly the more often it does, until `stop`."""
        pause = _FIRST_PAUSE_SECONDS
        while not self._stopping:
            since = time.monotonic()
            assert self._running is not None
            code = await self._running.wait()
            if self._stopping:
                return
            if time.monotonic() - since > _SETTLED_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            self._say(f"{self.name} ended with {_told(code)}; it starts again in {pause:g} s. {self._last_words()}")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            if self._stopping:
                return
            try:
                await self.start()
                await self.until_ready(ready_seconds)
                self._say(f"{self.name} is back.")
            except CannotStart as error:
                self._say(str(error))
            except OSError as error:
                self._say(f"{self.name} can't be started now: {error.strerror or error}.")

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM, and SIGKILL for the whole group when it takes longer than the grace."""
        self._stopping = True
        if self._running is None:
            return
        self._stop_hearing()
        if self._running.returncode is None:
            self._running.terminate()
        try:
            await within(self._running.wait(), grace_seconds)
        except TimeoutError:
            self._say(f"{self.name} did not end within {grace_seconds:g} s and is killed.")
            self.kill()
            await self._running.wait()
        # What it may have left in its group, such as a program that ignores its parent's end.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._running.pid, signal.SIGKILL)

    def kill(self) -> None:
        self._stopping = True
        if self.pid is not None:
            os.killpg(self.pid, signal.SIGKILL)

    def change(self, process: Process) -> None:
        """Give it other addresses: it ends, and whoever keeps it running starts it with them."""
        self._process = process
        if self._running is not None and self._running.returncode is None:
            self._running.terminate()

    def _last_words(self) -> str:
        """The end of what it logged since its start, as plain text."""
        path = self._folder.log(self.name)
        with open(path, "rb") as log:
            log.seek(min(self._log_mark, path.stat().st_size))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        if not lines:
            return f"Its log {path} says nothing."
        return f"It said: {_plain(lines[-1])} (log: {path})"


def _told(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _plain(line: str) -> str:
    """A structured log line as a sentence; any other line as it is."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line
    if not isinstance(fields, dict):
        return line
    parts = [str(fields[key]) for key in ("event", "message", "error", "reason") if fields.get(key)]
    return ": ".join(dict.fromkeys(parts)) or line
