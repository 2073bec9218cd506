"""The ticker: one process at a time does what is due.

A process that holds no term asks for one as soon as the current one can have ended.
A holder renews each third of the lease and runs the due work in between, as long as
it still trusts its term. What is due is a list of jobs; this version has none, so a
tick only proves that the term lives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from kit.errors import DomainError
from kit.postgres import Database
from kit.telemetry import log
from kit.waiting import within
from services.scheduler.domain.lease import LEASE_SECONDS, RENEW_SECONDS, Term
from services.scheduler.store.leases import LeaseStore

Job = Callable[[Term], Awaitable[None]]


class Ticker:
    """Holds or awaits the ticker's lease under the name `holder`."""

    def __init__(self, database: Database, holder: str, jobs: Sequence[Job] = ()) -> None:
        self._database = database
        self._holder = holder
        self._jobs = tuple(jobs)
        self._term: Term | None = None
        self._stopping = asyncio.Event()

    @property
    def holder(self) -> str:
        """The name that this process has in the lease."""
        return self._holder

    async def run(self) -> None:
        """Ticks or waits until `stop`. A database that is away costs the term, not the process."""
        while not self._stopping.is_set():
            try:
                await self._step()
            except DomainError as error:
                log.warning("ticker.step_failed", reason=error.reason, message=error.message)
            try:
                await within(self._stopping.wait(), RENEW_SECONDS)
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """Ends the loop and gives the term back."""
        self._stopping.set()
        if self._term is None:
            return
        term, self._term = self._term, None
        async with self._database.platform_transaction() as tx:
            await LeaseStore(tx).resign(term.holder, term.epoch)

    async def _step(self) -> None:
        if self._term is None or not self._term.is_trusted(time.monotonic()):
            self._term = await self._ask()
        if self._term is None:
            return
        for job in self._jobs:
            if not self._term.is_trusted(time.monotonic()):
                break
            await job(self._term)
        self._term = await self._renew(self._term)

    async def _ask(self) -> Term | None:
        asked_at = time.monotonic()
        async with self._database.platform_transaction() as tx:
            epoch = await LeaseStore(tx).grant(self._holder, LEASE_SECONDS)
        if epoch is None:
            return None
        log.info("ticker.term_began", holder=self._holder, epoch=epoch)
        return Term(self._holder, epoch, asked_at)

    async def _renew(self, term: Term) -> Term | None:
        asked_at = time.monotonic()
        async with self._database.platform_transaction() as tx:
            renewed = await LeaseStore(tx).renew(term.holder, term.epoch, LEASE_SECONDS, ticked=True)
        if not renewed:
            log.warning("ticker.term_lost", holder=term.holder, epoch=term.epoch)
            return None
        return Term(term.holder, term.epoch, asked_at)
