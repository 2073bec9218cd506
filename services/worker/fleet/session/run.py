"""One session while its item is here: its calls are run one by one, in the order of the log.

It ends when the session does, rests for long enough, is stopped, or its lease is over; then the shell is ended first,
memory is brought home, and the item is stopped, unless it is somebody else's by now.
"""

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

from services.worker.fleet.backoff import Backoff
from services.worker.fleet.errors import Refused, Unreachable
from services.worker.fleet.metrics import Metrics
from services.worker.fleet.platform import settled
from services.worker.fleet.reporter import Reporter
from services.worker.fleet.session.api import SessionApi
from services.worker.fleet.session.calls import Calls, ToolCall
from services.worker.fleet.session.folders import HeldFolder
from services.worker.fleet.session.lease import Lease
from services.worker.fleet.session.log import SessionLog
from services.worker.fleet.session.memory import Memories
from services.worker.fleet.stopping import Stopping
from services.worker.sandbox.provider import Sandbox
from services.worker.tools import TOOL_SPECS

OUTCOME_UNKNOWN = (
    "work_outcome_unknown: the worker was killed while it ran this call, so whether it took effect is not known. It was"
    " not run again. Check the state of things before you repeat it."
)
_SEND_CAP_SECONDS = 30.0


class SessionRun:
    """One session."""

    def __init__(
        self,
        api: SessionApi,
        sandbox: Sandbox,
        memories: Memories,
        held: HeldFolder,
        lease: Lease,
        *,
        stopping: Stopping,
        max_idle_seconds: float,
        notes: list[str],
        metrics: Metrics,
        reporter: Reporter,
    ) -> None:
        self._api = api
        self._sandbox = sandbox
        self._memories = memories
        self._held = held
        self._lease = lease
        self._stopping = stopping
        self._max_idle_seconds = max_idle_seconds
        # For the agent, with its next result.
        self._notes = notes
        self._metrics = metrics
        self._reporter = reporter
        self._calls = Calls(TOOL_SPECS)
        self._changed = asyncio.Event()
        self._log = SessionLog(api, take=self._calls.take, changed=self._changed.set, reporter=reporter)
        self._facts = {"session": held.session_id}

    @property
    def ended(self) -> bool:
        """Whether the session takes nothing any more."""
        return self._calls.ended

    @property
    def folder(self) -> Path:
        """Its folder."""
        return self._held.path

    async def run(self) -> None:
        """Until there is nothing more to do here. Raises Refused where the session is out of reach."""
        following = asyncio.create_task(self._log.follow(), name=f"log of {self._held.session_id}")
        over = asyncio.create_task(self._lease.over.wait())
        asked = asyncio.create_task(self._stopping.asked.wait())
        try:
            await self._serve({following, over, asked})
            if following.done() and not following.cancelled() and not self._calls.ended:
                following.result()
        finally:
            for task in (following, over, asked):
                await settled(task)

    async def _serve(self, ends: set[asyncio.Task[Any]]) -> None:
        resting_since: float | None = None
        while not self._calls.ended and not any(task.done() for task in ends):
            self._changed.clear()
            if self._log.read and (call := self._calls.next()) is not None:
                resting_since = None
                await self._do(call)
                continue
            left: float | None = None
            if self._log.read and self._calls.resting and not self._calls.waiting:
                resting_since = resting_since or time.monotonic()
                left = resting_since + self._max_idle_seconds - time.monotonic()
                if left <= 0:
                    self._reporter.info("the session rests; it is let go", **self._facts)
                    return
            else:
                resting_since = None
            await self._until_changed(ends, left)

    async def _until_changed(self, ends: set[asyncio.Task[Any]], seconds: float | None) -> None:
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({changed, *ends}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await settled(changed)

    async def _do(self, call: ToolCall) -> None:
        if self._held.left is not None and self._held.left.call_id == call.id:
            # A worker that was killed had begun it.
            text, is_error = OUTCOME_UNKNOWN, True
        else:
            await asyncio.to_thread(self._held.note_call, call.id)
            if not self._calls.is_wanted(call.id):
                return
            began = time.monotonic()
            text, is_error = await self._run_tool(call)
            outcome = "failed" if is_error else "completed"
            self._metrics.ended(call.name, outcome, time.monotonic() - began)
            if self._lease.cuts:
                # Whoever has the session now tells what became of the call.
                return
            self._notes += await self._memories.agree(self.folder, pull=False)
        notes, self._notes = self._notes, []
        text = "\n".join((text, *notes)) if notes else text
        await self._tell(call, text or "(no output)", is_error=is_error)
        self._calls.settle(call.id)
        await asyncio.to_thread(self._held.note_call, None)

    async def _run_tool(self, call: ToolCall) -> tuple[str, bool]:
        """Run it; cut off when nobody waits for it any more, and with the lease."""
        running = asyncio.create_task(self._sandbox.run_tool(call.name, call.input), name=f"{call.name} {call.id}")
        cut = asyncio.create_task(self._lease.cut.wait())
        try:
            while not running.done():
                self._changed.clear()
                if not self._calls.is_wanted(call.id):
                    self._changed.set()
                changed = asyncio.create_task(self._changed.wait())
                waits = {running, changed} | ({cut} if not cut.done() else set())
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                await settled(changed)
                if self._lease.cuts or not self._calls.is_wanted(call.id) or self._calls.ended:
                    self._sandbox.interrupt()
                    await asyncio.wait({running}, timeout=10.0)
                    break
            if not running.done():
                return "The call was interrupted.", True
            outcome = running.result()
            return outcome.text, outcome.is_error
        finally:
            await settled(cut)
            await settled(running)
            self._changed.set()

    async def _tell(self, call: ToolCall, text: str, *, is_error: bool) -> None:
        """Send the result until it is taken or refused, for as long as the lease may be ours."""
        backoff = Backoff(cap_seconds=_SEND_CAP_SECONDS)
        until = time.monotonic() + self._lease.ttl_seconds
        for attempt in itertools.count(1):
            try:
                await self._api.send_result(call.id, text, is_error=is_error)
                return
            except Refused as refused:
                # Interrupted, answered by somebody else, or ended: nobody waits for it.
                self._reporter.info("a result was not wanted", call=call.id, reason=refused.message, **self._facts)
                return
            except Unreachable as away:
                self._metrics.calls_failed += 1
                if not self._lease.is_ours or self._lease.cuts or time.monotonic() > until:
                    self._reporter.error(
                        "a result could not be delivered", call=call.id, attempts=attempt, **self._facts
                    )
                    return
                await asyncio.sleep(backoff.next_seconds(away.retry_after_seconds))
