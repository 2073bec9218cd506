"""The database's clock, read without asking it: the only clock that leases and deadlines are measured by.

Whatever statement tells the time sets it anew; in between it goes on by the monotonic clock of this process. So it
trails the database by the way of an answer, a few milliseconds, and hosts whose clocks differ agree.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta


class DatabaseClock:
    """The time as the database tells it."""

    def __init__(self) -> None:
        self._told_at = time.monotonic()
        self._told = datetime.now(UTC)

    def tell(self, now: datetime | None) -> None:
        """Takes what the database just said."""
        if now is not None:
            self._told, self._told_at = now, time.monotonic()

    def now(self) -> datetime:
        """The moment, trailing the database's by little."""
        return self._told + timedelta(seconds=time.monotonic() - self._told_at)

    def seconds_until(self, moment: datetime) -> float:
        """What is left until then; 0 where it is over."""
        return max(0.0, (moment - self.now()).total_seconds())
