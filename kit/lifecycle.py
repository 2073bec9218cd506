"""The life of a process: build, start in order, serve, stop in reverse order.

    async def build() -> Service:
        settings = load(Settings)
        service = Service.from_settings("sessions", settings)
        service.add("database", database.open, database.close)
        service.add("rpc", server.start, server.stop)
        service.add_task("ticker", ticker.run)
        return service

    if __name__ == "__main__":
        main("services.sessions.app")

`main` loads the module that holds `build`, and so decides how a process loads its code; `run` takes a `build` itself.

A first SIGTERM or SIGINT, or the end of the supervisor's pipe, begins the orderly stop: each step that had started is
stopped, last one first, within its own time; a step that fails or hangs does not keep the others from stopping. A
second signal ends the process at once. A task that ends by an exception takes the process down: orderly stop, exit
code 1, the cause in the log. Exit codes: 0 asked to stop, 1 failed, 2 the environment is not usable, 128 + signal
when it was cut off.
"""

import asyncio
import gc
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import uvloop

from kit import telemetry
from kit.buffers import share_one_heap
from kit.config import BaseServiceSettings, ConfigError, ready_fd
from kit.lean import without
from kit.released import release_code
from kit.telemetry import log

Action = Callable[[], Awaitable[Any] | Any]
Work = Callable[[], Coroutine[Any, Any, Any]] | Coroutine[Any, Any, Any]

# The client of NATS would load it for WebSockets, which nobody here opens; who needs it loads it by himself.
_UNUSED = ("aiohttp",)
# gRPC's newer I/O threads hand each message over twice more; without them a hop takes half the time and CPU
# (bench/FINDINGS.md). gRPC reads it as it is loaded, so it must stand before any import of it.
_GRPC_EXPERIMENTS = "-event_engine_client,-event_engine_listener"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# One Ctrl-C may arrive twice: from the terminal, and as a SIGTERM from the supervisor that got it too.
_SAME_SIGNAL_SECONDS = 0.5
# `asyncio.wait_for` of Python 3.11, on which libraries stand, loses a cancellation that comes together with its result.
_CANCEL_AGAIN_SECONDS = 1.0
_COLLECTOR_THRESHOLDS = (20_000, 20, 20)


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    start: Action | None
    stop: Action | None
    stop_seconds: float


class Service:
    """The parts of a process, in the order in which they start."""

    def __init__(
        self, name: str, *, supervisor_fd: int | None = None, log_level: str = "info", grace_seconds: float = 20.0
    ) -> None:
        self.name = name
        self.supervisor_fd = supervisor_fd
        self.failed: asyncio.Future[BaseException] | None = None
        self._grace_seconds = grace_seconds
        self._steps: list[_Step] = []
        self._started: list[_Step] = []
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        telemetry.setup(name, log_level)

    @classmethod
    def from_settings(cls, name: str, settings: BaseServiceSettings) -> "Service":
        """The process that these settings describe."""
        return cls(
            name,
            supervisor_fd=settings.supervisor_fd,
            log_level=settings.log_level,
            grace_seconds=settings.grace_seconds,
        )

    def add(
        self, name: str, start: Action | None = None, stop: Action | None = None, *, stop_seconds: float | None = None
    ) -> None:
        """A part: `start` returns once it works, `stop` once it is done. Either may be plain or async."""
        self._steps.append(_Step(name, start, stop, self._grace_seconds if stop_seconds is None else stop_seconds))

    def add_task(self, name: str, work: Work, *, stop_seconds: float = 5.0) -> None:
        """Work in the background, from this place in the order on. It is cancelled to stop it; it may also just end."""

        def start() -> None:
            coroutine = work if inspect.iscoroutine(work) else work()  # type: ignore[operator]
            task = asyncio.get_running_loop().create_task(coroutine, name=name)
            task.add_done_callback(self._task_done)
            self._tasks[name] = task

        async def stop() -> None:
            if (task := self._tasks.pop(name, None)) is not None:
                await _end(task)
            elif inspect.iscoroutine(work):
                work.close()

        self._steps.append(_Step(name, start, stop, stop_seconds))

    async def start(self) -> None:
        """Start every part in order. Where one fails, those before it are stopped and its error is raised."""
        self.failed = asyncio.get_running_loop().create_future()
        try:
            for step in self._steps:
                # A part that fails halfway may have opened something: it is stopped as well.
                self._started.append(step)
                await _call(step.start)
        except BaseException:
            await self.stop()
            raise
        log.info("started", parts=[step.name for step in self._steps])

    async def stop(self) -> None:
        """Stop what was started, last part first. Never raises; safe to repeat."""
        while self._started:
            step = self._started.pop()
            try:
                async with asyncio.timeout(step.stop_seconds):
                    await _call(step.stop)
            except TimeoutError:
                log.error("a part did not stop in time", part=step.name, seconds=step.stop_seconds)
            except Exception:
                log.exception("a part failed to stop", part=step.name)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.critical("a background task died", task=task.get_name(), exc_info=error)
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(error)


async def _end(task: asyncio.Task[Any]) -> None:
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_AGAIN_SECONDS)


def main(module: str, *, uses_nats: bool = True) -> NoReturn:
    """Load a module and run what its `build` makes."""
    share_one_heap()
    # What is loaded now stays for good: looking through it for garbage would be a fifth of the start.
    gc.disable()
    os.environ.setdefault("GRPC_EXPERIMENTS", _GRPC_EXPERIMENTS)
    if uses_nats:
        with without(*_UNUSED):
            importlib.import_module("kit.nats")
    build = importlib.import_module(module).build
    gc.freeze()
    gc.enable()
    run(build)


def run(build: Callable[[], Awaitable[Service]]) -> NoReturn:
    """Run a service as the whole process, and exit with its code."""
    code = uvloop.run(_live(build))
    with suppress(OSError):
        sys.stderr.flush()
    sys.exit(code)


async def _live(build: Callable[[], Awaitable[Service]]) -> int:
    asked = _listen_to_signals()
    starting = asyncio.ensure_future(_started(build, asked))
    waiting = asyncio.ensure_future(asked.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        # Asked to stop while still starting: `start` undoes its own steps.
        starting.cancel()
    try:
        service = await starting
    except asyncio.CancelledError:
        return 0
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except Exception:
        log.critical("could not start", exc_info=True)
        return 1
    return await _serve(service, waiting)


async def _started(build: Callable[[], Awaitable[Service]], asked: asyncio.Event) -> Service:
    service = await build()
    if service.supervisor_fd is not None:
        _watch_supervisor(service.supervisor_fd, asked)
    await service.start()
    _say_ready()
    _spare_the_collector()
    release_code()
    return service


def _say_ready() -> None:
    descriptor = ready_fd()
    if descriptor is not None:
        with suppress(OSError):
            os.write(descriptor, b"\n")
            os.close(descriptor)


def _spare_the_collector() -> None:
    """Leave what a process begins with out of every garbage collection, and collect less often.

    Modules and tables live as long as the process, and what a request leaves behind is freed without the collector.
    With the defaults a tenth of a runner's time went into looking through them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)


async def _serve(service: Service, asked: asyncio.Future[Any]) -> int:
    assert service.failed is not None
    await asyncio.wait({asked, service.failed}, return_when=asyncio.FIRST_COMPLETED)
    code = 1 if service.failed.done() else 0
    asked.cancel()
    log.info("stopping", failed=bool(code))
    await service.stop()
    telemetry.flush()
    log.info("stopped")
    return code


def _listen_to_signals() -> asyncio.Event:
    """Set at the first signal; the second one ends the process."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    first_at: float | None = None

    def handle(number: int) -> None:
        nonlocal first_at
        if first_at is None:
            first_at = loop.time()
            log.info("asked to stop", signal=signal.Signals(number).name)
            asked.set()
        elif loop.time() - first_at > _SAME_SIGNAL_SECONDS:
            log.warning("second signal, ending at once")
            os._exit(128 + number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, handle, number)
    return asked


def _watch_supervisor(fd: int, asked: asyncio.Event) -> None:
    """End of file on the inherited pipe: the supervisor is gone, however it went."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)

    def readable() -> None:
        with suppress(BlockingIOError):
            if os.read(fd, 1024):
                return
            loop.remove_reader(fd)
            log.warning("the supervisor is gone")
            asked.set()

    loop.add_reader(fd, readable)


async def _call(action: Action | None) -> None:
    if action is None:
        return
    outcome = action()
    if inspect.isawaitable(outcome):
        await outcome
