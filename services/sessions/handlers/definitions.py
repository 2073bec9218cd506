"""What agents and environments have in common at the edge: bodies, ids, pages, repeats."""

from datetime import UTC, datetime
from typing import Any

import orjson

from kit.clock import rfc3339
from kit.idempotency import once as once
from kit.pages import InvalidCursor, decode_cursor, encode_cursor
from managed_agents.sessions.v1.common_pb2 import Page
from services.sessions.domain.errors import InvalidJson
from services.sessions.domain.threads import is_thread

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


def read_body(encoded: bytes) -> dict[str, Any]:
    """The JSON object of a request."""
    try:
        body = orjson.loads(encoded)
    except ValueError:
        raise InvalidJson("The body is not JSON.") from None
    if not isinstance(body, dict):
        raise InvalidJson("The body must be a JSON object.")
    return body


def can_exist(resource_id: str) -> bool:
    """Whether the database can be asked for such an id at all."""
    return 0 < len(resource_id) <= 256 and "\x00" not in resource_id


def can_be_session(session_id: str) -> bool:
    """The same for a session. A thread of one has a row under its own id, which is no session's."""
    return can_exist(session_id) and not is_thread(session_id)


def page_limit(page: Page) -> int:
    """How many entries the page holds at most."""
    return min(page.limit, MAX_LIMIT) if page.limit > 0 else DEFAULT_LIMIT


def read_position(page: Page, scope: str) -> tuple[datetime, str] | None:
    """Where the page begins; None is the first one."""
    if not page.cursor:
        return None
    position = decode_cursor(page.cursor, scope)
    try:
        created_at, resource_id = datetime.fromisoformat(position["created_at"]).astimezone(UTC), position["id"]
        if isinstance(resource_id, str) and can_exist(resource_id):
            return created_at, resource_id
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    raise _foreign_cursor()


def read_version_position(page: Page, scope: str) -> int | None:
    """Below which version the page begins; None is the first one."""
    if not page.cursor:
        return None
    position = decode_cursor(page.cursor, scope)
    version = position.get("version") if isinstance(position, dict) else None
    if type(version) is not int or not 1 <= version < 2**31:
        raise _foreign_cursor()
    return version


def position_after(scope: str, created_at: datetime, resource_id: str) -> str:
    """The cursor of the page that begins behind this entry."""
    return encode_cursor(scope, {"created_at": rfc3339(created_at), "id": resource_id})


def _foreign_cursor() -> InvalidCursor:
    # The checksum of a cursor keeps mistakes out, not somebody who computes it.
    return InvalidCursor("The page cursor was not issued by this listing.", field="page")
