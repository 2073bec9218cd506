"""`write`: a whole new content for a file, in one atomic step."""

from typing import Any

from services.worker.tools.files import FileView
from services.worker.tools.spec import ToolSpec

LIMIT_CHARS = 10 * 1024 * 1024

SPEC = ToolSpec(
    name="write",
    description=(
        "Write a file, replacing what was there. Missing folders are made. "
        "Relative paths start at the working directory."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "The file to write."},
            "content": {"type": "string", "maxLength": LIMIT_CHARS, "description": "The whole new content."},
        },
        "required": ["file_path", "content"],
        "additionalProperties": False,
    },
    aliases={"path": "file_path"},
    free_text=frozenset({"content"}),
)


def run(files: FileView, arguments: dict[str, Any]) -> str:
    """Write the file and say how much."""
    path: str = arguments["file_path"]
    data: bytes = arguments["content"].encode()
    files.write_file(path, data)
    return f"Wrote {len(data)} bytes to {path}."
