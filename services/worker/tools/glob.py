"""`glob`: names of files by wildcard, newest first."""

import heapq
import os
from collections.abc import Iterator
from typing import Any

from services.worker.tools.files import FileView
from services.worker.tools.outcome import ToolFailed
from services.worker.tools.spec import ToolSpec
from services.worker.tools.walk import Walk
from services.worker.tools.wildcards import PathPattern, PatternInvalid

LIMIT_RESULTS = 200

SPEC = ToolSpec(
    name="glob",
    description=(
        "List files and folders whose path matches a pattern such as **/*.py or src/{a,b}/*.txt, newest first. "
        f"At most {LIMIT_RESULTS} are listed; folders end with a slash, and .git is left out."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "The pattern."},
            "path": {
                "type": "string",
                "minLength": 1,
                "maxLength": 4096,
                "description": "The folder to look in; the working directory by default.",
            },
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
)


def run(files: FileView, arguments: dict[str, Any]) -> str:
    """Return the matching paths, one a line."""
    pattern, folder = split_start(arguments["pattern"], arguments.get("path"))
    if ".." in pattern.split("/"):
        raise ToolFailed("glob: pattern: must not contain '..'; name the folder in path")
    try:
        compiled = PathPattern(pattern)
    except PatternInvalid as error:
        raise ToolFailed(f"glob: pattern: {error}") from None
    opened = files.open_folder(folder)
    try:
        walk = Walk(opened.fd, compiled.deepest)
        total, newest = _newest(_matches(walk, compiled))
    finally:
        os.close(opened.fd)
    base = opened.path.rstrip("/")
    lines = [f"{base}/{path}" for _, path in newest] or ["No matches."]
    if total > len(newest):
        lines.append(f"[{total - len(newest)} older matches are not listed]")
    if walk.stopped:
        lines.append(f"[{walk.stopped}]")
    return "\n".join(lines)


def split_start(pattern: str, path: str | None) -> tuple[str, str]:
    """Split an absolute pattern into a folder without wildcards and the rest."""
    if not pattern.startswith("/"):
        return pattern, path or "."
    fixed: list[str] = []
    segments = pattern.strip("/").split("/")
    while len(segments) > 1 and not set("*?[{\\") & set(segments[0]):
        fixed.append(segments.pop(0))
    return "/".join(segments), "/" + "/".join(fixed)


def _matches(walk: Walk, compiled: PathPattern) -> Iterator[tuple[float, str]]:
    for entry in walk.entries():
        if not compiled.matches(entry.segments):
            continue
        try:
            changed = os.stat(entry.name, dir_fd=entry.folder_fd, follow_symlinks=False).st_mtime
        except OSError:
            continue
        yield changed, entry.path + ("/" if entry.is_folder else "")


def _newest(found: Iterator[tuple[float, str]]) -> tuple[int, list[tuple[float, str]]]:
    """Keep the newest in bounded memory; count them all."""
    total = 0
    heap: list[tuple[float, str]] = []
    for each in found:
        total += 1
        if len(heap) < LIMIT_RESULTS:
            heapq.heappush(heap, each)
        else:
            heapq.heappushpop(heap, each)
    return total, sorted(heap, key=lambda each: (-each[0], each[1]))
