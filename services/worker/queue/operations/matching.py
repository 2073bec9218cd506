"""Brings waiting workers and pending items together.

A round reads what is not known, pairs claims with items (environments and, within them, sessions round robin; the
oldest claim first), and then, beside the next round, asks whether the sessions of the items have ended and writes the
claims. What fails to be written was somebody else's already: its claim is the first one again. A worker that is gone
when its item comes is as if it had not asked. Where nothing else is to be handed out, a new item is put in as claimed
by the worker that waits for it, and needs no round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from kit.errors import DomainError, Unavailable
from kit.telemetry import log
from services.worker.queue.domain import item as rules
from services.worker.queue.domain.item import Holder, Item, Status
from services.worker.queue.operations.asking import AskEnded
from services.worker.queue.operations.desk import Desk, Job, Settled
from services.worker.queue.operations.moments import DatabaseClock
from services.worker.queue.operations.pool import Pool
from services.worker.queue.operations.waiting_room import Claim, Ends, Grant, Scope, WaitingRoom
from services.worker.queue.store.work_items import NewItem

Pair = tuple[Claim, Item]

MAX_PAIRS = 64
# Claims that come one right after the other share a round, its question and its write; one that comes alone waits for
# nobody.
ROUND_SECONDS = 0.006


class Matching:
    """The claims of this replica."""

    def __init__(
        self, room: WaitingRoom, pool: Pool, desk: Desk, clock: DatabaseClock, ask_ended: AskEnded, lease: timedelta
    ) -> None:
        self._room = room
        self._pool = pool
        self._desk = desk
        self._clock = clock
        self._ask_ended = ask_ended
        self._lease = lease
        # Workspaces in which a claim and an item may be waiting for each other.
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._ends = Ends()
        self._tasks: set[asyncio.Task[None]] = set()
        desk.on_saved.append(self._hear)

    async def claim(self, workspace_id: str, scope: Scope, worker_id: str, wait_seconds: float) -> Grant | None:
        """An item and what it is to do; None where there is none in time."""
        claim = Claim(workspace_id, scope, worker_id, is_over=wait_seconds <= 0)
        self._room.enter(claim)
        if claim.is_over or scope[1] or not self._pool.is_dry(workspace_id, scope[0]):
            self.look_into(workspace_id)
        never_mind = self._ends.end_within(wait_seconds, claim) if not claim.is_over else None
        try:
            return await claim.granted
        except asyncio.CancelledError:
            # The grant may have come at this very moment: then nobody would know of it until its lease is over.
            if (grant := claim.grant) is not None:
                self._begin(self._give_back(claim, grant[0]))
            raise
        finally:
            if never_mind is not None:
                never_mind()
            if not claim.is_paired:
                self._room.leave(claim)

    def pending(self, item: Item) -> None:
        """An item became pending, here or on another replica."""
        wanted = self._room.waits(
            item.workspace_id,
            ("", ""),
            ("", item.session_id),
            (item.environment_id, item.session_id),
        )
        self._pool.add(item, wanted=wanted)
        if wanted or self._room.waits(item.workspace_id, (item.environment_id, "")):
            self.look_into(item.workspace_id)

    def reserve(self, new: NewItem) -> Claim | None:
        """The claim that is to have an item which is about to be put in; None where it has to wait for its turn."""
        workspace_id, environment_id, session_id = new.workspace_id, new.environment_id, new.session_id
        if self._pool.filled(workspace_id) or not self._pool.is_dry(workspace_id, environment_id):
            return None
        return self._room.next(
            workspace_id, ("", ""), ("", session_id), (environment_id, ""), (environment_id, session_id)
        )

    def as_claimed(self, new: NewItem, claim: Claim) -> NewItem:
        """The item as it is to be put in for a claim."""
        return replace(new, claimed_by=claim.worker_id, lease_seconds=self._lease.total_seconds())

    def hand_over(self, claim: Claim, item: Item | None, payload: str) -> None:
        """Answers a reserved claim; without an item that was put in for it, it is the first one again."""
        if item is None or item.status is not Status.CLAIMED:
            self._return(claim)
            return
        self._desk.remember(item)
        if not claim.answer((item, payload)):
            self._begin(self._give_back(claim, item))

    def take_back(self, claim: Claim, item: Item) -> None:
        """An item that was put in for a reserved claim is not handed out now: both wait again."""
        self._begin(self._give_back(claim, item))
        self._return(claim)

    def let_go(self, claim: Claim, error: Exception) -> None:
        """An item could not be put in for a reserved claim, or not be handed out."""
        if isinstance(error, Unavailable):
            # Nobody knows whether it was written: then the lease brings it back.
            claim.refuse(error)
        else:
            self._return(claim)

    def look_into(self, workspace_id: str) -> None:
        """Have the next round look into a workspace."""
        self._due[workspace_id] = None
        self._wake.set()

    async def run(self) -> None:
        """Rounds, for as long as the process lives."""
        began = float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            if (pause := began + ROUND_SECONDS - loop.time()) > 0:
                await asyncio.sleep(pause)
            began = loop.time()
            self._wake.clear()
            due, self._due = self._due, {}
            for workspace_id in due:
                await self._round(workspace_id)

    async def stop(self) -> None:
        """Lets everybody go, and finishes what is being handed out."""
        self._room.close()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _round(self, workspace_id: str) -> None:
        try:
            await self._pool.read(workspace_id, self._room.scopes(workspace_id))
        except Unavailable as error:
            self._room.refuse_all(workspace_id, error)
            return
        except Exception as error:
            log.exception("claims could not be looked at", workspace_id=workspace_id)
            self._room.refuse_all(workspace_id, error)
            return
        pairs = self._pair(workspace_id)
        if len(pairs) >= MAX_PAIRS:
            # More wait than one question and one write should hold.
            self.look_into(workspace_id)
            self._begin(self._hand_out(pairs))
            return
        self._room.end_those_over(workspace_id)
        if pairs:
            self._begin(self._hand_out(pairs))

    def _pair(self, workspace_id: str) -> list[Pair]:
        now = self._clock.now()
        pairs: list[Pair] = []
        for scope in self._room.scopes(workspace_id):
            if scope[1]:
                self._pair_session(workspace_id, scope, now, pairs)
        is_going_on = True
        while is_going_on and len(pairs) < MAX_PAIRS:
            is_going_on = False
            for environment_id in self._pool.filled(workspace_id):
                if not self._room.waits(workspace_id, ("", ""), (environment_id, "")):
                    continue
                item = self._pool.take(workspace_id, environment_id)
                if item is None:
                    continue
                is_going_on = True
                if not rules.is_claimable(item, now):
                    continue
                claim = self._room.next(workspace_id, ("", ""), (environment_id, ""))
                assert claim is not None
                pairs.append((claim, item))
        return pairs

    def _pair_session(self, workspace_id: str, scope: Scope, now: datetime, pairs: list[Pair]) -> None:
        while len(pairs) < MAX_PAIRS and self._room.waits(workspace_id, scope):
            item = self._pool.take_of(workspace_id, *scope)
            if item is None:
                return
            if rules.is_claimable(item, now):
                claim = self._room.next(workspace_id, scope)
                assert claim is not None
                pairs.append((claim, item))

    async def _hand_out(self, pairs: list[Pair]) -> None:
        try:
            ended = await self._ask_ended({item.session_id for _, item in pairs})
        except Exception as error:
            for claim, item in pairs:
                self._pool.put_back(item)
                claim.refuse(error)
            return
        jobs: list[tuple[Pair, asyncio.Future[Settled]]] = []
        for claim, item in pairs:
            if item.session_id in ended:
                self._pool.drop_session(item)
                self._begin(self._stop_ended(item))
                self._return(claim)
                continue
            decide = partial(_claimed, worker_id=claim.worker_id, lease=self._lease)
            job = Job(item.id, decide, guess=item, wants_payload=True)
            jobs.append(((claim, item), self._desk.hand_in(job)))
        for pair, done in jobs:
            await self._conclude(*pair, done)

    async def _conclude(self, claim: Claim, item: Item, done: asyncio.Future[Settled]) -> None:
        try:
            settled = await done
        except DomainError as error:
            # Unless nobody knows whether it was written, somebody else has it.
            if not isinstance(error, Unavailable):
                self._pool.doubt(item)
            self.let_go(claim, error)
            return
        except Exception as error:
            claim.refuse(error)
            return
        if not claim.answer((settled.item, settled.payload or "{}")):
            await self._give_back(claim, settled.item)

    async def _give_back(self, claim: Claim, item: Item) -> None:
        by = Holder(claim.worker_id, item.attempt)
        await self._desk.submit(Job(item.id, lambda found, _now: rules.give_back(found, by)))

    async def _stop_ended(self, item: Item) -> None:
        await self._desk.submit(Job(item.id, rules.stop))

    def _return(self, claim: Claim) -> None:
        self._room.return_to(claim)
        self.look_into(claim.workspace_id)

    def _hear(self, settled: Settled) -> None:
        if settled.item.status is Status.PENDING:
            self.pending(settled.item)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="matching")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a claim was not finished", exc_info=error)


def _claimed(item: Item, now: datetime, *, worker_id: str, lease: timedelta) -> Item:
    return rules.claim(item, worker_id, now, lease)
