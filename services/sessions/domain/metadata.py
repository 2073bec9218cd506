"""The metadata bag that agents, environments and sessions carry: string pairs, few and short.

A patch sets keys, and deletes those that it gives as null. Limits are judged on the bag
that results, so a full bag can swap one pair for another in a single request.
"""

from typing import Any

from services.sessions.domain import shape
from services.sessions.domain.session_errors import InvalidRequest

MAX_PAIRS = 16
MAX_KEY_CHARACTERS = 64
MAX_VALUE_CHARACTERS = 512

Metadata = dict[str, str]


def validate_metadata(value: Any, field: str = "metadata") -> Metadata:
    """A whole bag, as a creation gives it; null is the empty one."""
    if value is None:
        return {}
    _check_object(value, field)
    for key, item in value.items():
        _check_pair(key, item, field)
    return _check_size(value, field)


def merge_metadata(stored: Metadata, patch: Any, field: str = "metadata", *, empty_deletes: bool = False) -> Metadata:
    """The bag after a patch; null for the whole bag empties it.

    `empty_deletes` makes an empty string delete its key as null does: environments work that way.
    """
    if patch is None:
        return {}
    _check_object(patch, field)
    merged = dict(stored)
    for key, item in patch.items():
        if item is None or (empty_deletes and item == ""):
            merged.pop(key, None)
            continue
        _check_pair(key, item, field)
        merged[key] = item
    return _check_size(merged, field)


def _check_object(value: Any, field: str) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object of string pairs.", field=field)


def _check_pair(key: str, item: Any, field: str) -> None:
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS or "\x00" in key:
        raise InvalidRequest(
            f"{field} has a key of {len(key)} characters; keys have 1 to {MAX_KEY_CHARACTERS} and no NUL character.",
            field=field,
        )
    shape.text(item, f"{field}.{key}", maximum=MAX_VALUE_CHARACTERS)


def _check_size(bag: Metadata, field: str) -> Metadata:
    if len(bag) > MAX_PAIRS:
        raise InvalidRequest(f"{field} would hold {len(bag)} pairs; at most {MAX_PAIRS} are accepted.", field=field)
    return bag
