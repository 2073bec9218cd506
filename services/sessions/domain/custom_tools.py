"""Custom tools: declared to the model, executed by the caller.

Two ways to write them are taken, the flat `custom` entry and the legacy `custom_toolset`
group, and both become flat entries. A policy is refused on either: the caller runs the
tool and decides whether to, so a policy here would promise a control that nobody has.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

import orjson

from services.sessions.domain import shape
from services.sessions.domain.session_errors import InvalidRequest

MAX_NAME_CHARACTERS = 128
MAX_DESCRIPTION_CHARACTERS = 16_384
MAX_SCHEMA_BYTES = 65_536
MAX_GROUP_ENTRIES = 128

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_FIELDS = ("type", "name", "description", "input_schema")
_GROUP_FIELDS = ("type", "configs", "default_config")
_GROUP_ENTRY_FIELDS = ("name", "description", "input_schema", "parameters", "enabled")
_GROUP_DEFAULT_FIELDS = ("enabled",)

Tool = dict[str, Any]


def validate_custom_tool(entry: Tool, field: str, *, reserved: Collection[str]) -> Tool:
    """The stored form of a flat entry; `reserved` are the names of built-in tools."""
    _refuse_policy(entry, field)
    shape.known_only(entry, field, _FIELDS)
    return _tool(entry, entry.get("input_schema"), field, "input_schema", reserved)


def flatten_custom_toolset(entry: Tool, field: str, *, reserved: Collection[str]) -> Iterator[tuple[str, Tool]]:
    """The flat entries that a legacy group stands for, each with the path it came from.

    A tool that the group disables is judged like the others and then left out.
    """
    shape.known_only(entry, field, _GROUP_FIELDS)
    enabled_by_default = _group_default(entry.get("default_config"), f"{field}.default_config")
    for index, config in enumerate(shape.entries(entry.get("configs"), f"{field}.configs", maximum=MAX_GROUP_ENTRIES)):
        path = f"{field}.configs.{index}"
        if isinstance(config, dict):
            _refuse_policy(config, path)
        shape.mapping(config, path, _GROUP_ENTRY_FIELDS)
        schema, schema_name = _schema_of(config, path)
        tool = _tool(config, schema, path, schema_name, reserved)
        enabled = config.get("enabled")
        if (enabled is None or shape.flag(enabled, f"{path}.enabled")) and enabled_by_default:
            yield path, tool


def _group_default(value: Any, field: str) -> bool:
    if value is None:
        return True
    if isinstance(value, dict):
        _refuse_policy(value, field)
    enabled = shape.mapping(value, field, _GROUP_DEFAULT_FIELDS).get("enabled")
    return True if enabled is None else shape.flag(enabled, f"{field}.enabled")


def _schema_of(config: Tool, field: str) -> tuple[Any, str]:
    schema, alias = config.get("input_schema"), config.get("parameters")
    if schema is not None and alias is not None and schema != alias:
        raise InvalidRequest(
            f"{field}.input_schema and {field}.parameters are different schemas; send one of them.",
            field=f"{field}.parameters",
        )
    return (alias, "parameters") if schema is None and alias is not None else (schema, "input_schema")


def _refuse_policy(entry: Tool, field: str) -> None:
    if "permission_policy" in entry:
        raise InvalidRequest(
            f"{field}.permission_policy is not accepted on a custom tool: whoever calls the API executes the tool and"
            " decides whether to run it.",
            field=f"{field}.permission_policy",
        )


def _tool(entry: Tool, schema: Any, field: str, schema_name: str, reserved: Collection[str]) -> Tool:
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{field}.name must have 1 to {MAX_NAME_CHARACTERS} letters, digits, underscores or hyphens.",
            field=f"{field}.name",
        )
    if name in reserved:
        raise InvalidRequest(
            f"{field}.name is {name}, which a built-in tool has. Give the custom tool another name.",
            field=f"{field}.name",
        )
    description = shape.label(entry.get("description"), f"{field}.description", maximum=MAX_DESCRIPTION_CHARACTERS)
    _check_schema(schema, f"{field}.{schema_name}", name)
    return {"type": "custom", "name": name, "description": description, "input_schema": schema}


def _check_schema(schema: Any, field: str, name: str) -> None:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise InvalidRequest(
            f'{field} of the tool {name} must be a JSON schema object with "type": "object".', field=field
        )
    shape.free_form(schema, field)
    properties = schema.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise InvalidRequest(f"{field}.properties must be an object.", field=f"{field}.properties")
    for key, part in (properties or {}).items():
        if not isinstance(part, dict | bool):
            path = f"{field}.properties.{shape.shown(key)}"
            raise InvalidRequest(f"{path} must be a JSON schema.", field=path)
    required = schema.get("required")
    if required is not None and not (isinstance(required, list) and all(isinstance(item, str) for item in required)):
        raise InvalidRequest(f"{field}.required must be an array of strings.", field=f"{field}.required")
    size = len(orjson.dumps(schema))
    if size > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"{field} has {size} bytes; at most {MAX_SCHEMA_BYTES} are accepted.", field=field)
