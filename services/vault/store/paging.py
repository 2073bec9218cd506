"""Pages of the vault's collections, newest first, with cursors in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, LiteralString, Protocol, TypeVar

from kit.clock import rfc3339
from kit.pages import InvalidCursor, decode_cursor, encode_cursor

MAX_ID_CHARACTERS = 256


class Entry(Protocol):
    """What a page holds."""

    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> datetime: ...


E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class Position:
    """Beside which entry a page begins, and on which side of it."""

    at: datetime | None = None
    id: str = ""
    backwards: bool = False

    def values(self) -> dict[str, Any]:
        """As parameters of a statement."""
        return {"beside_at": self.at, "beside_id": self.id}

    def condition(self) -> LiteralString:
        """The end of a statement over rows with `created_at` and `id`, whose condition has begun."""
        return _OLDER if not self.backwards else _NEWER


_OLDER: LiteralString = """
  AND (created_at, id) < (coalesce(%(beside_at)s::timestamptz, 'infinity'), %(beside_id)s)
ORDER BY created_at DESC, id DESC LIMIT %(limit)s
"""
_NEWER: LiteralString = """
  AND (created_at, id) > (%(beside_at)s::timestamptz, %(beside_id)s)
ORDER BY created_at, id LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Page(Generic[E]):
    """A page in reading order, with the cursors of its neighbours."""

    entries: list[E]
    next_cursor: str
    previous_cursor: str


def read_position(cursor: str, scope: str) -> Position:
    """Where a page begins; `scope` names the collection with its view, which the cursor must be of."""
    if not cursor:
        return Position()
    found = decode_cursor(cursor, scope)
    try:
        at, entry_id = datetime.fromisoformat(found["at"]).astimezone(UTC), found["id"]
        if isinstance(entry_id, str) and len(entry_id) <= MAX_ID_CHARACTERS and "\x00" not in entry_id:
            return Position(at, entry_id, found["back"] is True)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    # The checksum of a cursor keeps mistakes out, not somebody who computes it.
    raise InvalidCursor("The page cursor was not issued by this listing.", field="page")


def page_of(found: Sequence[E], position: Position, limit: int, scope: str) -> Page[E]:
    """The page that was found with one entry more than its limit, where there was one."""
    more = len(found) > limit
    entries = list(found[:limit])
    if position.backwards:
        entries.reverse()
    if not entries:
        return Page([], "", "")
    is_last = position.backwards is False and not more
    is_first = (position.at is None) or (position.backwards and not more)
    return Page(
        entries,
        "" if is_last else _cursor(scope, entries[-1], back=False),
        "" if is_first else _cursor(scope, entries[0], back=True),
    )


def _cursor(scope: str, entry: Entry, *, back: bool) -> str:
    return encode_cursor(scope, {"at": rfc3339(entry.created_at), "id": entry.id, "back": back})
