"""The life of one item here: accepted, run, renewed meanwhile, told of until somebody has heard.

    claimed ── accept ──► runs ── result ──► complete, again until it is taken or refused
       │                   │
       └ refused: nothing  └ a renewal says `work_lease_lost`: ended, and reported failed with that code
         is run or told

Any other renewal that fails says nothing that would be worth a command stopped halfway: the item runs on.
"""

import asyncio
import time
from typing import Any

from services.worker.fleet.backoff import Backoff
from services.worker.fleet.errors import Refused, Unreachable
from services.worker.fleet.metrics import Metrics
from services.worker.fleet.platform import settled
from services.worker.fleet.reporter import Reporter
from services.worker.fleet.tool.kinds import ItemFailed, Kinds
from services.worker.fleet.tool.queue import LEASE_LOST, Item, WorkQueue, is_lost

_LOST = ItemFailed(LEASE_LOST, "The session's work was stopped while this ran, so it was ended.")


class ItemRun:
    """One item."""

    def __init__(
        self,
        item: Item,
        *,
        queue: WorkQueue,
        kinds: Kinds,
        heartbeat_seconds: float,
        metrics: Metrics,
        reporter: Reporter,
    ) -> None:
        self._item = item
        self._queue = queue
        self._kinds = kinds
        # A renewal that is sent too late keeps nothing: half a lease leaves room for one that fails.
        self._heartbeat_seconds = min(heartbeat_seconds, item.lease_seconds / 2)
        self._metrics = metrics
        self._reporter = reporter
        self._facts = {"item": item.id, "kind": item.kind, "session": item.session_id}

    async def run(self) -> None:
        """From the claim to the end. Never raises but for being cancelled."""
        began = time.monotonic()
        outcome = "lost"
        try:
            if not await self._accepted():
                outcome = "refused"
                return
            outcome = await self._run_and_tell()
        except Exception as error:
            self._reporter.error("an item failed inside the worker", error=repr(error), **self._facts)
        finally:
            self._metrics.ended(self._item.kind[:20], outcome, time.monotonic() - began)

    async def _accepted(self) -> bool:
        """Whether the item may be run. Asked again while no answer comes and the lease can still be ours."""
        backoff = Backoff(first_seconds=0.1, cap_seconds=2.0)
        while not self._item.lapsed:
            try:
                await self._queue.accept(self._item)
                return True
            except Refused as refused:
                self._reporter.info("not run: the claim no longer holds", reason=refused.message, **self._facts)
                return False
            except Unreachable as away:
                self._metrics.calls_failed += 1
                self._reporter.debug("no answer to an accept", reason=str(away), **self._facts)
                await asyncio.sleep(backoff.next_seconds(away.retry_after_seconds))
        self._reporter.warning("not run: no answer came while the claim held", **self._facts)
        return False

    async def _run_and_tell(self) -> str:
        lost = asyncio.Event()
        renewing = asyncio.create_task(self._renew(lost), name=f"renewals of {self._item.id}")
        try:
            result, failed = await self._result(lost)
            delivered = await self._tell(result, failed=failed)
            self._kinds.told(self._item.id)
        finally:
            await settled(renewing)
        if not delivered:
            return "lost"
        return "stopped" if lost.is_set() and result == _LOST.result else "failed" if failed else "completed"

    async def _result(self, lost: asyncio.Event) -> tuple[dict[str, Any], bool]:
        running = asyncio.create_task(
            self._kinds.run(self._item.id, self._item.kind, self._item.payload), name=f"item {self._item.id}"
        )
        losing = asyncio.create_task(lost.wait())
        try:
            await asyncio.wait((running, losing), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                self._reporter.info("ended: its session's work was stopped", **self._facts)
                await settled(running)
                return _LOST.result, True
            try:
                return running.result(), False
            except ItemFailed as failure:
                return failure.result, True
            except Exception as error:
                self._reporter.error("an item failed unexpectedly", error=repr(error), **self._facts)
                return ItemFailed("worker_error", "The worker failed; its log tells more.").result, True
        finally:
            await settled(losing)
            await settled(running)

    async def _renew(self, lost: asyncio.Event) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            try:
                await self._queue.renew(self._item)
                self._metrics.heard()
                continue
            except Refused as refused:
                self._metrics.renewals_failed += 1
                if is_lost(refused):
                    lost.set()
                    return
                self._reporter.warning("a renewal was refused; the item runs on", reason=str(refused), **self._facts)
                if refused.status == 404:
                    # There is no such item any more: asking on would be asking for ever.
                    return
            except Unreachable as away:
                self._metrics.renewals_failed += 1
                self._reporter.warning("a renewal failed; the item runs on", reason=str(away), **self._facts)

    async def _tell(self, result: dict[str, Any], *, failed: bool) -> bool:
        """Report the end, again and again until it is taken or refused."""
        backoff = Backoff()
        while True:
            try:
                await self._queue.complete(self._item, result, failed=failed)
                self._metrics.heard()
                return True
            except Refused as refused:
                if refused.status in (400, 413, 422) and not failed:
                    # It is the result that is not wanted; that there is none must still be told.
                    failed = True
                    result = ItemFailed("result_refused", f"The result was refused: {refused.message}.").result
                    continue
                self._reporter.warning("nobody takes the result any more", reason=str(refused), **self._facts)
                return False
            except Unreachable as away:
                self._metrics.calls_failed += 1
                wait = backoff.next_seconds(away.retry_after_seconds)
                self._reporter.warning("a result could not be delivered yet", reason=str(away), **self._facts)
                await asyncio.sleep(wait)
