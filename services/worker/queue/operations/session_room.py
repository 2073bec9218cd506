"""Polls of the session protocol that wait for an item, and what is known of queues without one.

A poll looks into the database when it comes and when it is woken. A queue in which nothing was found is known to be
empty until a hint says otherwise, an item becomes due, or `LOOK_AGAIN_SECONDS` are over, so idle workers cost no
statement. Then one poll looks for all. One waiting poll is woken for each hint, and wakes the next one where it found
something.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

LOOK_AGAIN_SECONDS = 5.0
# For so long what one poll looks up anew is left to it.
LOOKING_SECONDS = 1.0
MAX_KNOWN = 10_000


class SessionRoom:
    """The polls of one replica, by environment."""

    def __init__(self) -> None:
        self._waiting: dict[str, OrderedDict[asyncio.Future[None], None]] = {}
        # By environment and reclaim time: until when nothing is to be found there.
        self._empty: OrderedDict[tuple[str, float], float] = OrderedDict()
        # Hints by environment, and how often all of them were doubted or forgotten: what was looked up before a hint
        # says nothing.
        self._hints: dict[str, int] = {}
        self._epoch = 0

    def hints(self, environment_id: str) -> tuple[int, int]:
        """Changes with each hint."""
        return self._epoch, self._hints.get(environment_id, 0)

    def hint(self, environment_id: str) -> None:
        """Something may be found in a queue."""
        if len(self._hints) >= MAX_KNOWN:
            self._hints.clear()
            self._epoch += 1
        self._hints[environment_id] = self._hints.get(environment_id, 0) + 1
        self._forget(environment_id)
        self._wake_one(environment_id)

    def doubt(self) -> None:
        """Hints may have been missed."""
        self._epoch += 1
        self._empty.clear()
        for environment_id in list(self._waiting):
            self._wake_one(environment_id)

    def empty_for(self, environment_id: str, reclaim_seconds: float) -> float:
        """Seconds for which nothing is to be found in a queue; 0 where it is worth a look."""
        return max(0.0, self._empty.get((environment_id, reclaim_seconds), 0.0) - time.monotonic())

    def look(self, environment_id: str, reclaim_seconds: float) -> None:
        """A poll looks into a queue; where it was empty the last time, others wait for what comes of it."""
        if (environment_id, reclaim_seconds) in self._empty:
            self._empty[(environment_id, reclaim_seconds)] = time.monotonic() + LOOKING_SECONDS

    def note_empty(
        self, environment_id: str, reclaim_seconds: float, due_in: float | None, hints: tuple[int, int]
    ) -> None:
        """Nothing was found by who began to look at these hints; the next item is due then."""
        if hints != self.hints(environment_id):
            return
        seconds = LOOK_AGAIN_SECONDS if due_in is None else min(max(due_in, 0.02), LOOK_AGAIN_SECONDS)
        self._empty[(environment_id, reclaim_seconds)] = time.monotonic() + seconds
        if len(self._empty) > MAX_KNOWN:
            self._empty.popitem(last=False)

    async def wait(self, environment_id: str, seconds: float) -> None:
        """Returns when it is worth to look again, or the time is over."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(environment_id, OrderedDict())
        waiting[woken] = None
        timer = asyncio.get_running_loop().call_later(seconds, _finish, woken)
        try:
            await woken
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                # It was woken and won't look: somebody else should.
                self._wake_one(environment_id)
            raise
        finally:
            timer.cancel()
            waiting.pop(woken, None)
            if not waiting and self._waiting.get(environment_id) is waiting:
                del self._waiting[environment_id]

    def found(self, environment_id: str) -> None:
        """A poll got an item: there may be another one."""
        self._forget(environment_id)
        self._wake_one(environment_id)

    def _forget(self, environment_id: str) -> None:
        for key in [key for key in self._empty if key[0] == environment_id]:
            del self._empty[key]

    def _wake_one(self, environment_id: str) -> None:
        waiting = self._waiting.get(environment_id)
        while waiting:
            woken, _ = waiting.popitem(last=False)
            if not woken.done():
                woken.set_result(None)
                return


def _finish(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
