"""A server's tool as model vendors take it. Pure.

One tool that a vendor refuses would fail every request of the session, so what servers say is brought into a form that
all vendors take: an object at the root of the schema, no choice between schemas there, and a bounded length. A schema
that is longer than that tells nothing but that there is an input; the server judges it anyway.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from services.worker.runner.models.base import ToolDefinition

MOST_DESCRIPTION_CHARS = 8_192
MOST_SCHEMA_BYTES = 65_536
CUT = " … (cut)"
_CHOICES = frozenset(("anyOf", "oneOf", "allOf", "not", "enum"))


def definition(name: str, description: str, schema: Mapping[str, Any]) -> ToolDefinition:
    """The tool under its name for the model."""
    if len(description) > MOST_DESCRIPTION_CHARS:
        description = description[: MOST_DESCRIPTION_CHARS - len(CUT)] + CUT
    return ToolDefinition(name, description, _sound(schema))


def _sound(schema: Mapping[str, Any]) -> dict[str, Any]:
    if len(orjson.dumps(schema)) > MOST_SCHEMA_BYTES:
        return {"type": "object", "properties": {}}
    kept = {key: value for key, value in schema.items() if key not in _CHOICES}
    properties = kept.get("properties")
    return {**kept, "type": "object", "properties": properties if isinstance(properties, dict) else {}}
