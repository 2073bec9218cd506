"""Query parameters: each route names those that it implements, and no other passes.

A dropped filter gives a plausible answer to another question, so an unknown name is
refused. `beta` is the one exception: published examples carry it on every URL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from kit.clock import rfc3339

from ..errors import InvalidRequest, UnknownQueryParameter

IGNORED = frozenset({"beta"})
MAX_CURSOR_LENGTH = 2048
MAX_TEXT_LENGTH = 256
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_INTEGER = re.compile(r"-?\d{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter: how it is read, and how the document shows it."""

    name: str
    read: Callable[[str, str], Any]
    schema: dict[str, Any]
    description: str
    default: Any = None
    # 0 for a scalar; else how often it may be repeated.
    max_items: int = 0
    # A scalar that may be repeated as long as all its values agree.
    agreeing_repeats: bool = False
    names: tuple[str, ...] = field(default=())

    def spellings(self) -> tuple[str, ...]:
        """Every name under which the parameter is read."""
        return (self.name, *self.names)


def limit(*, default: int = 20, maximum: int = 100) -> Parameter:
    """The page size."""
    return integer("limit", minimum=1, maximum=maximum, default=default, description="Page size.")


def page() -> Parameter:
    """The cursor of a former answer."""
    return text("page", max_length=MAX_CURSOR_LENGTH, description="Cursor: `next_page` of a former answer.")


def integer(name: str, *, minimum: int, maximum: int, default: int | None = None, description: str = "") -> Parameter:
    """A whole number within bounds."""

    def read(name: str, raw: str) -> int:
        if not _INTEGER.fullmatch(raw) or not minimum <= int(raw) <= maximum:
            raise InvalidRequest(f"{name} must be an integer from {minimum} to {maximum}.", field=name)
        return int(raw)

    schema: dict[str, Any] = {"type": "integer", "minimum": minimum, "maximum": maximum}
    if default is not None:
        schema["default"] = default
    return Parameter(name, read, schema, description, default)


def text(name: str, *, max_length: int = MAX_TEXT_LENGTH, description: str = "") -> Parameter:
    """A non-empty string of bounded length."""

    def read(name: str, raw: str) -> str:
        if not 1 <= len(raw) <= max_length:
            raise InvalidRequest(f"{name} must be 1 to {max_length} characters long.", field=name)
        return raw

    return Parameter(name, read, {"type": "string", "minLength": 1, "maxLength": max_length}, description, "")


def flag(name: str, *, description: str = "") -> Parameter:
    """`true` or `false`; nothing else counts as either."""

    def read(name: str, raw: str) -> bool:
        if raw not in ("true", "false"):
            raise InvalidRequest(f"{name} must be true or false.", field=name)
        return raw == "true"

    schema = {"type": "boolean", "default": False}
    return Parameter(name, read, schema, description, False, agreeing_repeats=True)


def choice(name: str, values: Sequence[str], *, default: str, description: str = "") -> Parameter:
    """One of a closed set of words."""

    def read(name: str, raw: str) -> str:
        if raw not in values:
            raise InvalidRequest(f"{name} must be one of: {', '.join(values)}.", field=name)
        return raw

    return Parameter(name, read, {"type": "string", "enum": list(values), "default": default}, description, default)


def timestamp(name: str, *, description: str = "") -> Parameter:
    """An RFC 3339 time with an offset, handed on in UTC."""

    def read(name: str, raw: str) -> str:
        # An unescaped "+" of an offset arrives as a space.
        candidate = raw.replace(" ", "+")
        try:
            if not _TIMESTAMP.fullmatch(candidate):
                raise ValueError(candidate)
            return rfc3339(_parse_time(candidate.upper()).astimezone(UTC))
        except (ValueError, OverflowError):
            raise InvalidRequest(
                f"{name} must be an RFC 3339 time with an offset, such as 2026-07-12T00:00:00Z.", field=name
            ) from None

    return Parameter(name, read, {"type": "string", "format": "date-time"}, description, "")


def many(
    name: str,
    *,
    max_items: int,
    values: Sequence[str] | None = None,
    names: tuple[str, ...] = (),
    max_length: int = MAX_TEXT_LENGTH,
    description: str = "",
) -> Parameter:
    """A repeatable parameter, read into a list without repeats, in order."""

    def read(name: str, raw: str) -> str:
        if values is not None and raw not in values:
            raise InvalidRequest(f"{name} accepts: {', '.join(values)}.", field=name)
        if not 1 <= len(raw) <= max_length:
            raise InvalidRequest(f"{name} must be 1 to {max_length} characters long.", field=name)
        return raw

    item: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": max_length}
    if values is not None:
        item = {"type": "string", "enum": list(values)}
    schema = {"type": "array", "items": item, "maxItems": max_items}
    return Parameter(name, read, schema, description, (), max_items=max_items, names=names)


def parse(raw_query: bytes, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Read a query string; every declared parameter is in the answer, by its name."""
    values: dict[str, Any] = {parameter.name: parameter.default for parameter in parameters}
    if not raw_query:
        return values
    given: dict[str, list[str]] = {}
    by_spelling = {spelling: parameter for parameter in parameters for spelling in parameter.spellings()}
    for name, value in _pairs(raw_query):
        if name in IGNORED:
            continue
        parameter = by_spelling.get(name)
        if parameter is None:
            raise _unknown(name, parameters)
        given.setdefault(parameter.name, []).append(value)
    for parameter in parameters:
        raw_values = given.get(parameter.name)
        if raw_values is not None:
            values[parameter.name] = _read(parameter, raw_values)
    return values


def _pairs(raw_query: bytes) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(raw_query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=256)
    except (UnicodeDecodeError, ValueError):
        raise InvalidRequest("The query string must be UTF-8, percent-encoded, with at most 256 parameters.") from None
    for name, value in pairs:
        if "\x00" in name or "\x00" in value:
            raise InvalidRequest("The query string must not hold NUL characters.")
    return pairs


def _read(parameter: Parameter, raw_values: list[str]) -> Any:
    name = parameter.name
    if parameter.max_items:
        if len(raw_values) > parameter.max_items:
            raise InvalidRequest(f"{name} accepts at most {parameter.max_items} values.", field=name)
        return list(dict.fromkeys(parameter.read(name, raw) for raw in raw_values))
    if len(raw_values) > 1 and not (parameter.agreeing_repeats and len(set(raw_values)) == 1):
        raise InvalidRequest(f"{name} must be given once.", field=name)
    return parameter.read(name, raw_values[0])


def _unknown(name: str, parameters: Sequence[Parameter]) -> UnknownQueryParameter:
    accepted = ", ".join(parameter.name for parameter in parameters) or "none"
    shown = name[:64]
    return UnknownQueryParameter(f'Unknown query parameter "{shown}". This route accepts: {accepted}.', parameter=shown)


def _parse_time(candidate: str) -> datetime:
    # Python 3.11 reads at most six digits of a fraction.
    trimmed = re.sub(r"(\.\d{6})\d+", r"\1", candidate)
    return datetime.fromisoformat(trimmed)
