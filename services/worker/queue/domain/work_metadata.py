"""The metadata of a work item: string pairs that operators put there."""

from __future__ import annotations

import json
from typing import Any

from .session_errors import InvalidWorkMetadata

MAX_PAIRS = 16
MAX_KEY_CHARACTERS = 64
MAX_VALUE_CHARACTERS = 512


def merged(stored: str, patch_json: bytes) -> str:
    """The metadata after a patch: a string sets a key, null removes it."""
    try:
        patch: Any = json.loads(patch_json or b"{}")
    except ValueError:
        patch = None
    if not isinstance(patch, dict):
        raise InvalidWorkMetadata("metadata must be an object.", "metadata")
    result: dict[str, str] = json.loads(stored)
    for key, value in patch.items():
        if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
            raise InvalidWorkMetadata(
                f"Keys of metadata must be 1 to {MAX_KEY_CHARACTERS} characters long.", "metadata"
            )
        if value is None:
            result.pop(key, None)
        elif isinstance(value, str) and len(value) <= MAX_VALUE_CHARACTERS and "\x00" not in value + key:
            result[key] = value
        else:
            raise InvalidWorkMetadata(
                f"metadata.{key} must be a string of at most {MAX_VALUE_CHARACTERS} characters, or null.",
                f"metadata.{key}",
            )
    if len(result) > MAX_PAIRS:
        raise InvalidWorkMetadata(f"metadata may hold at most {MAX_PAIRS} pairs.", "metadata")
    return json.dumps(result, ensure_ascii=False)
