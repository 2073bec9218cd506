"""The lease machine of one item of the session protocol.

    queued ──poll──► queued, handed out ──ack──► starting ──heartbeat──► active
      ▲                                             │                      │
      └───────────────── lapse ─────────────────────┴──────────────────────┤
                                                                 stop ──► stopping ── stop, lapse ──► stopped

A token belongs to one attempt and dies with it. A holder that falls silent loses the item: it is queued again, and if
its worker had been heard from, the calls that it may have begun are settled first. An item that was asked to stop ends
instead. Functions take an item and answer with the item as it is to be; `now` is the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kit.clock import rfc3339

from .session_errors import HeartbeatPreconditionFailed, WorkAlreadyStopped

NO_HEARTBEAT = "NO_HEARTBEAT"
QUEUED, STARTING, ACTIVE, STOPPING, STOPPED = "queued", "starting", "active", "stopping", "stopped"
MAX_TTL_SECONDS = 600
MIN_TTL_SECONDS = 5
# Items in a row that may leave the same call waiting, until the session is told that nobody can serve it.
MOST_FRUITLESS = 5
LONGEST_PAUSE = timedelta(seconds=60)
# An item that its worker ended sooner than this was no help, whatever the worker thinks.
SHORT_LIFE = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class SessionItem:
    """One item."""

    id: str
    workspace_id: str
    environment_id: str
    session_id: str
    # `pending`, `claimed` or `stopped`, as in the common lease table.
    status: str
    revision: int
    attempt: int
    created_at: datetime
    metadata: str = "{}"
    available_at: datetime | None = None
    polled_at: datetime | None = None
    token_sha256: bytes | None = None
    lost_token_sha256: bytes | None = None
    acknowledged_at: datetime | None = None
    started_at: datetime | None = None
    heartbeat_at: datetime | None = None
    previous_heartbeat_at: datetime | None = None
    heartbeat_repeated: bool = False
    ttl_seconds: int = 0
    lease_expires_at: datetime | None = None
    stop_requested_at: datetime | None = None
    finished_at: datetime | None = None
    duty_seq: int = 0
    waiting_call_id: str = ""
    fruitless: int = 0
    settle_due: bool = False
    follow_up_due: bool = False

    @property
    def state(self) -> str:
        """What the protocol calls it."""
        if self.status == "claimed":
            if self.stop_requested_at is not None:
                return STOPPING
            return ACTIVE if self.heartbeat_at is not None else STARTING
        return QUEUED if self.status == "pending" else STOPPED

    @property
    def last_heartbeat(self) -> str:
        """The newest heartbeat as its holder has to repeat it; empty where none came."""
        return rfc3339(self.heartbeat_at) if self.heartbeat_at is not None else ""

    @property
    def heartbeat_before(self) -> str:
        """What a holder repeats that never heard the answer to its newest heartbeat."""
        if self.heartbeat_at is None or self.heartbeat_repeated:
            return ""
        return rfc3339(self.previous_heartbeat_at) if self.previous_heartbeat_at is not None else NO_HEARTBEAT


@dataclass(frozen=True, slots=True)
class Caller:
    """Who speaks about an item: with a token's digest, where it came with one."""

    token_sha256: bytes | None = None
    # Whether it is a worker of the environment, by key or by token.
    is_worker: bool = True

    def has_lost(self, item: SessionItem) -> bool:
        """Whether it came with the token of an attempt that is over."""
        return self.token_sha256 is not None and self.token_sha256 != item.token_sha256


def acknowledge(item: SessionItem, caller: Caller, now: datetime, ttl_seconds: int) -> SessionItem:
    """Begins the lease of an item that waits. Whoever has lost it finds out with the first heartbeat."""
    if item.status == "stopped":
        raise already_stopped(item)
    if item.status == "claimed" or caller.has_lost(item):
        return item
    return replace(
        item,
        status="claimed",
        acknowledged_at=now,
        started_at=None,
        heartbeat_at=None,
        previous_heartbeat_at=None,
        heartbeat_repeated=False,
        ttl_seconds=ttl_seconds,
        lease_expires_at=now + timedelta(seconds=ttl_seconds),
    )


def beat(
    item: SessionItem, caller: Caller, expected: str | None, now: datetime, desired_ttl_seconds: int | None
) -> tuple[SessionItem, bool]:
    """Renews the lease; the item, and whether it was renewed."""
    if caller.has_lost(item):
        raise _lost(item)
    if item.state in (STOPPING, STOPPED):
        return item, False
    if item.status == "pending":
        raise _lost(item)
    is_exact = expected is None or expected == (item.last_heartbeat or NO_HEARTBEAT)
    # Its token says that it is the holder, so the answer to its last heartbeat was lost. Once: two that share a token
    # would go on like that for ever.
    is_repeat = caller.token_sha256 is not None and bool(expected) and expected == item.heartbeat_before
    if not (is_exact or is_repeat):
        raise _lost(item)
    ttl_seconds = desired_ttl_seconds or item.ttl_seconds
    # A clock that stands still would make two heartbeats one.
    moment = max(now, item.heartbeat_at + timedelta(microseconds=1)) if item.heartbeat_at else now
    renewed = replace(
        item,
        started_at=item.started_at or moment,
        heartbeat_at=moment,
        previous_heartbeat_at=item.heartbeat_at,
        heartbeat_repeated=not is_exact,
        ttl_seconds=ttl_seconds,
        lease_expires_at=now + timedelta(seconds=ttl_seconds),
    )
    return renewed, True


def bounded_ttl(desired: int, default: int) -> int:
    """The time to live that is granted to who wants this one."""
    return max(min(MIN_TTL_SECONDS, default), min(desired, MAX_TTL_SECONDS))


def stop(item: SessionItem, caller: Caller, now: datetime, *, force: bool) -> SessionItem:
    """Asks the holder to stop, or ends the item where nobody has it or `force` says so."""
    if item.status == "stopped" or caller.has_lost(item):
        # For who has lost it it is over; it is somebody else's now.
        raise already_stopped(item)
    if item.status == "pending" or force:
        # What its own worker leaves it has not begun; from anybody else's side that can't be told.
        return end(item, now, settle=item.heartbeat_at is not None and not caller.is_worker)
    return replace(item, stop_requested_at=item.stop_requested_at or now)


def end(item: SessionItem, now: datetime, *, settle: bool = False, follow_up: bool = True) -> SessionItem:
    """The end of an item, whatever it stood at."""
    return replace(
        item,
        status="stopped",
        stop_requested_at=item.stop_requested_at or now,
        finished_at=now,
        token_sha256=None,
        lost_token_sha256=item.token_sha256 or item.lost_token_sha256,
        settle_due=item.settle_due or settle,
        follow_up_due=follow_up,
    )


def lapse(item: SessionItem, now: datetime) -> SessionItem:
    """What becomes of an item whose holder fell silent."""
    if item.status != "claimed" or item.lease_expires_at is None or item.lease_expires_at > now:
        return item
    was_heard = item.heartbeat_at is not None
    if item.stop_requested_at is not None:
        return end(item, now, settle=was_heard)
    return replace(
        item,
        status="pending",
        # In the queue it stands behind those that wait already: a session that ends its workers holds nobody up.
        available_at=now,
        polled_at=None,
        acknowledged_at=None,
        started_at=None,
        heartbeat_at=None,
        previous_heartbeat_at=None,
        heartbeat_repeated=False,
        lease_expires_at=None,
        token_sha256=None,
        lost_token_sha256=item.token_sha256,
        settle_due=was_heard,
    )


def successor_pause(item: SessionItem, waiting_call_id: str) -> tuple[int, timedelta]:
    """For the item after this one: how many left this call waiting, and how long it is held back.

    One that somebody else stopped says nothing about its worker, and one whose call was answered was of use.
    """
    fruitless = item.fruitless + 1 if waiting_call_id and waiting_call_id == item.waiting_call_id else 0
    pause = timedelta(seconds=2 ** (fruitless - 1)) if fruitless else timedelta()
    was_stopped = item.settle_due or item.stop_requested_at != item.finished_at
    has_served = bool(item.waiting_call_id) and not fruitless
    if item.finished_at is not None and item.acknowledged_at is not None and not was_stopped and not has_served:
        # A worker that fails at once would otherwise come round as fast as it can poll.
        lived = item.finished_at - item.acknowledged_at
        pause = max(pause, timedelta(seconds=1) if lived < SHORT_LIFE else timedelta())
    return fruitless, min(pause, LONGEST_PAUSE)


def already_stopped(item: SessionItem) -> WorkAlreadyStopped:
    """The refusal for an item that is over."""
    return WorkAlreadyStopped(f"The work item {item.id} has stopped already.", work_id=item.id)


def _lost(item: SessionItem) -> HeartbeatPreconditionFailed:
    return HeartbeatPreconditionFailed(item.id, item.state, item.last_heartbeat or None, item.ttl_seconds)
