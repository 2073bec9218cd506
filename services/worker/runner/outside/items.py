"""Items of work, as the runner that waits for them sees them.

An item's id follows from the call of the tool and its number within that call, so asking for it again joins the same
item: a queue that restarts, or a connection that breaks, is asked again until the wait is over, and nothing is ever
run because of that. A failure is one of three codes that call for opposite answers.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from kit.errors import DeadlineExceeded, DomainError, Unavailable
from kit.ids import ALPHABET, MOMENT_CHARS, made_at
from kit.telemetry import log
from managed_agents.worker.v1.queue_pb2 import RunWorkItemRequest, StopSessionWorkRequest

QUEUE_TIMEOUT, OUTCOME_UNKNOWN, LEASE_LOST = "work_queue_timeout", "work_outcome_unknown", "work_lease_lost"
_CODES = {code.upper(): code for code in (QUEUE_TIMEOUT, OUTCOME_UNKNOWN, LEASE_LOST)}
_TOLD = {
    QUEUE_TIMEOUT: "No worker of the environment took this call in time, so nothing was run. It is safe to try again"
    " once a worker is there.",
    OUTCOME_UNKNOWN: "A worker had taken this call and told no result, so whether it took effect is not known. It was"
    " not run again. Check the state of things before you repeat it.",
    LEASE_LOST: "The session's work was stopped, so no result of this call is wanted any more.",
}
# How much longer than the item the queue may take to say how it ended.
_ANSWER_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_STOP_SECONDS = 10.0
# An edit takes two items, its overflow one more.
MOST_ITEMS_OF_A_CALL = 4
# A queue forgets what has ended, after an hour at the earliest (`work_keep_seconds`), and would begin it anew for who
# asks again. Clocks of two machines may differ a little.
_REMEMBERED_SECONDS = 3_000.0


class WorkFailed(Exception):
    """An item ended without a result that anybody may count on; `code` says in which of the three ways."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.message = _TOLD[code]
        super().__init__(f"{code}: {self.message}")


@dataclass(frozen=True, slots=True)
class Item:
    """What is to be done, and for whom."""

    id: str
    session_id: str
    environment_id: str
    kind: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What the worker said."""

    value: Any
    failed: bool


def item_id(event_id: str, number: int) -> str:
    """The id of a call's item; it sorts with the call."""
    moment = event_id.partition("_")[2][:MOMENT_CHARS].rjust(MOMENT_CHARS, "0")
    digest = int.from_bytes(hashlib.sha256(f"{event_id}\0{number}".encode()).digest()[:10])
    return "work_" + moment + "".join(ALPHABET[digest >> shift & 31] for shift in range(75, -1, -5))


def is_remembered(event_id: str) -> bool:
    """Whether what may have been put in since this event is known to the queue for certain, or was never put in."""
    return time.time() - made_at(event_id) < _REMEMBERED_SECONDS


class WorkQueue:
    """Has items run, and stops them."""

    def __init__(self, queue: Any, *, queue_seconds: float) -> None:
        """`queue` is the stub of QueueService; an item may wait for a worker for `queue_seconds`."""
        self._queue = queue
        self._queue_seconds = queue_seconds

    async def run(self, item: Item, *, run_seconds: float, check: Callable[[], None]) -> Result:
        """Have a worker run an item that takes at most so long. Raises WorkFailed, and what `check` does, which comes
        before each question: who was paused for long puts nothing in when it goes on."""
        request = RunWorkItemRequest(
            item_id=item.id,
            session_id=item.session_id,
            environment_id=item.environment_id,
            kind=item.kind,
            payload_json=orjson.dumps(item.payload),
            wait_seconds=self._queue_seconds + run_seconds,
            queue_seconds=self._queue_seconds,
        )
        deadline = time.monotonic() + request.wait_seconds + _ANSWER_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            check()
            try:
                answer = await self._queue.RunWorkItem(request, timeout_seconds=left)
            except (Unavailable, DeadlineExceeded) as away:
                if pause == _FIRST_PAUSE_SECONDS:
                    log.warning("the work queue could not be asked", item_id=item.id, error=repr(away))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            except DomainError as ended:
                if (code := _CODES.get(ended.reason)) is None:
                    raise
                raise WorkFailed(code) from ended
            else:
                return Result(orjson.loads(answer.result_json or b"null"), answer.failed)
        raise WorkFailed(OUTCOME_UNKNOWN)

    async def stop(self, session_id: str, item_ids: Sequence[str]) -> None:
        """Have these items stopped as far as they have not ended. Tried for a while; never raises."""
        request = StopSessionWorkRequest(session_id=session_id, item_ids=item_ids)
        deadline = time.monotonic() + _STOP_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._queue.StopSessionWork(request, retry=True)
                return
            except DomainError as failed:
                if time.monotonic() + pause >= deadline:
                    log.warning("work could not be stopped", session_id=session_id, error=repr(failed))
                    return
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
