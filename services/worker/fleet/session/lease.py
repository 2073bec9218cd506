"""The lease of a session's item: held by heartbeats, each of which names the one before."""

import asyncio
import enum
import time

from services.worker.fleet.errors import Refused, Unreachable
from services.worker.fleet.metrics import Metrics
from services.worker.fleet.reporter import Reporter
from services.worker.fleet.session.api import NO_HEARTBEAT, Work, WorkApi

USUAL_TTL_SECONDS = 90.0
LONGEST_INTERVAL_SECONDS = 30.0
_LOST = 412
# What is left of the lease when an item that is to stop is cut off: memory is brought home in it.
_MARGIN = 0.25


class End(enum.Enum):
    """Why a lease is over."""

    # The platform asks to stop: what runs is finished.
    STOPPING = "stopping"
    # The platform has stopped it: what runs is cut off.
    STOPPED = "stopped"
    # It is the queue's or another worker's.
    LOST = "lost"
    # What was to be finished took longer than the lease.
    OVERTIME = "overtime"
    # No heartbeat came through for as long as it could last.
    SILENT = "silent"
    # The platform will never take another heartbeat, such as for an item that is gone.
    REFUSED = "refused"


class Lease:
    """Beats until told otherwise. `over` is set with the first reason, `cut` when what runs must not go on."""

    def __init__(
        self, api: WorkApi, work: Work, *, heartbeat_seconds: float, metrics: Metrics, reporter: Reporter
    ) -> None:
        self._api = api
        self._work = work
        self._longest = min(heartbeat_seconds, LONGEST_INTERVAL_SECONDS)
        self._metrics = metrics
        self._reporter = reporter
        self._interval = self._longest
        self.ttl_seconds = USUAL_TTL_SECONDS
        self.over = asyncio.Event()
        self.cut = asyncio.Event()
        self.end: End | None = None

    @property
    def is_ours(self) -> bool:
        """Whether the item is still this worker's to stop."""
        return self.end not in (End.LOST, End.SILENT, End.OVERTIME)

    @property
    def cuts(self) -> bool:
        """Whether what runs must not go on."""
        return self.cut.is_set()

    async def keep(self) -> None:
        """Beat until it is over."""
        last, heard_at = NO_HEARTBEAT, time.monotonic()
        cut_at: float | None = None
        while True:
            try:
                beat = await self._api.heartbeat(self._work, last, max(self._interval, 1.0))
            except Refused as refused:
                self._metrics.renewals_failed += 1
                self._finish(End.LOST if refused.status == _LOST else End.REFUSED, refused.message)
                return
            except Unreachable as away:
                self._metrics.renewals_failed += 1
                if time.monotonic() - heard_at > self.ttl_seconds:
                    self._finish(End.SILENT, str(away))
                    return
                self._reporter.warning("a heartbeat failed", item=self._work.id, reason=str(away))
            else:
                extended_at, heard_at = heard_at, time.monotonic()
                last = beat.last
                self._metrics.heard()
                if beat.ttl_seconds > 0:
                    self.ttl_seconds = beat.ttl_seconds
                    self._interval = max(0.05, min(beat.ttl_seconds / 2, self._longest))
                if beat.state == "stopped":
                    self._finish(End.STOPPED, "the platform has stopped it")
                    return
                if cut_at is None and (beat.state == "stopping" or not beat.extended):
                    # It prolongs nothing any more: what is not finished in time is taken for lost there.
                    cut_at = extended_at + (1 - _MARGIN) * self.ttl_seconds
                    self._finish(End.STOPPING, "the platform asks to stop")
            left = self._interval if cut_at is None else cut_at - time.monotonic()
            if left <= 0:
                self._finish(End.OVERTIME, "what was to be finished took longer than the lease")
                return
            await asyncio.sleep(min(left, self._interval))

    def _finish(self, end: End, why: str) -> None:
        self.end = end
        self.over.set()
        if end is not End.STOPPING:
            self.cut.set()
        say = self._reporter.info if end in (End.STOPPING, End.STOPPED) else self._reporter.warning
        say("the lease is over", item=self._work.id, end=end.value, reason=why)
