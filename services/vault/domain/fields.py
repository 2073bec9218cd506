"""Checks on the JSON values of vaults and credentials, each naming the field by its path.

No refusal repeats a value: any of them may be a secret that was put into the wrong field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import orjson

from services.vault.domain.errors import InvalidField, UnknownField

MAX_NAME_CHARACTERS = 255
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_CHARACTERS = 64
MAX_METADATA_VALUE_CHARACTERS = 512
MAX_SECRET_CHARACTERS = 65_536
MAX_URL_CHARACTERS = 2048
MAX_SHOWN_CHARACTERS = 64


def body_of(encoded: bytes) -> dict[str, Any]:
    """The JSON object of a request; nothing at all counts as an empty one."""
    if not encoded:
        return {}
    try:
        body = orjson.loads(encoded)
    except ValueError:
        raise InvalidField("The body is not JSON.") from None
    return mapping(body, "")


def mapping(value: Any, field: str) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise InvalidField(f"{field or 'The body'} must be an object.", field=field or None)
    return value


def known_only(value: Mapping[str, Any], field: str, accepted: Collection[str]) -> None:
    """Refuses the first key that nothing would act on; `field` is empty for the body itself."""
    for key in value:
        if key not in accepted:
            path = f"{field}.{key[:MAX_SHOWN_CHARACTERS]}" if field else key[:MAX_SHOWN_CHARACTERS]
            raise UnknownField(f"{path} is not a known field. Known fields: {', '.join(accepted)}.", field=path)


def text(value: Any, field: str, *, minimum: int = 1, maximum: int) -> str:
    """A string of this length that the database and a header can hold: no control characters."""
    if not isinstance(value, str):
        raise InvalidField(f"{field} must be a string.", field=field)
    if not minimum <= len(value) <= maximum:
        raise InvalidField(f"{field} must be {minimum} to {maximum} characters long.", field=field)
    if any(ord(character) < 32 or ord(character) == 127 or 0xD800 <= ord(character) < 0xE000 for character in value):
        raise InvalidField(f"{field} must not contain control characters.", field=field)
    return value


def name(value: Any, field: str) -> str:
    """A label for people: not only whitespace."""
    text(value, field, maximum=MAX_NAME_CHARACTERS)
    if not value.strip():
        raise InvalidField(f"{field} must contain more than whitespace.", field=field)
    return value


def token(value: Any, field: str) -> str:
    """A secret that travels in a header: visible ASCII."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_SECRET_CHARACTERS:
        raise InvalidField(f"{field} must be a string of 1 to {MAX_SECRET_CHARACTERS} characters.", field=field)
    if not all(33 <= ord(character) <= 126 for character in value):
        raise InvalidField(f"{field} must consist of visible ASCII characters, without spaces.", field=field)
    return value


def secret(value: Any, field: str) -> str:
    """A secret that may have lines, such as a key; no NUL, and nothing that UTF-8 can't write."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_SECRET_CHARACTERS:
        raise InvalidField(f"{field} must be a string of 1 to {MAX_SECRET_CHARACTERS} characters.", field=field)
    if any(character == "\x00" or 0xD800 <= ord(character) < 0xE000 for character in value):
        raise InvalidField(f"{field} must not contain NUL or unpaired surrogates.", field=field)
    return value


def flag(value: Any, field: str) -> bool:
    """True or false, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise InvalidField(f"{field} must be true or false.", field=field)
    return value


def one_of(value: Any, field: str, accepted: Collection[str]) -> str:
    """A string from a closed set."""
    if not isinstance(value, str) or value not in accepted:
        raise InvalidField(f"{field} must be one of {', '.join(accepted)}.", field=field)
    return value


def url(value: Any, field: str) -> str:
    """A whole http or https address without a user; it is not visited."""
    told = f"{field} must be a whole address that starts with https:// or http:// and names no user."
    if not isinstance(value, str) or len(value) > MAX_URL_CHARACTERS:
        raise InvalidField(told, field=field)
    if not all(33 <= ord(character) <= 126 for character in value) or "\\" in value or "#" in value:
        raise InvalidField(told, field=field)
    try:
        parts = urlsplit(value)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise InvalidField(told, field=field) from None
    if parts.scheme not in ("http", "https") or not is_whole or "@" in parts.netloc:
        raise InvalidField(told, field=field)
    return value


def moment(value: Any, field: str) -> datetime:
    """An RFC 3339 time with an offset."""
    told = f"{field} must be an RFC 3339 time with an offset, such as 2027-01-31T12:00:00Z."
    if not isinstance(value, str) or not 20 <= len(value) <= 40 or value[10] not in "Tt ":
        raise InvalidField(told, field=field)
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is None:
            raise ValueError
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidField(told, field=field) from None


def metadata(value: Any, field: str = "metadata") -> dict[str, str]:
    """A whole bag of string pairs; null is the empty one."""
    return merged_metadata({}, value, field) if value is not None else {}


def merged_metadata(stored: Mapping[str, str], patch: Any, field: str = "metadata") -> dict[str, str]:
    """The bag after a patch: null removes a key, no patch changes nothing."""
    merged = dict(stored)
    for key, item in mapping(patch if patch is not None else {}, field).items():
        text(key, f"A key of {field}", maximum=MAX_METADATA_KEY_CHARACTERS)
        if item is None:
            merged.pop(key, None)
            continue
        text_or_lines(item, f"{field}.{key}", MAX_METADATA_VALUE_CHARACTERS)
        merged[key] = item
    if len(merged) > MAX_METADATA_PAIRS:
        raise InvalidField(f"{field} must hold at most {MAX_METADATA_PAIRS} pairs.", field=field)
    return merged


def text_or_lines(value: Any, field: str, maximum: int) -> str:
    """Text that may have lines."""
    if not isinstance(value, str) or len(value) > maximum:
        raise InvalidField(f"{field} must be a string of at most {maximum} characters.", field=field)
    if any(character == "\x00" or 0xD800 <= ord(character) < 0xE000 for character in value):
        raise InvalidField(f"{field} must not contain NUL or unpaired surrogates.", field=field)
    return value


def agreed(body: Mapping[str, Any], spellings: tuple[str, str]) -> tuple[str, Any] | None:
    """The one value that two spellings of a field give, with the spelling; None where neither is there."""
    given = [spelling for spelling in spellings if spelling in body]
    if not given:
        return None
    if len(given) == 2 and body[given[0]] != body[given[1]]:
        raise InvalidField(f"{given[0]} and {given[1]} name the same field and must agree.", field=given[0])
    return given[0], body[given[0]]
