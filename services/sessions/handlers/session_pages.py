"""Cursors and filters of the session listing.

A cursor holds the session at the edge of a page and the way to go from there. It belongs
to the filters and the order that it was made under; another query refuses it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import orjson

from kit.clock import rfc3339
from kit.pages import decode_cursor, encode_cursor
from managed_agents.sessions.v1.common_pb2 import PageInfo
from managed_agents.sessions.v1.sessions_pb2 import ListSessionsRequest
from services.sessions.domain.session_errors import InvalidRequest
from services.sessions.handlers.definitions import page_limit
from services.sessions.handlers.moments import read_bounds
from services.sessions.handlers.session_messages import STATUS_NAMES
from services.sessions.store.sessions import Position, SessionFilter

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Listing:
    """One page that was asked for."""

    narrowed: SessionFilter
    scope: str
    # The order that the caller sees.
    ascending: bool
    limit: int
    after: Position | None
    # True where the page before `after` is meant.
    backwards: bool

    @property
    def reads_ascending(self) -> bool:
        """The order in which to read: the caller's, turned around for a page before a position."""
        return self.ascending != self.backwards

    def cut(self, found: list[Found]) -> tuple[list[Found], bool]:
        """The page out of up to limit + 1 sessions in reading order, and whether there is more to read."""
        page = found[: self.limit]
        if self.backwards:
            page.reverse()
        return page, len(found) > self.limit

    def page_info(self, page: list[Position], more: bool) -> PageInfo:
        """Where the neighbours of a page are."""
        if not page:
            return PageInfo()
        # Whoever came by a cursor left a page behind: it is where they came from.
        before, behind = (more, True) if self.backwards else (self.after is not None, more)
        return PageInfo(
            next_cursor=self._cursor(page[-1], "next") if behind else "",
            previous_cursor=self._cursor(page[0], "previous") if before else "",
        )

    def _cursor(self, edge: Position, way: str) -> str:
        position = {"way": way, "created_at": rfc3339(edge.created_at), "id": edge.id}
        return encode_cursor(self.scope, position)


def read_listing(request: ListSessionsRequest) -> Listing:
    """What a request asks for, or the refusal of a filter or cursor."""
    if request.agent_version and not request.agent_id:
        raise InvalidRequest("agent_version needs agent_id beside it.", field="agent_version")
    for field in ("agent_id", "deployment_id", "memory_store_id"):
        if "\x00" in getattr(request, field):
            raise InvalidRequest(f"{field} must not contain NUL characters.", field=field)
    unknown = [status for status in request.statuses if status not in STATUS_NAMES]
    if unknown:
        raise InvalidRequest("statuses[] holds a status that is not known.", field="statuses[]")
    narrowed = SessionFilter(
        agent_id=request.agent_id,
        agent_version=request.agent_version,
        deployment_id=request.deployment_id,
        memory_store_id=request.memory_store_id,
        statuses=tuple(sorted({STATUS_NAMES[status] for status in request.statuses})),
        include_archived=request.include_archived,
        **read_bounds(request),
    )
    scope = _scope(narrowed, request.ascending)
    after, backwards = None, False
    if request.page.cursor:
        position = decode_cursor(request.page.cursor, scope)
        after = Position(datetime.fromisoformat(position["created_at"]).astimezone(UTC), position["id"])
        backwards = position["way"] == "previous"
    return Listing(narrowed, scope, request.ascending, page_limit(request.page), after, backwards)


def _scope(narrowed: SessionFilter, ascending: bool) -> str:
    filters = [getattr(narrowed, name) for name in SessionFilter.__slots__]
    return "sessions" + orjson.dumps([ascending, *filters]).decode()
