"""Opaque page cursors that only fit the query they were made for.

    cursor = encode_cursor("agents?archived=false&order=desc", {"created_at": "…", "id": "agent_…"})
    position = decode_cursor(cursor, "agents?archived=false&order=desc")

The scope is the collection with its filters and order. A checksum keyed by the scope makes a cursor of another query,
or one with a changed byte, an InvalidCursor. It is no secret: a cursor only says where to go on, and the query it goes
into is scoped to the caller's workspace anyway.
"""

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import orjson

from kit.errors import InvalidArgument

_CHECK_BYTES = 8
_LONGEST_CURSOR = 2_000


class InvalidCursor(InvalidArgument):
    """The cursor was not issued for this query."""

    reason = "INVALID_CURSOR"


def encode_cursor(scope: str, position: dict[str, Any]) -> str:
    """A cursor for going on after this position; the position is a JSON object."""
    body = orjson.dumps(position)
    return urlsafe_b64encode(_check(scope, body) + body).rstrip(b"=").decode()


def decode_cursor(cursor: str, scope: str) -> dict[str, Any]:
    """The position that the cursor was made from."""
    try:
        if len(cursor) > _LONGEST_CURSOR:
            raise ValueError
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        check, body = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        # Base64 ignores foreign characters and spare bits: only the very text that we issue is taken.
        if check != _check(scope, body) or urlsafe_b64encode(raw).rstrip(b"=") != cursor.encode():
            raise ValueError
        return orjson.loads(body)
    except ValueError:
        raise InvalidCursor(
            "The page cursor does not belong to this query. Take `next_page` from an answer to the same query, "
            "or leave it out to start from the beginning.",
            field="page",
        ) from None


def _check(scope: str, body: bytes) -> bytes:
    key = hashlib.blake2b(scope.encode(), digest_size=32).digest()
    return hashlib.blake2b(body, digest_size=_CHECK_BYTES, key=key).digest()
