"""Checks on the form of JSON values, each naming the field by its path.

Paths are dotted, with list positions as numbers: `tools.0.configs.1.name`. Every check
returns the value that it was given, so that reading a field and judging it is one
expression. A NUL character is refused in every text, because the database can't hold it.
"""

from collections.abc import Collection, Iterator
from typing import Any

from services.sessions.domain.session_errors import InvalidRequest, UnknownField

MAX_DEPTH = 64
MAX_SHOWN_CHARACTERS = 64


def text(value: Any, field: str, *, minimum: int = 0, maximum: int) -> str:
    """A string with a length in these bounds, counted in characters."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a string.", field=field)
    if not minimum <= len(value) <= maximum:
        raise InvalidRequest(f"{field} has {len(value)} characters; {minimum} to {maximum} are accepted.", field=field)
    if "\x00" in value:
        raise InvalidRequest(f"{field} must not contain NUL characters.", field=field)
    return value


def label(value: Any, field: str, *, maximum: int) -> str:
    """A string that says something: not empty and not only whitespace."""
    text(value, field, minimum=1, maximum=maximum)
    if not value.strip():
        raise InvalidRequest(f"{field} must contain more than whitespace.", field=field)
    return value


def mapping(value: Any, field: str, accepted: Collection[str]) -> dict[str, Any]:
    """An object with no other keys than the accepted ones."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object.", field=field)
    known_only(value, field, accepted)
    return value


def known_only(value: dict[str, Any], field: str, accepted: Collection[str]) -> None:
    """Refuses the first key that nothing would act on; `field` is empty for the body itself."""
    for key in value:
        if key not in accepted:
            path = f"{field}.{shown(key)}" if field else shown(key)
            raise UnknownField(f"{path} is not a known field. Known fields: {', '.join(accepted)}.", field=path)


def entries(value: Any, field: str, *, maximum: int) -> list[Any]:
    """An array of at most so many entries; null counts as an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} must be an array.", field=field)
    if len(value) > maximum:
        raise InvalidRequest(f"{field} has {len(value)} entries; at most {maximum} are accepted.", field=field)
    return value


def flag(value: Any, field: str) -> bool:
    """True or false, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{field} must be true or false.", field=field)
    return value


def whole(value: Any, field: str, *, minimum: int, maximum: int) -> int:
    """A whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidRequest(f"{field} must be a whole number from {minimum} to {maximum}.", field=field)
    return value


def one_of(value: Any, field: str, accepted: Collection[str]) -> str:
    """A string from a closed set."""
    if not isinstance(value, str) or value not in accepted:
        raise InvalidRequest(f"{field} must be one of {', '.join(accepted)}.", field=field)
    return value


def shown(text_of_caller: str) -> str:
    """Foreign text as a message may repeat it: short, since messages travel in headers."""
    if len(text_of_caller) <= MAX_SHOWN_CHARACTERS:
        return text_of_caller
    return text_of_caller[:MAX_SHOWN_CHARACTERS] + "…"


def free_form(value: Any, field: str) -> None:
    """Any JSON below the nesting limit that holds no NUL character, not even in a key."""
    for depth, leaf in _walk(value):
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"{field} is nested deeper than {MAX_DEPTH} levels.", field=field)
        if isinstance(leaf, str) and "\x00" in leaf:
            raise InvalidRequest(f"{field} must not contain NUL characters.", field=field)


def _walk(value: Any) -> Iterator[tuple[int, Any]]:
    waiting: list[tuple[int, Any]] = [(0, value)]
    while waiting:
        depth, node = waiting.pop()
        yield depth, node
        if isinstance(node, dict):
            yield from ((depth, key) for key in node)
            waiting.extend((depth + 1, child) for child in node.values())
        elif isinstance(node, list):
            waiting.extend((depth + 1, child) for child in node)
