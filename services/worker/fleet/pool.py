"""Takes work as long as there is room for it, and lets it run side by side.

One call for work is open at a time, and none while everything is busy: what a worker can't begin at once is better
taken by another. Both protocols use this; they differ in how work is taken and what is then done with it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from services.worker.fleet.backoff import Backoff
from services.worker.fleet.errors import AccessRefused, Refused, Unreachable
from services.worker.fleet.metrics import Metrics
from services.worker.fleet.options import Options
from services.worker.fleet.platform import settled
from services.worker.fleet.reporter import Reporter, Seldom
from services.worker.fleet.stopping import Stopping

# Takes one item, waiting up to so many seconds for it.
Take = Callable[[float], Awaitable[Any | None]]
Serve = Callable[[Any], Awaitable[None]]
# Refusals that no repetition changes: the request, the key, the right, the environment.
_FINAL = frozenset({301, 302, 303, 307, 308, 400, 401, 403, 404, 405, 410, 422})


class Pool:
    """The loop of a worker."""

    def __init__(
        self, options: Options, *, take: Take, serve: Serve, stopping: Stopping, metrics: Metrics, reporter: Reporter
    ) -> None:
        self._options = options
        self._take = take
        self._serve = serve
        self._stopping = stopping
        self._metrics = metrics
        self._reporter = reporter
        self._running: set[asyncio.Future[None]] = set()
        self._backoff = Backoff()
        self._seldom = Seldom()
        self._room = asyncio.Event()
        self._room.set()

    async def run(self) -> None:
        """Until asked to stop, or after one item with `--once`. AccessRefused where no call could ever succeed."""
        try:
            while not self._stopping.asked.is_set():
                if not await self._has_room():
                    break
                began = time.monotonic()
                try:
                    item = await self._taken()
                except Unreachable as away:
                    if self._options.once:
                        raise
                    await self._pause(away)
                    continue
                if item is not None:
                    self._begin(item)
                if self._options.once:
                    break
                if item is None:
                    # An answer that was waited for has used up the pause.
                    await self._stopping.sleep(max(0.0, began + self._options.interval_seconds - time.monotonic()))
        finally:
            await self._finish()

    async def _taken(self) -> Any | None:
        """The next item; None where there is none, or the worker was asked to stop while it waited."""
        taking = asyncio.ensure_future(self._take(0.0 if self._options.once else self._options.wait_seconds))
        stopping = asyncio.ensure_future(self._stopping.asked.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                # What is handed out at this very moment goes to somebody else when its lease lapses.
                return None
            item = taking.result()
        except Refused as refused:
            if refused.status in _FINAL:
                raise AccessRefused.of(refused) from refused
            raise Unreachable(refused.message) from refused
        finally:
            await settled(stopping)
            await settled(taking)
        if self._backoff.failures > 1:
            self._reporter.info("the platform answers again")
        self._backoff.reset()
        self._seldom.forget()
        self._metrics.heard()
        return item

    async def _pause(self, away: Unreachable) -> None:
        self._metrics.calls_failed += 1
        seconds = self._backoff.next_seconds(away.retry_after_seconds)
        # One connection that broke is no news.
        say = self._reporter.debug if self._backoff.failures == 1 else self._reporter.warning
        if self._seldom.now(str(away)) or self._backoff.failures == 2:
            say("no work can be taken; trying again", reason=str(away), seconds=round(seconds, 1))
        await self._stopping.sleep(seconds)

    async def _has_room(self) -> bool:
        """Wait for room; false where the worker was asked to stop meanwhile."""
        while len(self._running) >= self._options.concurrency:
            self._room.clear()
            waits = [asyncio.ensure_future(each.wait()) for each in (self._room, self._stopping.asked)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    await settled(each)
            if self._stopping.asked.is_set():
                return False
        return True

    def _begin(self, item: Any) -> None:
        task = asyncio.ensure_future(self._serve(item))
        self._running.add(task)
        self._metrics.running = len(self._running)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Future[None]) -> None:
        self._running.discard(task)
        self._metrics.running = len(self._running)
        self._room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._reporter.error("work failed inside the worker", error=repr(error))

    async def _finish(self) -> None:
        """Let what runs come to its end; a second signal cuts that short by ending the process."""
        if self._running:
            self._reporter.info("finishing what runs", items=len(self._running))
            await asyncio.wait(set(self._running))
