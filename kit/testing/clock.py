"""A clock that only moves when a test says so."""

from datetime import UTC, datetime, timedelta


class FixedClock:
    """Begins at a fixed moment."""

    def __init__(self, moment: datetime = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)) -> None:
        self.moment = moment

    def now(self) -> datetime:
        return self.moment

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.moment += timedelta(seconds=seconds)
