"""The turns that a runner holds: how they come, how they are kept, and how they go.

One claim stream stays open for the life of the process and is opened again, with growing pauses, whenever it breaks;
turns that are held don't notice. Over it the service hears how many more turns fit and which contexts are kept here.
Each turn is one task, so a slow one slows no other.

Leases that need it are renewed together, in one call per third of a lease. A turn whose lease ran out by the clock of
this process is stopped here, whether or not anybody could be asked.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

from kit.errors import DomainError
from kit.ids import new_id
from kit.rpc.context import CallContext, set_context
from kit.telemetry import log
from managed_agents.sessions.v1.events_pb2 import TurnSignal
from managed_agents.sessions.v1.turns_pb2 import (
    CachedContext,
    ClaimTurnsRequest,
    HeldTurn,
    RenewLeasesRequest,
    TurnGrant,
)
from services.worker.runner.loop.cache import ConversationCache
from services.worker.runner.loop.leases import Lease
from services.worker.runner.loop.remote import LOOP_ENGINES
from services.worker.runner.loop.turn import Turn, TurnServices

# News for the service wait this long for more, less while it believes that few turns fit, and not at all while it
# believes that this runner is full.
ANNOUNCE_LINGER_SECONDS = 0.25
SCARCE_LINGER_SECONDS = 0.02
_CONTEXTS_PER_MESSAGE = 1000
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_LAST_GRACE_SECONDS = 3.0

Key = tuple[str, int]


class Claims:
    """The held turns of one runner."""

    def __init__(
        self,
        # The stub of TurnsService, as `kit.rpc.client.Channel` makes it.
        turns: Any,
        services: TurnServices,
        cache: ConversationCache,
        *,
        runner_id: str,
        capacity: int,
        lease_seconds: float,
    ) -> None:
        self._turns = turns
        self._services = services
        self._cache = cache
        self._runner_id = runner_id
        self._capacity = capacity
        self._lease_seconds = lease_seconds
        self._held: dict[Key, tuple[Turn, asyncio.Task[None]]] = {}
        self._draining = False
        self._news = asyncio.Event()
        self._scarce = asyncio.Event()
        # What the service believes that fits; None before it was told.
        self._told_free = 0

    @property
    def held(self) -> int:
        """Turns that are held now."""
        return len(self._held)

    async def claim(self) -> None:
        """Keep the claim stream open, for ever."""
        context = CallContext(request_id=new_id("req"), principal_id=self._runner_id)
        pause = _FIRST_PAUSE_SECONDS
        while True:
            opened = time.monotonic()
            try:
                async for answer in self._turns.ClaimTurns(self._requests(), context=context):
                    self._take(answer.grant)
                log.warning("the claim stream ended")
            except DomainError as failed:
                log.warning("the claim stream broke", error=repr(failed))
            if time.monotonic() - opened > _LONGEST_PAUSE_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def keep(self) -> None:
        """Renew leases and stop turns whose lease ran out, for ever."""
        context = CallContext(request_id=new_id("req"), principal_id=self._runner_id)
        renewal: asyncio.Task[None] | None = None
        try:
            while True:
                await asyncio.sleep(self._lease_seconds / 12)
                for turn, _ in self._held.values():
                    if turn.lease.remaining_seconds() <= 0:
                        turn.lose()
                if renewal is None or renewal.done():
                    due = [turn for turn, _ in self._held.values() if self._is_due(turn.lease)]
                    renewal = asyncio.create_task(self._renew(due, context)) if due else None
        finally:
            if renewal is not None:
                renewal.cancel()

    def hear(self, signal: TurnSignal) -> None:
        """A hint of the service about a held turn."""
        entry = self._held.get((signal.session_id, signal.epoch))
        if entry is None:
            return
        if signal.revoked:
            entry[0].lose()
        elif signal.interrupt_seq:
            entry[0].interrupt(signal.interrupt_seq)
        else:
            entry[0].notice_input()

    async def drain(self, grace_seconds: float) -> None:
        """Take no more turns, let running steps end within the grace, and give all turns back."""
        self._draining = True
        self._news.set()
        self._scarce.set()
        for turn, _ in self._held.values():
            turn.hand_over()
        await self._wait(grace_seconds)
        for turn, _ in self._held.values():
            turn.hand_over(at_once=True)
        await self._wait(_LAST_GRACE_SECONDS)
        for turn, task in self._held.values():
            log.error("a turn did not stop in time", session_id=turn.lease.session_id)
            task.cancel()
        await self._wait(_LAST_GRACE_SECONDS)

    async def _wait(self, seconds: float) -> None:
        if tasks := [task for _, task in self._held.values()]:
            await asyncio.wait(tasks, timeout=seconds)

    def _take(self, grant: TurnGrant) -> None:
        self._told_free -= 1
        self._note_if_scarce()
        lease = Lease(grant.session.id, grant.epoch)
        lease.extend(time.monotonic(), grant.lease_seconds)
        # Renewals keep to the shortest lease that was seen, whatever this process was configured for.
        self._lease_seconds = min(self._lease_seconds, grant.lease_seconds)
        # What a former turn of the session still does here must be over before the new one begins.
        former = [entry for (session_id, _), entry in self._held.items() if session_id == lease.session_id]
        turn = Turn(grant, lease, self._services)
        if self._draining:
            turn.hand_over()
        task = asyncio.create_task(self._hold(turn, former), name=f"turn {lease.session_id} {lease.epoch}")
        self._held[lease.session_id, lease.epoch] = turn, task

    async def _hold(self, turn: Turn, former: Iterable[tuple[Turn, asyncio.Task[None]]]) -> None:
        key = (turn.lease.session_id, turn.lease.epoch)
        set_context(CallContext(turn.grant.workspace_id, new_id("req"), self._runner_id))
        try:
            for other, task in former:
                if not other.over:
                    other.lose()
                await asyncio.wait({task})
            await turn.run()
        except Exception:
            log.exception("a turn broke", session_id=turn.lease.session_id, epoch=turn.lease.epoch)
        finally:
            del self._held[key]
            if turn.kept is not None:
                self._cache.put(key[0], turn.kept)
            else:
                self._cache.forget(key[0])
            self._news.set()

    def _note_if_scarce(self) -> None:
        if self._draining or self._told_free <= self._capacity // 4:
            self._scarce.set()

    def _is_due(self, lease: Lease) -> bool:
        return 0 < lease.remaining_seconds() < self._lease_seconds * 0.6

    async def _renew(self, due: list[Turn], context: CallContext) -> None:
        request = RenewLeasesRequest(
            runner_id=self._runner_id,
            turns=[HeldTurn(session_id=turn.lease.session_id, epoch=turn.lease.epoch) for turn in due],
        )
        sent = time.monotonic()
        try:
            answer = await self._turns.RenewLeases(
                request, context=context, timeout_seconds=self._lease_seconds / 3, retry=True
            )
        except DomainError as failed:
            log.warning("leases not renewed", turns=len(due), error=repr(failed))
            return
        lost = set(answer.lost_session_ids)
        for turn in due:
            if turn.lease.session_id in lost:
                turn.lose()
            else:
                turn.lease.extend(sent, answer.lease_seconds)
        for signal in answer.interrupted:
            self.hear(signal)

    async def _requests(self) -> AsyncIterator[ClaimTurnsRequest]:
        """What the service hears: all at first, then changes as they come."""
        for request in self._announcements(self._cache.everything()):
            request.loop_engines[:] = LOOP_ENGINES
            yield request
        while True:
            # Without news it says once per lease that it is there: a grant that never arrived, or a pause of this
            # process, may have left the service with another belief.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease_seconds):
                    await self._news.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(ANNOUNCE_LINGER_SECONDS):
                    await self._scarce.wait()
            if self._told_free > 1 and not self._draining:
                await asyncio.sleep(SCARCE_LINGER_SECONDS)
            self._news.clear()
            for request in self._announcements(self._cache.take_changes()):
                yield request

    def _announcements(self, known: dict[str, int]) -> Iterable[ClaimTurnsRequest]:
        contexts = [CachedContext(session_id=session_id, known_seq=seq) for session_id, seq in known.items()]
        free = 0 if self._draining else max(0, self._capacity - len(self._held))
        self._told_free = free
        self._scarce.clear()
        self._note_if_scarce()
        for at in range(0, max(1, len(contexts)), _CONTEXTS_PER_MESSAGE):
            part = contexts[at : at + _CONTEXTS_PER_MESSAGE]
            yield ClaimTurnsRequest(runner_id=self._runner_id, free_slots=free, cached=part)
