"""The lease machine of one work item of the tool protocol.

    pending ──claim──► claimed ──accept──► claimed, accepted
       ▲                  │                     │
       └──── lapse ───────┘                 complete ──► completed | failed
    any of them ── stop, expire ──► stopped | failed with a code

A claim is a lease. Only under a live one may an item be accepted, and only an accepted item is run; so an unaccepted
claim that lapsed is pending again, while an accepted item is never handed out a second time: what it did is unknown
until its holder tells, however late. Each function takes the item as it is and answers with the item as it is to be,
the very same object where nothing changes; a refusal is raised. `now` is the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from .errors import WorkItemHeld, WorkLeaseLost, WorkOutcomeUnknown, WorkQueueTimeout

# How long a holder may be silent beyond its lease.
SILENCE = timedelta(seconds=30)


class Status(StrEnum):
    """Where an item is."""

    PENDING = "pending"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class EndCode(StrEnum):
    """Why an item ended without a result."""

    QUEUE_TIMEOUT = "work_queue_timeout"
    OUTCOME_UNKNOWN = "work_outcome_unknown"
    LEASE_LOST = "work_lease_lost"


@dataclass(frozen=True, slots=True)
class Item:
    """An item without what it is to do and what came of it."""

    id: str
    workspace_id: str
    environment_id: str
    session_id: str
    kind: str
    status: Status
    # Grows with every write.
    revision: int
    # How often it was handed out.
    attempt: int
    created_at: datetime
    # Until when it may be without a worker, and until when somebody waits for its end.
    queue_until: datetime | None = None
    wait_until: datetime | None = None
    # The replica on which somebody waits for its end.
    waiter: str = ""
    holder: str | None = None
    claimed_at: datetime | None = None
    lease_expires_at: datetime | None = None
    accepted_at: datetime | None = None
    stopped_at: datetime | None = None
    ended_at: datetime | None = None
    end_code: EndCode | None = None

    @property
    def is_ended(self) -> bool:
        """Whether nothing happens to it any more."""
        return self.ended_at is not None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who says that it holds an item; `attempt` 0 where only the name is known."""

    worker_id: str
    attempt: int = 0

    def holds(self, item: Item) -> bool:
        """Whether it does, or did last."""
        return item.holder == self.worker_id and self.attempt in (0, item.attempt)


def is_claimable(item: Item, now: datetime) -> bool:
    """Whether the item may be handed out."""
    if item.status is not Status.PENDING or item.stopped_at is not None:
        return False
    return not _is_overdue(item, now)


def claim(item: Item, worker_id: str, now: datetime, lease: timedelta) -> Item:
    """Hands the item out. WorkItemHeld where somebody else was quicker, or it is not to be had any more."""
    if not is_claimable(item, now):
        raise WorkItemHeld("The item is not to be had any more.", item_id=item.id)
    return replace(
        item,
        status=Status.CLAIMED,
        attempt=item.attempt + 1,
        holder=worker_id,
        claimed_at=now,
        lease_expires_at=now + lease,
    )


def accept(item: Item, by: Holder, now: datetime, lease: timedelta) -> Item:
    """Lets the holder run the item, under a live lease only."""
    _require_wanted(item, by)
    assert item.lease_expires_at is not None
    if item.lease_expires_at <= now:
        raise WorkLeaseLost("The lease lapsed before the item was accepted: don't run it.", item_id=item.id)
    return replace(item, accepted_at=item.accepted_at or now, lease_expires_at=now + lease)


def renew(item: Item, by: Holder, now: datetime, lease: timedelta) -> Item:
    """Prolongs the lease of the holder, a lapsed one too: what runs can't be un-run."""
    _require_wanted(item, by)
    return replace(item, lease_expires_at=now + lease)


def complete(item: Item, by: Holder, now: datetime, *, failed: bool) -> Item:
    """Ends the item with what its holder reports. That it was stopped, or its lease lapsed, does not undo an effect."""
    if item.is_ended:
        if not by.holds(item):
            raise _held(item)
        if item.end_code is None:
            return item
        raise _over(item)
    if item.status is not Status.CLAIMED or not by.holds(item):
        raise _held(item)
    return _end(item, Status.FAILED if failed else Status.COMPLETED, now)


def give_back(item: Item, by: Holder) -> Item:
    """Takes a claim back whose answer never reached the worker. Accepted items and others' are left alone."""
    if item.status is not Status.CLAIMED or not by.holds(item) or item.accepted_at is not None:
        return item
    return replace(_unclaimed(item), attempt=item.attempt - 1)


def lapse(item: Item, now: datetime) -> Item:
    """Makes an unaccepted claim whose lease is over pending again, or ends it if it was stopped meanwhile."""
    if item.status is not Status.CLAIMED or item.accepted_at is not None:
        return item
    assert item.lease_expires_at is not None
    if item.lease_expires_at > now:
        return item
    if item.stopped_at is not None:
        return _end(item, Status.STOPPED, now, EndCode.LEASE_LOST)
    return _unclaimed(item)


def stop(item: Item, now: datetime) -> Item:
    """Stops the item: nobody gets it any more, and its holder is told with the next heartbeat."""
    if item.is_ended or item.stopped_at is not None:
        return item
    stopped = replace(item, stopped_at=now)
    return _end(stopped, Status.STOPPED, now, EndCode.LEASE_LOST) if item.status is Status.PENDING else stopped


def expire(item: Item, now: datetime, silence: timedelta = SILENCE) -> Item:
    """Ends an item whose time is over: a stop is told first, then whether a worker ever had it."""
    if item.is_ended or not _is_overdue(item, now, silence):
        return item
    if item.stopped_at is not None:
        return _end(item, Status.STOPPED, now, EndCode.LEASE_LOST)
    code = EndCode.OUTCOME_UNKNOWN if item.attempt else EndCode.QUEUE_TIMEOUT
    return _end(item, Status.FAILED, now, code)


def due(item: Item, silence: timedelta = SILENCE) -> datetime | None:
    """When to look whether the time of the item is over.

    A holder that has accepted it and has been silent for so long after its lease is taken for dead: its result is
    taken until then, and whoever waits is not kept waiting for the rest of the time.
    """
    if item.accepted_at is not None and item.lease_expires_at is not None and item.wait_until is not None:
        return min(item.lease_expires_at + silence, item.wait_until)
    if item.attempt == 0 and item.queue_until is not None and item.wait_until is not None:
        return min(item.queue_until, item.wait_until)
    return item.wait_until


def require_result(item: Item) -> None:
    """Refuses, as its waiter is to be told, an item that ended without a result."""
    match item.end_code:
        case EndCode.QUEUE_TIMEOUT:
            raise WorkQueueTimeout("No worker took the item in time; it may be submitted again.", item_id=item.id)
        case EndCode.OUTCOME_UNKNOWN:
            raise WorkOutcomeUnknown(
                "A worker took the item and told no result in time; whether it had an effect is unknown.",
                item_id=item.id,
            )
        case EndCode.LEASE_LOST:
            raise WorkLeaseLost("The work was stopped; no result is wanted.", item_id=item.id)


def _is_overdue(item: Item, now: datetime, silence: timedelta = SILENCE) -> bool:
    moment = due(item, silence)
    return moment is not None and moment <= now


def _require_wanted(item: Item, by: Holder) -> None:
    if item.is_ended:
        raise _over(item)
    if item.status is not Status.CLAIMED or not by.holds(item):
        raise _held(item)
    if item.stopped_at is not None:
        raise WorkLeaseLost("The session ended or stopped this work: don't run it, stop what runs.", item_id=item.id)


def _held(item: Item) -> WorkItemHeld:
    return WorkItemHeld(f"This worker does not hold the item {item.id}.", item_id=item.id)


def _over(item: Item) -> WorkLeaseLost:
    return WorkLeaseLost(f"The item {item.id} is over; nothing that is done for it is wanted.", item_id=item.id)


def _unclaimed(item: Item) -> Item:
    return replace(item, status=Status.PENDING, holder=None, claimed_at=None, lease_expires_at=None)


def _end(item: Item, status: Status, now: datetime, code: EndCode | None = None) -> Item:
    return replace(item, status=status, ended_at=now, end_code=code)
