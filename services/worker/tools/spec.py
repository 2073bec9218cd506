"""The description of a tool for the model, and the check of what the model sends.

The schema language is the small part of JSON Schema that the six tools need:
object with typed properties, required names, bounds and choices. Validation
walks the same schema that the model is shown, so both cannot drift apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from services.worker.tools.outcome import ToolInputInvalid

_TYPES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"string": (str,), "integer": (int,), "boolean": (bool,), "array": (list,)}
)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """Name, description and input schema as a model vendor takes them.

    `aliases` are further accepted spellings of a field, kept out of the schema.
    `free_text` names the fields that are content rather than names: they may
    hold a NUL character.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)
    free_text: frozenset[str] = frozenset()


def check(spec: ToolSpec, value: object) -> dict[str, Any]:
    """Return the input with aliases resolved, or raise ToolInputInvalid."""
    if not isinstance(value, dict):
        raise ToolInputInvalid(spec.name, None, "the input must be a JSON object")
    properties: dict[str, Any] = spec.input_schema["properties"]
    taken: dict[str, Any] = {}
    for given, item in value.items():
        name = spec.aliases.get(given, given)
        if name not in properties:
            accepted = ", ".join(properties)
            raise ToolInputInvalid(spec.name, str(given), f"unknown field; accepted are {accepted}")
        if item is None and name not in spec.input_schema.get("required", ()):
            continue
        if name in taken and taken[name] != item:
            raise ToolInputInvalid(spec.name, name, f"given twice with different values (as {given!r} too)")
        _check_value(spec, name, properties[name], item)
        taken[name] = item
    for name in spec.input_schema.get("required", ()):
        if name not in taken:
            raise ToolInputInvalid(spec.name, name, "required, and missing")
    return taken


def _check_value(spec: ToolSpec, name: str, schema: Mapping[str, Any], item: object) -> None:
    kind, tool = schema["type"], spec.name
    # bool is an int in Python; JSON keeps the two apart.
    if not isinstance(item, _TYPES[kind]) or (kind == "integer" and isinstance(item, bool)):
        raise ToolInputInvalid(tool, name, f"must be of type {kind}")
    if isinstance(item, str):
        _check_string(spec, name, schema, item)
    elif isinstance(item, list):
        count = schema.get("minItems", 0)
        if not count <= len(item) <= schema.get("maxItems", len(item)):
            raise ToolInputInvalid(tool, name, f"must have {count} items")
        for each in item:
            _check_value(spec, name, schema["items"], each)
    elif kind == "integer" and isinstance(item, int):
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and item < low) or (high is not None and item > high):
            raise ToolInputInvalid(tool, name, f"must be between {low} and {high}")


def _check_string(spec: ToolSpec, name: str, schema: Mapping[str, Any], item: str) -> None:
    tool = spec.name
    if "enum" in schema and item not in schema["enum"]:
        raise ToolInputInvalid(tool, name, f"must be one of {', '.join(schema['enum'])}")
    if len(item) < schema.get("minLength", 0):
        raise ToolInputInvalid(tool, name, "must not be empty")
    longest = schema.get("maxLength")
    if longest is not None and len(item) > longest:
        raise ToolInputInvalid(tool, name, f"must be at most {longest} characters long")
    if name not in spec.free_text and "\x00" in item:
        raise ToolInputInvalid(tool, name, "must not contain a NUL character")
    try:
        item.encode()
    except UnicodeEncodeError:
        raise ToolInputInvalid(tool, name, "must be valid Unicode text") from None
