"""The blocks that clients may put into events: text, image, document, search_result.

Blocks are stored as they came, once they are found sound; nothing is dropped or
rewritten silently, so what a client reads back is what it sent. A block that this
build can't show to a model is refused instead of being stored and skipped.
"""

import binascii
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from services.sessions.domain.session_errors import InvalidRequest, UnknownField, UnsupportedCapability

MAX_BLOCKS = 1000
MAX_TEXT_CHARACTERS = 1_000_000
MAX_DATA_BYTES = 10_485_760
MAX_URL_CHARACTERS = 8192
MAX_TITLE_CHARACTERS = 500
MAX_CONTEXT_CHARACTERS = 10_000
IMAGE_MEDIA_TYPES = ("image/gif", "image/jpeg", "image/png", "image/webp")

MESSAGE_BLOCKS = frozenset({"text", "image", "document"})
RESULT_BLOCKS = frozenset({"text", "image", "document", "search_result"})
TEXT_BLOCKS = frozenset({"text"})

Block = dict[str, Any]


def normalise_content(
    value: Any, field: str, *, allowed: frozenset[str], blank_text: bool = False, bare_string: bool = True
) -> list[Block]:
    """Returns the list of blocks that `value` stands for, or refuses it by name.

    `blank_text` allows empty text and an empty list, which a tool may well return but
    which a message can't consist of: no model takes it.
    """
    if isinstance(value, str) and bare_string:
        check_text(value, field, blank=blank_text)
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        accepted = "a string or an array of content blocks" if bare_string else "an array of content blocks"
        raise InvalidRequest(f"{field} must be {accepted}.", field=field)
    if len(value) > MAX_BLOCKS:
        raise InvalidRequest(f"{field} holds {len(value)} blocks; at most {MAX_BLOCKS} are accepted.", field=field)
    if not value and not blank_text:
        raise InvalidRequest(f"{field} must hold at least one content block.", field=field)
    for index, block in enumerate(value):
        _check_block(block, f"{field}.{index}", allowed, blank_text)
    return value


def check_text(value: Any, field: str, *, blank: bool = False, limit: int = MAX_TEXT_CHARACTERS) -> None:
    """Refuses anything but a string within its limit; `blank` allows whitespace only."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a string.", field=field)
    if len(value) > limit:
        raise InvalidRequest(f"{field} has {len(value)} characters; at most {limit} are accepted.", field=field)
    if "\x00" in value:
        raise InvalidRequest(f"{field} must not contain NUL characters.", field=field)
    if not blank and not value.strip():
        raise InvalidRequest(f"{field} must contain more than whitespace.", field=field)


def check_keys(value: dict[str, Any], field: str, known: frozenset[str]) -> None:
    """Refuses keys that nothing would act on, naming the first and what is known."""
    if value.keys() <= known:
        return
    unknown = next(key for key in value if key not in known)
    path = f"{field}.{unknown}" if field else unknown
    raise UnknownField(f"{path} is not a known field. Known fields: {', '.join(sorted(known))}.", field=path)


def _check_block(block: Any, field: str, allowed: frozenset[str], blank_text: bool) -> None:
    if not isinstance(block, dict):
        raise InvalidRequest(f"{field} must be a content block object.", field=field)
    kind = block.get("type")
    if kind == "redacted":
        raise InvalidRequest(f"{field} is a redacted block, which is only ever sent out.", field=f"{field}.type")
    if not isinstance(kind, str) or kind not in allowed:
        raise InvalidRequest(f"{field}.type must be one of {', '.join(sorted(allowed))}.", field=f"{field}.type")
    if kind == "text":
        check_keys(block, field, _TEXT_KEYS)
        check_text(block.get("text"), f"{field}.text", blank=blank_text)
        return
    _BLOCK_CHECKS[kind](block, field)


def _check_image(block: Block, field: str) -> None:
    check_keys(block, field, _IMAGE_KEYS)
    source = _source(block, field, ("base64", "url", "file"))
    if source["type"] == "base64" and source.get("media_type") not in IMAGE_MEDIA_TYPES:
        path = f"{field}.source.media_type"
        raise InvalidRequest(f"{path} must be one of {', '.join(IMAGE_MEDIA_TYPES)}.", field=path)


def _check_document(block: Block, field: str) -> None:
    check_keys(block, field, _DOCUMENT_KEYS)
    source = _source(block, field, ("base64", "text", "url", "file"))
    expected = {"base64": "application/pdf", "text": "text/plain"}.get(source["type"])
    if expected and source.get("media_type") != expected:
        path = f"{field}.source.media_type"
        raise InvalidRequest(f"{path} must be {expected} for a source of type {source['type']}.", field=path)
    for name, limit in (("title", MAX_TITLE_CHARACTERS), ("context", MAX_CONTEXT_CHARACTERS)):
        if block.get(name) is not None:
            check_text(block[name], f"{field}.{name}", blank=True, limit=limit)


def _check_search_result(block: Block, field: str) -> None:
    check_keys(block, field, _SEARCH_RESULT_KEYS)
    check_text(block.get("source"), f"{field}.source", limit=MAX_URL_CHARACTERS)
    check_text(block.get("title"), f"{field}.title", blank=True, limit=MAX_TITLE_CHARACTERS)
    citations = block.get("citations")
    if not isinstance(citations, dict) or not isinstance(citations.get("enabled"), bool):
        path = f"{field}.citations"
        raise InvalidRequest(f"{path} must be an object with the boolean enabled.", field=path)
    check_keys(citations, f"{field}.citations", frozenset({"enabled"}))
    normalise_content(block.get("content"), f"{field}.content", allowed=TEXT_BLOCKS, blank_text=True, bare_string=False)


def _source(block: Block, field: str, kinds: tuple[str, ...]) -> Block:
    path = f"{field}.source"
    source = block.get("source")
    if not isinstance(source, dict):
        raise InvalidRequest(f"{path} must be a source object.", field=path)
    kind = source.get("type")
    if kind not in kinds:
        raise InvalidRequest(f"{path}.type must be one of {', '.join(kinds)}.", field=f"{path}.type")
    if kind == "file":
        raise UnsupportedCapability(
            f"{path} refers to an uploaded file, and this build keeps no files; send the data itself.", field=path
        )
    check_keys(source, path, _SOURCE_KEYS[kind])
    if kind == "url":
        _check_url(source.get("url"), f"{path}.url")
    elif kind == "text":
        check_text(source.get("data"), f"{path}.data")
    else:
        _check_base64(source.get("data"), f"{path}.data")
    return source


def _check_url(value: Any, field: str) -> None:
    check_text(value, field, limit=MAX_URL_CHARACTERS)
    scheme, separator, rest = value.partition("://")
    if not separator or scheme.lower() not in ("http", "https") or not rest or any(c.isspace() for c in value):
        raise InvalidRequest(f"{field} must be an http or https address.", field=field)


def _check_base64(value: Any, field: str) -> None:
    check_text(value, field, limit=(MAX_DATA_BYTES + 2) // 3 * 4)
    try:
        b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{field} must be base64 in the standard alphabet, padded.", field=field) from None


_TEXT_KEYS = frozenset({"type", "text"})
_IMAGE_KEYS = frozenset({"type", "source"})
_DOCUMENT_KEYS = frozenset({"type", "source", "title", "context"})
_SEARCH_RESULT_KEYS = frozenset({"type", "source", "title", "content", "citations"})
_SOURCE_KEYS = {
    "base64": frozenset({"type", "media_type", "data"}),
    "text": frozenset({"type", "media_type", "data"}),
    "url": frozenset({"type", "url"}),
}
_BLOCK_CHECKS: dict[str, Callable[[Block, str], None]] = {
    "image": _check_image,
    "document": _check_document,
    "search_result": _check_search_result,
}
