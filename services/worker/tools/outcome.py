"""What a tool call comes to: text for the model, and whether it failed.

A tool that cannot do what was asked raises `ToolFailed`; the caller turns it
into an outcome with `is_error`. Nothing else may leave a tool, so a turn never
fails because a command did.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A log row is JSON text in a database that cannot hold NUL, and lone surrogates
# are no UTF-8: both are replaced before text leaves this package.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The result of one tool call.

    `overflow` is set exactly when a spill file was written, as
    `{"path", "original_chars", "preview_chars", "file_bytes"}`. `pictures` are image
    blocks in the published shape that follow the text. `server_tool_use` counts
    requests that the call made on the session's account, by their public names.
    """

    text: str
    is_error: bool = False
    overflow: dict[str, Any] | None = None
    server_tool_use: Mapping[str, int] | None = None
    pictures: tuple[dict[str, Any], ...] = ()


class ToolFailed(Exception):
    """The tool did not do what was asked; the text says why, for the model."""


class ToolInputInvalid(ToolFailed):
    """The input does not fit the tool's schema; the text names the field."""

    def __init__(self, tool: str, field: str | None, problem: str) -> None:
        self.tool = tool
        self.field = field
        super().__init__(f"{tool}: {field}: {problem}" if field else f"{tool}: {problem}")


def storable(text: str) -> str:
    """Return `text` with what no log row can hold replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)
