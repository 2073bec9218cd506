"""Puts items in, those that come together in one statement, each once.

One that a worker waits for is put in as claimed by it: a write less, and an answer that much sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import datetime

import psycopg

from kit.errors import Unavailable
from kit.postgres import Database
from kit.telemetry import log
from services.worker.queue.domain import item as rules
from services.worker.queue.domain.errors import MalformedItem
from services.worker.queue.domain.item import Holder, Item
from services.worker.queue.operations.asking import AskEnded
from services.worker.queue.operations.desk import Desk, Job, Settled
from services.worker.queue.operations.matching import Matching
from services.worker.queue.operations.moments import DatabaseClock
from services.worker.queue.operations.waiting_room import Claim
from services.worker.queue.store.work_items import NewItem, WorkItemStore

MAX_ITEMS = 64

Waiting = tuple[NewItem, "asyncio.Future[tuple[Item, bytes | None]]"]


class Intake:
    """Gathers items and inserts them."""

    def __init__(
        self, database: Database, clock: DatabaseClock, desk: Desk, matching: Matching, ask_ended: AskEnded
    ) -> None:
        self._database = database
        self._clock = clock
        self._desk = desk
        self._matching = matching
        self._ask_ended = ask_ended
        self._queue: list[Waiting] = []
        self._worker: asyncio.Task[None] | None = None

    async def put_in(self, new: NewItem) -> tuple[Item, bytes | None]:
        """The item with its result if it has one: the new one, or what was put in under this id before."""
        done: asyncio.Future[tuple[Item, bytes | None]] = asyncio.get_running_loop().create_future()
        self._queue.append((new, done))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name="intake")
        return await done

    async def stop(self) -> None:
        """Finishes what was handed in."""
        while self._worker is not None:
            await asyncio.wait({self._worker})

    async def _work(self) -> None:
        try:
            while self._queue:
                waiting, self._queue = self._queue[:MAX_ITEMS], self._queue[MAX_ITEMS:]
                await self._insert(waiting)
        finally:
            self._worker = None

    async def _insert(self, waiting: list[Waiting]) -> None:
        try:
            await self._together(waiting)
        except psycopg.Error:
            if len(waiting) == 1:
                _answer(waiting[0], MalformedItem("payload_json is not JSON that can be kept.", field="payload_json"))
                return
            for one in waiting:
                await self._insert([one])
        except Exception as error:
            for one in waiting:
                _answer(one, error)

    async def _together(self, waiting: list[Waiting]) -> None:
        by_id: dict[str, NewItem] = {}
        for new, _ in waiting:
            by_id.setdefault(new.id, new)
        inserted = await self._put_in(by_id)
        known = by_id.keys() - inserted.keys()
        former = await self.read(known) if known else {}
        for one in waiting:
            new = one[0]
            item, result = (inserted[new.id], None) if new.id in inserted else former.get(new.id, (None, None))
            if item is None:
                # It was there and is not: its time was over in between.
                _answer(one, Unavailable("The item was just removed. Try again."))
            elif (item.workspace_id, item.session_id, item.kind) != (new.workspace_id, new.session_id, new.kind):
                _answer(one, MalformedItem(f"{new.id} names another item.", field="item_id"))
            else:
                _answer(one, (item, result))

    async def _put_in(self, by_id: dict[str, NewItem]) -> dict[str, Item]:
        """Those that were new, as they are now."""
        claims = {new.id: claim for new in by_id.values() if (claim := self._matching.reserve(new)) is not None}
        items = [self._matching.as_claimed(new, claims[new.id]) if new.id in claims else new for new in by_id.values()]
        # Beside the write: nothing is handed out before it is answered.
        asking = asyncio.ensure_future(self._ended({new.session_id for new in items}))
        try:
            async with self._database.platform_statements(within={new.workspace_id for new in items}) as tx:
                inserted = {item.id: item for item in await WorkItemStore(tx).put_in(items)}
        except Exception as error:
            asking.cancel()
            for claim in claims.values():
                self._matching.let_go(claim, error)
            raise
        if inserted:
            self._clock.tell(next(reversed(inserted.values())).created_at)
        self._desk.told(Settled(item, item) for item in inserted.values())
        await self._hand_over(by_id, inserted, claims, await asking)
        return inserted

    async def _hand_over(
        self, by_id: dict[str, NewItem], inserted: dict[str, Item], claims: dict[str, Claim], ended: set[str] | None
    ) -> None:
        """Answers reserved claims, and stops what belongs to an ended session. `ended` is None where nobody can tell:
        then the items wait, and the next claim asks again."""
        over = [item for item in inserted.values() if ended and item.session_id in ended and not item.is_ended]
        stopping = {item.id: self._desk.hand_in(Job(item.id, _stopped, guess=item)) for item in over}
        failed: dict[str, Exception] = {}
        for item_id, done in stopping.items():
            try:
                inserted[item_id] = (await done).item
            except Exception as error:
                log.warning("work of an ended session could not be stopped", item_id=item_id, error=str(error))
                failed[item_id] = error
        for item_id, claim in claims.items():
            item = inserted.get(item_id)
            if item_id in failed:
                self._matching.let_go(claim, failed[item_id])
            elif item is not None and ended is None:
                self._matching.take_back(claim, item)
            else:
                self._matching.hand_over(claim, item, by_id[item_id].payload.decode())

    async def _ended(self, session_ids: set[str]) -> set[str] | None:
        try:
            return await self._ask_ended(session_ids)
        except Exception as error:
            log.warning("nobody can tell which sessions have ended", error=str(error))
            return None

    async def read(self, item_ids: Collection[str]) -> dict[str, tuple[Item, bytes | None]]:
        """Items as they are, with their results."""
        async with self._database.platform_read() as tx:
            return await WorkItemStore(tx).outcomes(item_ids)


def _stopped(item: Item, now: datetime) -> Item:
    """As if no worker had been there for it."""
    return rules.stop(rules.give_back(item, Holder(item.holder or "", item.attempt)), now)


def _answer(one: Waiting, answer: tuple[Item, bytes | None] | Exception) -> None:
    done = one[1]
    if done.done():
        return
    if isinstance(answer, Exception):
        done.set_exception(answer)
    else:
        done.set_result(answer)
