"""Writes every change of an item, many in one statement.

Each caller hands in a job: an item and a decision. One write is on its way to the disk at a time; meanwhile the next
jobs gather, and then go together: the more there is to do, the less each one costs. Where this replica wrote an item
last, its state is known, is decided on at once, and is written over that very revision; a wrong guess, a refusal, and
whatever else nobody here remembers go through a lock and a transaction. A job that is refused does not touch its
neighbours, and one that breaks a shared write is tried alone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

import psycopg

from kit import failpoints
from kit.errors import DomainError, WriteConflict
from kit.postgres import Database
from services.worker.queue.domain.errors import WorkItemNotFound
from services.worker.queue.domain.item import Item
from services.worker.queue.operations.moments import DatabaseClock
from services.worker.queue.store.work_items import Move, WorkItemStore

MAX_JOBS = 64
MAX_KNOWN = 50_000

Decide = Callable[[Item, datetime], Item]


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a job."""

    before: Item
    item: Item
    payload: str | None = None
    result: bytes | None = None


@dataclass(eq=False, slots=True)
class Job:
    """One item to be changed, for a caller who waits."""

    item_id: str
    decide: Decide
    # Whose items the caller may see; empty: everybody's.
    workspace_id: str = ""
    environment_id: str = ""
    # The item as it is believed to be; None: whatever is remembered.
    guess: Item | None = None
    result: bytes | None = None
    wants_payload: bool = False
    must_be_live: bool = False
    done: asyncio.Future[Settled] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def may_see(self, item: Item) -> bool:
        """Whether the item exists for the caller."""
        return self.workspace_id in ("", item.workspace_id) and self.environment_id in ("", item.environment_id)

    def move(self, item: Item) -> Move:
        """What is to be written."""
        return Move(item, self.result, self.wants_payload, self.must_be_live)

    def succeed(self, settled: Settled) -> None:
        """Answers the caller, who may have gone."""
        if not self.done.done():
            self.done.set_result(settled)

    def fail(self, error: BaseException) -> None:
        """Refuses the caller, who may have gone."""
        if not self.done.done():
            self.done.set_exception(error)


class Desk:
    """Gathers jobs and writes what they decide; `on_saved` hears of each change once it is committed."""

    def __init__(self, database: Database, clock: DatabaseClock) -> None:
        self._database = database
        self._clock = clock
        self._queue: deque[Job] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._known: OrderedDict[str, Item] = OrderedDict()
        self.on_saved: list[Callable[[Settled], None]] = []

    def hand_in(self, job: Job) -> asyncio.Future[Settled]:
        """Has the job done; a caller who goes away does not take it back."""
        self._queue.append(job)
        if self._writing is None:
            self._writing = asyncio.create_task(self._work(), name="desk")
        return job.done

    async def submit(self, job: Job) -> Settled:
        """Waits until the job is done."""
        return await self.hand_in(job)

    async def stop(self) -> None:
        """Finishes what was handed in."""
        while self._writing is not None:
            await asyncio.wait((self._writing,))

    async def _work(self) -> None:
        try:
            while jobs := self._take():
                try:
                    await self._write(jobs)
                except Exception as error:
                    for job in jobs:
                        job.fail(error)
        finally:
            # In the very step that found nothing left: a job that comes after it needs another task.
            self._writing = None

    def _take(self) -> list[Job]:
        """The oldest jobs, one of each item."""
        taken: dict[str, Job] = {}
        held: list[Job] = []
        while self._queue and len(taken) < MAX_JOBS:
            job = self._queue.popleft()
            if job.item_id in taken:
                held.append(job)
            else:
                taken[job.item_id] = job
        self._queue.extendleft(reversed(held))
        return list(taken.values())

    async def _write(self, jobs: list[Job]) -> None:
        try:
            left = await self._by_guess(jobs)
        except (WriteConflict, psycopg.Error):
            # One of them broke the statement for all, or nothing is known of it: each finds out for itself.
            left = jobs
        if not left:
            return
        try:
            left = await self._under_lock(left)
        except (WriteConflict, psycopg.Error):
            if len(left) == 1:
                raise
        for job in left:
            if not job.done.done():
                await self._alone(job)

    async def _alone(self, job: Job) -> None:
        try:
            await self._under_lock([job])
        except Exception as error:
            job.fail(error)

    async def _by_guess(self, jobs: list[Job]) -> list[Job]:
        """Writes over what is believed to be there. A refusal needs more than a belief."""
        now = self._clock.now()
        decided: dict[str, tuple[Job, Item, Item]] = {}
        for job in jobs:
            known = job.guess or self._known.get(job.item_id)
            if known is None or not job.may_see(known):
                continue
            try:
                item = job.decide(known, now)
            except DomainError:
                continue
            if item is not known:
                decided[job.item_id] = (job, known, replace(item, revision=known.revision + 1))
        if not decided:
            return jobs
        workspaces = {known.workspace_id for _, known, _ in decided.values()}
        await failpoints.point("queue.save.before_commit")
        async with self._database.platform_statements(within=workspaces) as tx:
            saved, now_told = await WorkItemStore(tx).save([job.move(item) for job, _, item in decided.values()])
        self._clock.tell(now_told)
        await failpoints.point("queue.save.after_commit")
        for item_id, (job, known, item) in decided.items():
            if item_id in saved:
                self._settle(job, Settled(known, item, saved[item_id], job.result))
            else:
                self._known.pop(item_id, None)
        return [job for job in jobs if job.item_id not in saved]

    async def _under_lock(self, jobs: list[Job]) -> list[Job]:
        """Decides on the rows themselves, in one transaction."""
        decided: list[tuple[Job, Item, Item]] = []
        async with self._database.platform_transaction() as tx:
            store = WorkItemStore(tx)
            items, now = await store.lock(sorted(job.item_id for job in jobs))
            self._clock.tell(now)
            for job in jobs:
                found = items.get(job.item_id)
                if found is None or not job.may_see(found):
                    job.fail(WorkItemNotFound(job.item_id))
                    continue
                try:
                    item = job.decide(found, now)
                except DomainError as refusal:
                    self.remember(found)
                    job.fail(refusal)
                    continue
                changed = item if item is found else replace(item, revision=found.revision + 1)
                decided.append((job, found, changed))
            moves = [job.move(item) for job, found, item in decided if item is not found]
            saved = (await store.save(moves))[0] if moves else {}
            await failpoints.point("queue.save.before_commit")
        await failpoints.point("queue.save.after_commit")
        left: list[Job] = []
        for job, found, item in decided:
            if item is not found and item.id not in saved:
                # Its lease lapsed between the lock and the write: the next decision says so.
                left.append(job)
                continue
            self._settle(job, Settled(found, item, saved.get(item.id), job.result))
        return left

    def _settle(self, job: Job, settled: Settled) -> None:
        self.remember(settled.item)
        if settled.item is not settled.before:
            self.told([settled])
        job.succeed(settled)

    def told(self, changes: Iterable[Settled]) -> None:
        """Tells of committed changes."""
        for settled in changes:
            for hear in self.on_saved:
                hear(settled)

    def remember(self, item: Item) -> None:
        """Keeps an item as it was just written or found."""
        if item.is_ended:
            self._known.pop(item.id, None)
            return
        self._known[item.id] = item
        self._known.move_to_end(item.id)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
