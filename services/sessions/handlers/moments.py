"""Bounds on creation times, as they come in requests."""

from datetime import UTC, datetime
from typing import Protocol

from services.sessions.domain.session_errors import InvalidRequest


class HasBounds(Protocol):
    """A request with the four bounds; empty ones are not set."""

    created_at_gt: str
    created_at_gte: str
    created_at_lt: str
    created_at_lte: str


def read_bounds(request: HasBounds) -> dict[str, datetime | None]:
    """The four bounds by name, each a moment or None."""
    return {
        f"created_at_{name}": read_moment(getattr(request, f"created_at_{name}"), f"created_at[{name}]")
        for name in ("gt", "gte", "lt", "lte")
    }


def read_moment(value: str, field: str) -> datetime | None:
    """One moment of a request; None where it is empty."""
    if not value:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None or len(value) < len("2026-01-01T00:00:00Z"):
            raise ValueError(value)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{field} must be a time in RFC 3339 with its zone, such as 2026-01-31T09:30:00Z.", field=field
        ) from None
