"""Building JSON from rendered parts, without decoding any of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from managed_agents.sessions.v1.common_pb2 import PageInfo


def text(value: str) -> bytes:
    """A string as JSON."""
    return orjson.dumps(value)


def text_or_null(value: str) -> bytes:
    """A string as JSON; services send an empty one for null."""
    return orjson.dumps(value) if value else b"null"


def raw(value: bytes, default: bytes) -> bytes:
    """A rendered part, or its default where the service had none."""
    return value or default


def members(document: bytes) -> bytes:
    """The members of a rendered object, to be spliced into another."""
    return document.strip()[1:-1].strip()


def object_of(parts: Iterable[bytes]) -> bytes:
    """An object from rendered members; empty ones are left out."""
    return b"{" + b",".join(part for part in parts if part) + b"}"


def collection(items: Sequence[bytes], info: PageInfo) -> bytes:
    """The canonical envelope of a collection under /v1."""
    return b'{"data":[%b],"prev_page":%b,"next_page":%b}' % (
        b",".join(items),
        text_or_null(info.previous_cursor),
        text_or_null(info.next_cursor),
    )


def extension_collection(items: Sequence[bytes], *, has_more: bool, first_id: str, last_id: str) -> bytes:
    """The envelope of a collection under /v1/x, and of the models."""
    return b'{"data":[%b],"has_more":%b,"first_id":%b,"last_id":%b}' % (
        b",".join(items),
        b"true" if has_more else b"false",
        text_or_null(first_id),
        text_or_null(last_id),
    )
