"""Time as an argument: `clock.now()` where a handler needs it, so that tests own it.

started_at = rfc3339(SystemClock().now())   # '2026-11-29T21:08:47.123456Z'
"""

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Whatever tells the time."""

    def now(self) -> datetime:
        """The current moment, in UTC."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


def rfc3339(moment: datetime) -> str:
    """A moment as the public API shows it: UTC, always six digits of a second.

    A datetime without a zone is refused, since guessing one would move the moment silently.
    """
    offset = moment.utcoffset()
    if offset is None:
        raise ValueError("a datetime without a time zone names no moment")
    if offset:
        moment = moment.astimezone(UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
