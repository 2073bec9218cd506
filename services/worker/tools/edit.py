"""`edit`: an exact replacement inside a text file."""

import os
from typing import Any

from services.worker.tools.files import FileView, reason
from services.worker.tools.outcome import ToolFailed
from services.worker.tools.spec import ToolSpec

LIMIT_BYTES = 4 * 1024 * 1024
_TEXT = {"type": "string", "maxLength": LIMIT_BYTES}

SPEC = ToolSpec(
    name="edit",
    description=(
        "Replace text in a file. old_string must match exactly, white space included, and must occur once unless "
        "replace_all is true."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "The file to change."},
            "old_string": {**_TEXT, "minLength": 1, "description": "The text to replace."},
            "new_string": {**_TEXT, "description": "What to put in its place."},
            "replace_all": {"type": "boolean", "description": "Replace every occurrence."},
        },
        "required": ["file_path", "old_string", "new_string"],
        "additionalProperties": False,
    },
    aliases={"path": "file_path"},
    free_text=frozenset({"old_string", "new_string"}),
)


def run(files: FileView, arguments: dict[str, Any]) -> str:
    """Replace and say how often."""
    path: str = arguments["file_path"]
    old, new = arguments["old_string"].encode(), arguments["new_string"].encode()
    if old == new:
        raise ToolFailed("edit: new_string: is the same as old_string")
    data = _content(files, path)
    count = data.count(old)
    if count == 0:
        raise ToolFailed(f"edit: old_string: not found in {path}")
    if count > 1 and not arguments.get("replace_all", False):
        raise ToolFailed(
            f"edit: old_string: occurs {count} times in {path}; give more of its surroundings, or set replace_all"
        )
    files.write_file(path, data.replace(old, new))
    return f"Replaced {count} {'occurrence' if count == 1 else 'occurrences'} in {path}."


def _content(files: FileView, path: str) -> bytes:
    opened, status = files.open_file(path)
    with os.fdopen(opened.fd, "rb") as stream:
        if status.st_size > LIMIT_BYTES:
            raise ToolFailed(f"{path} has {status.st_size} bytes; edit takes files of up to {LIMIT_BYTES}.")
        try:
            data = stream.read(LIMIT_BYTES + 1)
        except OSError as error:
            raise ToolFailed(f"{path}: {reason(error)}") from error
    if len(data) > LIMIT_BYTES:
        raise ToolFailed(f"{path} grew beyond the {LIMIT_BYTES} bytes that edit takes.")
    try:
        data.decode()
    except UnicodeDecodeError:
        raise ToolFailed(f"{path} is not a UTF-8 text file.") from None
    return data
