"""The types of columns and arguments: what a value must be, how that is told, and as a JSON schema for agents.

A field accepts exactly what its JSON schema accepts (with `format: date` asserted).
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import re2

from cli.rehearse.faults import listed

SCALARS = ("string", "integer", "number", "boolean", "date")
TYPES = (*SCALARS, "list")
# Types whose values may be compared with each other.
CLASSES = {"string": "text", "date": "text", "integer": "number", "number": "number", "boolean": "boolean"}

_ONE = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "date": "a date such as 2026-12-01",
}
_MANY = {
    "string": "texts",
    "integer": "integers",
    "number": "numbers",
    "boolean": "booleans",
    "date": "dates such as 2026-12-01",
}
_JSON_TYPE = {"date": "string", "list": "array"}
_SHOWN = 80


@dataclass(frozen=True)
class Field:
    """A column of a table or an argument of a tool."""

    name: str
    type: str
    description: str = ""
    optional: bool = False
    one_of: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    pattern: str | None = None
    items: str = "string"

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, after the name of what holds it; None when nothing is."""
        if _is_of(self.type, value, self.items) and self._within(value):
            return None
        return f"must be {self.accepted()}, not {shown(value)}"

    def accepted(self) -> str:
        if self.one_of:
            return f"one of {listed(shown(value) for value in self.one_of)}"
        if self.type == "list":
            return f"a list of {_MANY[self.items]}"
        told = _ONE[self.type]
        if self.minimum is not None and self.maximum is not None:
            told += f" from {self.minimum} to {self.maximum}"
        elif self.minimum is not None:
            told += f" of at least {self.minimum}"
        elif self.maximum is not None:
            told += f" of at most {self.maximum}"
        return f"{told} that matches {self.pattern}" if self.pattern else told

    def _within(self, value: Any) -> bool:
        if self.one_of and not any(same(value, accepted) for accepted in self.one_of):
            return False
        if self.minimum is not None and value < self.minimum:
            return False
        if self.maximum is not None and value > self.maximum:
            return False
        return self.pattern is None or re2.search(self.pattern, value) is not None

    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": _JSON_TYPE.get(self.type, self.type)}
        if self.description:
            schema["description"] = self.description
        if self.type == "date":
            schema["format"] = "date"
        if self.type == "list":
            schema["items"] = {"type": _JSON_TYPE.get(self.items, self.items)}
            schema["items"] |= {"format": "date"} if self.items == "date" else {}
        if self.one_of:
            schema["enum"] = list(self.one_of)
        named = {"minimum": self.minimum, "maximum": self.maximum, "pattern": self.pattern}
        return schema | {name: value for name, value in named.items() if value is not None}


def normal(field: Field, value: Any) -> Any:
    """The one form of a sound value: 3.0 is the integer 3."""
    whole = field.type == "integer" or (field.type == "list" and field.items == "integer")
    if whole and isinstance(value, float):
        return int(value)
    return [normal(Field("", field.items), item) for item in value] if isinstance(value, list) else value


def arguments_schema(fields: Mapping[str, Field]) -> dict[str, Any]:
    """What a tool takes, as the JSON schema of an object."""
    return {
        "type": "object",
        "properties": {name: field.json_schema() for name, field in fields.items()},
        "required": [name for name, field in fields.items() if not field.optional],
        "additionalProperties": False,
    }


def argument_problems(fields: Mapping[str, Field], arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the arguments of a call, in the words that its agent reads."""
    found = [f'unknown argument "{name}"' for name in arguments if name not in fields]
    for name, field in fields.items():
        if name not in arguments:
            found += [] if field.optional else [f'missing argument "{name}"']
        elif (problem := field.problem(arguments[name])) is not None:
            found.append(f'argument "{name}" {problem}')
    return found


def _is_of(kind: str, value: Any, items: str) -> bool:
    match kind:
        case "list":
            return isinstance(value, list) and all(_is_of(items, item, "") for item in value)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "date":
            return isinstance(value, str) and _is_date(value)
        case _:
            return isinstance(value, str)


def _is_date(value: str) -> bool:
    try:
        return len(value) == 10 and value.isascii() and datetime.date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values: 1 is 1.0 and is not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def shown(value: Any) -> str:
    """A value within a sentence."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= _SHOWN else f'"{value[:_SHOWN]}…"'
    if isinstance(value, list):
        text = f"[{', '.join(shown(item) for item in value)}]"
        return text if len(text) <= 4 * _SHOWN else f"{text[: 4 * _SHOWN]}…"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shown(item)}' for key, item in value.items())}}}"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
