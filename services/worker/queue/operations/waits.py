"""Those who wait on this replica for the end of an item.

An end that is written here answers at once; one that another replica writes is told by a hint to the replica that the
item names as its waiter's, and a sweep finds what no hint told. When the time of an item is over, who waits ends it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from datetime import datetime, timedelta

from kit.errors import Unavailable
from services.worker.queue.domain import item as rules
from services.worker.queue.domain.item import Item, Status
from services.worker.queue.operations.desk import Desk, Job, Settled
from services.worker.queue.operations.intake import Intake
from services.worker.queue.operations.moments import DatabaseClock
from services.worker.queue.store.work_items import NewItem

# An item that ended, and what was reported.
Outcome = tuple[Item, bytes | None]


class Waits:
    """Open calls by the item that they wait for."""

    def __init__(self, intake: Intake, desk: Desk, clock: DatabaseClock, silence: timedelta) -> None:
        """`silence` is how long a holder may be silent beyond its lease."""
        self.silence = silence
        self._intake = intake
        self._desk = desk
        self._clock = clock
        self._waiting: dict[str, set[asyncio.Future[Outcome]]] = {}
        self._closed = False
        desk.on_saved.append(self._hear)

    def some(self, limit: int) -> list[str]:
        """Up to so many of the items that are waited for; each has its turn."""
        taken = list(itertools.islice(self._waiting, limit))
        for item_id in taken:
            self._waiting[item_id] = self._waiting.pop(item_id)
        return taken

    async def run(self, new: NewItem) -> tuple[bytes, bool]:
        """What the worker reported, and whether it failed; the refusal that the item ended with otherwise."""
        if self._closed:
            raise _stopping()
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(new.id, set()).add(waiting)
        try:
            item, result = await self._intake.put_in(new)
            while not item.is_ended:
                item, result = await self._ended_or_due(item, waiting)
        finally:
            self._leave(new.id, waiting)
        rules.require_result(item)
        return result if result is not None else b"null", item.status is Status.FAILED

    def expire(self, item: Item, now: datetime) -> Item:
        """Ends an item whose time is over."""
        return rules.expire(item, now, self.silence)

    def tell(self, outcomes: Mapping[str, Outcome]) -> None:
        """What was found out about items that ended."""
        for item_id, outcome in outcomes.items():
            if outcome[0].is_ended:
                for waiting in self._waiting.get(item_id, ()):
                    if not waiting.done():
                        waiting.set_result(outcome)

    def is_waited_for(self, item_id: str) -> bool:
        """Whether somebody waits for an item here."""
        return item_id in self._waiting

    def close(self) -> None:
        """Lets everybody go: the process stops, and they ask again."""
        self._closed = True
        for waitings in self._waiting.values():
            for waiting in waitings:
                if not waiting.done():
                    waiting.set_exception(_stopping())

    async def _ended_or_due(self, item: Item, waiting: asyncio.Future[Outcome]) -> Outcome:
        moment = rules.due(item, self.silence)
        assert moment is not None
        done, _ = await asyncio.wait({waiting}, timeout=self._clock.seconds_until(moment) + 0.005)
        if done:
            return waiting.result()
        settled = await self._desk.submit(Job(item.id, self.expire))
        if not settled.before.is_ended:
            return settled.item, None
        # Another replica was told how it ended, just before.
        return (await self._intake.read([item.id])).get(item.id, (settled.item, None))

    def _leave(self, item_id: str, waiting: asyncio.Future[Outcome]) -> None:
        waitings = self._waiting[item_id]
        waitings.discard(waiting)
        if not waitings:
            del self._waiting[item_id]
        if waiting.done() and not waiting.cancelled():
            waiting.exception()

    def _hear(self, settled: Settled) -> None:
        if settled.item.is_ended:
            self.tell({settled.item.id: (settled.item, settled.result)})


def _stopping() -> Unavailable:
    return Unavailable("This replica is stopping; ask again for the same item.")
