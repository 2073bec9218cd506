"""A worker in this process, or in one of its own, at a server that a test tells what to answer."""

import asyncio
import io
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from kit.testing import await_until
from services.worker.fleet.app import work
from services.worker.fleet.metrics import Metrics
from services.worker.fleet.options import Options
from services.worker.fleet.reporter import Reporter
from services.worker.fleet.stopping import Stopping
from tests.support.session_server import Session
from tests.support.work_server import ENVIRONMENT, KEY, WorkServer

WORKER = "worker_test"


class Fleet:
    """One worker in this process."""

    def __init__(self, options: Options, environment: dict[str, str], key: str = KEY) -> None:
        self.said = io.StringIO()
        self.metrics = Metrics()
        self.stopping = Stopping(lambda _: None)
        reporter = Reporter(as_json=True, level="debug", stream=self.said)
        self.task = asyncio.create_task(
            work(options, key, environment, reporter=reporter, stopping=self.stopping, metrics=self.metrics)
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it said."""
        return [json.loads(line) for line in self.said.getvalue().splitlines()]

    def heard(self, event: str) -> list[dict[str, Any]]:
        """What it said that begins so."""
        return [line for line in self.lines if line["event"].startswith(event)]

    async def stop(self) -> int:
        """As a first signal does it."""
        self.stopping.asked.set()
        return await self.task


def options(server: WorkServer, workdir: Path, **changed: Any) -> Options:
    """Quick ones, and commands that are plain processes."""
    usual: dict[str, Any] = {"interval_seconds": 0.05, "wait_seconds": 5.0, "sandbox": "none", "worker_id": WORKER}
    return Options(**{"url": server.url, "workdir": workdir, "environment_id": ENVIRONMENT} | usual | changed)


@asynccontextmanager
async def fleet(
    server: WorkServer, workdir: Path, environment: dict[str, str] | None = None, **changed: Any
) -> AsyncIterator[Fleet]:
    """A worker that is asked to stop at the end, and does so in order."""
    async with started(Fleet(options(server, workdir, **changed), environment or {})) as running:
        yield running


@asynccontextmanager
async def started(running: Fleet) -> AsyncIterator[Fleet]:
    """Ends a worker in order."""
    try:
        yield running
    finally:
        if not running.task.done():
            async with asyncio.timeout(20):
                await running.stop()
        elif not running.task.cancelled():
            running.task.exception()


class Process:
    """One worker in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.said = ""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.said += line.decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it said, where it was started with --json."""
        return [json.loads(line) for line in self.said.splitlines()]

    @property
    def running(self) -> bool:
        """Whether it still is there."""
        return self._process.returncode is None

    def signal(self, number: int) -> None:
        """Send it one; nothing happens where it has ended."""
        # Not by the library: that looks first whether the process has ended, and then nobody else learns its code.
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def shown(self, name: str) -> bytes:
        """What the system shows of it to others of the same user."""
        return Path(f"/proc/{self.pid}/{name}").read_bytes()

    async def ended(self) -> int:
        """Its exit code."""
        async with asyncio.timeout(30):
            code = await self._process.wait()
            await self._reading
        return code


@asynccontextmanager
async def process(server: WorkServer, workdir: Path, *arguments: str, **environment: str) -> AsyncIterator[Process]:
    """A worker as an operator starts it; killed at the end if it still runs."""
    given = {"--environment-id": ENVIRONMENT, "--workdir": str(workdir), "--url": server.url, "--sandbox": "none"}
    line = [each for pair in given.items() if pair[0] not in arguments for each in pair]
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from cli.main import main; main()", "worker", "poll", *line, *arguments),
        env={**os.environ, "MANAGED_AGENTS_ENVIRONMENT_KEY": KEY, **environment},
        stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
    )
    running = Process(started)
    try:
        yield running
    finally:
        if started.returncode is None:
            started.kill()
        await running.ended()


async def done(server: WorkServer, *items: str, seconds: float = 15.0) -> list[dict[str, Any]]:
    """What was reported of items."""
    await await_until(lambda: all(each in server.completed for each in items), timeout=seconds)
    return [server.completed[each] for each in items]


def gaps(times: list[float]) -> list[float]:
    """What lay between calls."""
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def named(folder: Path, pattern: str) -> list[str]:
    """Files of a folder."""
    return sorted(each.name for each in folder.glob(pattern))


def below(folder: Path) -> list[Path]:
    """Everything in a folder."""
    return sorted(folder.rglob("*"))


async def answered(session: Session, *calls: str, seconds: float = 15.0) -> list[str]:
    """The texts of results, once they are all there."""
    await await_until(lambda: all(each in session.results for each in calls), timeout=seconds)
    return [session.text(each) for each in calls]
