"""Public JSON of session resources: the projections differ in a file's id and in a repository's checkout."""

from __future__ import annotations

import re
from typing import Any

import orjson

_NONE = (b"", b"[]")
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def render_resource(resource_json: bytes, *, published: bool) -> bytes:
    """One instance."""
    return orjson.dumps(_shown(orjson.loads(resource_json), published=published))


def render_resources(resources_json: bytes, *, published: bool) -> list[bytes]:
    """Instances one by one, for a collection."""
    return [orjson.dumps(_shown(each, published=published)) for each in orjson.loads(resources_json or b"[]")]


def render_resource_array(resources_json: bytes, *, published: bool) -> bytes:
    """The array that a session shows."""
    if resources_json in _NONE:
        return b"[]"
    return orjson.dumps([_shown(each, published=published) for each in orjson.loads(resources_json)])


def _shown(resource: dict[str, Any], *, published: bool) -> dict[str, Any]:
    shown = {name: value for name, value in resource.items() if name != "authenticated"}
    if published and resource["type"] == "file":
        # The session's own copy; the one that was named stays visible beside it.
        shown |= {"file_id": resource["session_file_id"], "source_file_id": resource["file_id"]}
    if published and isinstance(resource.get("checkout"), str):
        name = resource["checkout"]
        shown["checkout"] = (
            {"type": "commit", "sha": name} if _SHA.fullmatch(name) else {"type": "branch", "name": name}
        )
    return shown
