"""The ticker's lease: exactly one process ticks at a time.

A lease is a *term* `(holder, epoch, expires_at)`. It is granted by a conditional
write with the database's clock, and each write of a term carries its epoch, so an
old term can neither renew nor tick after a newer one began. A holder stops trusting
its own term some time before the database ends it (`trusted_seconds`), by its own
monotonic clock, so a process that was paused never ticks beside its successor.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

LEASE_SECONDS = 15.0
RENEW_SECONDS = LEASE_SECONDS / 3
TRUST_MARGIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Lease:
    """A term as the database holds it."""

    holder: str
    epoch: int
    expires_at: datetime
    last_tick_at: datetime | None


@dataclass(frozen=True, slots=True)
class Term:
    """A term as its holder sees it: `asked_at` is its monotonic clock, in seconds,
    when it asked for the grant or the renewal that it now relies on."""

    holder: str
    epoch: int
    asked_at: float

    def is_trusted(self, now: float) -> bool:
        """Whether the holder may still act, at `now` on the same clock."""
        return now - self.asked_at < LEASE_SECONDS - TRUST_MARGIN_SECONDS
