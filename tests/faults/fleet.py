"""Workers as the nemesis sees them: processes that are killed, paused, cut off, and whose clocks are wrong.

Each worker is the real program, and reaches the gateway over a line of its own. A line can be cut (connections break),
be dead (nothing arrives any more and nobody is told), or, where this user may make network namespaces, lead through a
cable into one, which is pulled out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_SHIFT = '''\
"""The time of day that this process reads is wrong by so much; what only passes is right."""

import datetime as _module
import os
import sys
import time

_pairs = [each.partition("=") for each in os.environ.get("MANAGED_AGENTS_TEST_CLOCKS", "").split(",") if each]
_seconds = next((float(shift) for name, _, shift in _pairs if name in " ".join(sys.orig_argv)), 0.0)
if _seconds:
    _time, _time_ns, _right = time.time, time.time_ns, _module.datetime

    class _Kind(type):
        def __instancecheck__(cls, value):
            return isinstance(value, _right)

    class _Wrong(_right, metaclass=_Kind):
        @classmethod
        def now(cls, tz=None):
            return _right.now(tz) + _module.timedelta(seconds=_seconds)

    _Wrong.__module__, _Wrong.__name__, _Wrong.__qualname__ = "datetime", "datetime", "datetime"
    if "services." not in " ".join(sys.orig_argv):
        # In a service gRPC reckons deadlines by it, against the right clock of its own core.
        time.time = lambda: _time() + _seconds
        time.time_ns = lambda: _time_ns() + int(_seconds * 1e9)
    _module.datetime = _Wrong
'''


def wrong_clocks(folder: Path, shifts: Mapping[str, float]) -> dict[str, str]:
    """Variables under which processes whose command holds one of these words have a clock that is wrong by seconds."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SHIFT)
    named = ",".join(f"{word}={seconds}" for word, seconds in shifts.items())
    return {"PYTHONPATH": str(folder), "MANAGED_AGENTS_TEST_CLOCKS": named}


class Line:
    """A way from a worker to the gateway."""

    def __init__(self, target_port: int, host: str = "127.0.0.1") -> None:
        self._target = target_port
        self._host = host
        self._server: asyncio.Server | None = None
        self._pairs: set[asyncio.Task[None]] = set()
        self._alive = asyncio.Event()
        self._alive.set()
        self.port = 0

    @property
    def url(self) -> str:
        """The platform, as the worker calls it."""
        return f"http://{self._host}:{self.port}"

    async def open(self) -> None:
        """Take connections."""
        self._server = await asyncio.start_server(self._connected, self._host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """For good."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    def cut(self) -> None:
        """Break what is connected; whoever connects again is served."""
        for pair in self._pairs:
            pair.cancel()

    def die(self) -> None:
        """Nothing gets through any more, in either direction, and no end of it is told."""
        self._alive.clear()

    def live(self) -> None:
        """It works again. What was on the line meanwhile is lost with its connections, as after any long outage."""
        self.cut()
        self._alive.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pairs.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                await self._alive.wait()
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
                try:
                    both = {asyncio.create_task(self._copy(*way)) for way in ((reader, back), (there, writer))}
                    try:
                        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for one in both:
                            one.cancel()
                        await asyncio.gather(*both, return_exceptions=True)
                finally:
                    back.transport.abort()
            finally:
                writer.transport.abort()
                self._pairs.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._alive.wait()
            writer.write(data)
            await writer.drain()


class Cable:
    """A network namespace with one cable to this machine, which can be pulled out."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"
        self._end = f"v{number}{name[-6:]}"

    @property
    def prefix(self) -> list[str]:
        """What runs a command in there."""
        return ["ip", "netns", "exec", self.name]

    def pull(self) -> None:
        """No packet arrives from now on, and nobody is told."""
        _ip("link", "set", self._end, "down")

    def plug(self) -> None:
        """Packets arrive again."""
        _ip("link", "set", self._end, "up")

    def _lay(self) -> None:
        inside = f"{self._end}x"
        _ip("netns", "add", self.name)
        _ip("link", "add", self._end, "type", "veth", "peer", "name", inside, "netns", self.name)
        _ip("addr", "add", f"{self.here}/30", "dev", self._end)
        _ip("link", "set", self._end, "up")
        for command in (("addr", "add", f"{self.there}/30", "dev", inside), ("link", "set", inside, "up")):
            _ip("-n", self.name, *command)
        _ip("-n", self.name, "link", "set", "lo", "up")


@contextmanager
def cable() -> Iterator[Cable | None]:
    """One, or none where this user may lay none."""
    made = Cable(f"ma-faults-{os.getpid()}", 1 + os.getpid() % 250)
    try:
        try:
            made._lay()
        except (OSError, subprocess.CalledProcessError):
            yield None
        else:
            yield made
    finally:
        with contextlib.suppress(OSError):
            subprocess.run(["ip", "netns", "del", made.name], capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Worker:
    """One worker program, over all its lives."""

    def __init__(
        self, name: str, line: Line, environment_id: str, folder: Path, variables: Mapping[str, str], *prefix: str
    ) -> None:
        self.name = name
        self.line = line
        self.lives = 0
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self._output = folder / f"{name}.out"
        self._variables = dict(variables)
        self._prefix = prefix
        self._environment_id = environment_id
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """A further life; each has another id, as a restarted container has."""
        self.lives += 1
        program = str(Path(sys.executable).with_name("managed-agents"))
        options = {
            "--environment-id": self._environment_id,
            "--workdir": str(self._folder),
            "--url": self.line.url,
            "--worker-id": f"{self.name}-{self.lives}",
            "--concurrency": "2",
            "--heartbeat-ms": "300",
            "--interval-ms": "100",
            "--sandbox": "none",
        }
        arguments = [word for pair in options.items() for word in pair]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._prefix, program, "worker", "poll", *arguments],
                env={**os.environ, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """What it printed."""
        return self._output.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """To the program and whatever is of its group."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """At once, without a word."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(10)

    def stop(self) -> int:
        """In order, as an operator does; its exit code."""
        assert self._process is not None
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
