"""`read`: the text of a file, by lines, bounded in size."""

import os
from typing import Any

from services.worker.tools.files import FileView, reason
from services.worker.tools.outcome import ToolFailed
from services.worker.tools.spec import ToolSpec

LIMIT_BYTES = 256 * 1024

SPEC = ToolSpec(
    name="read",
    description=(
        "Read a text file. The whole file comes back when it is at most 256 KiB; for a part of it give offset and "
        "limit in lines, or view_range. Relative paths start at the working directory."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "The file to read."},
            "offset": {"type": "integer", "minimum": 1, "maximum": 2**31, "description": "First line, from 1."},
            "limit": {"type": "integer", "minimum": 1, "maximum": 2**31, "description": "How many lines at most."},
            "view_range": {
                "type": "array",
                "items": {"type": "integer"},
                "minItems": 2,
                "maxItems": 2,
                "description": "First and last line, from 1, both included; a last line below 1 means the end.",
            },
        },
        "required": ["file_path"],
        "additionalProperties": False,
    },
    aliases={"path": "file_path"},
)


def run(files: FileView, arguments: dict[str, Any]) -> str:
    """Return the asked part of the file."""
    path: str = arguments["file_path"]
    first, count = _lines_asked(arguments)
    opened, status = files.open_file(path)
    try:
        with os.fdopen(opened.fd, "rb") as stream:
            head = stream.read(8192)
            if b"\x00" in head:
                return f"{path} is a binary file of {status.st_size} bytes; its content is not shown."
            stream.seek(0)
            if first == 1 and count is None:
                if status.st_size > LIMIT_BYTES:
                    raise ToolFailed(_too_large(path, status.st_size))
                data = stream.read(LIMIT_BYTES + 1)
                if len(data) > LIMIT_BYTES:
                    raise ToolFailed(_too_large(path, len(data)))
            else:
                data = _read_lines(path, stream, first, count)
    except OSError as error:
        raise ToolFailed(f"{path}: {reason(error)}") from error
    if not data:
        return f"{path} is empty." if status.st_size == 0 else f"{path} has no line {first}."
    return data.decode("utf-8", "replace")


def _lines_asked(arguments: dict[str, Any]) -> tuple[int, int | None]:
    if "view_range" not in arguments:
        return arguments.get("offset", 1), arguments.get("limit")
    if "offset" in arguments or "limit" in arguments:
        raise ToolFailed("read: view_range: give either view_range, or offset and limit")
    first, last = arguments["view_range"]
    first = max(first, 1)
    if last < 1:
        return first, None
    if last < first:
        raise ToolFailed("read: view_range: the last line lies before the first")
    return first, last - first + 1


def _read_lines(path: str, stream: Any, first: int, count: int | None) -> bytes:
    """Stream to the wanted lines, so that a large file costs time but no memory."""
    skip, taken, left = first - 1, bytearray(), count
    while piece := stream.readline(LIMIT_BYTES):
        if skip:
            skip -= piece.endswith(b"\n")
            continue
        if left == 0:
            break
        taken += piece
        if len(taken) > LIMIT_BYTES:
            raise ToolFailed(f"{path}: the asked lines are longer than {LIMIT_BYTES} bytes; ask for fewer.")
        if left is not None and piece.endswith(b"\n"):
            left -= 1
    return bytes(taken)


def _too_large(path: str, size: int) -> str:
    return (
        f"{path} has {size} bytes, more than the {LIMIT_BYTES} that are read at once; "
        "ask for a part of it with offset and limit."
    )
