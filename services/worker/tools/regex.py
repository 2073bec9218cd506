"""Regular expressions on bytes, in linear time where RE2 is installed.

Without RE2 the standard engine is used, which a hostile pattern can occupy for
ever: `HAS_LINEAR_ENGINE` tells callers to run it where it can be killed.
"""

import contextlib
import importlib
import re
from collections.abc import Callable
from typing import Any

from services.worker.tools.outcome import ToolFailed

re2: Any = None
with contextlib.suppress(ImportError):
    # The fleet program may run without it.
    re2 = importlib.import_module("re2")

HAS_LINEAR_ENGINE = re2 is not None
_MEMORY_BYTES = 16 * 1024 * 1024
# Finds the first match at or after a position: its start and end.
Find = Callable[[bytes, int], "tuple[int, int] | None"]


def compile_search(pattern: str, *, ignore_case: bool, multiline: bool, linear: bool = HAS_LINEAR_ENGINE) -> Find:
    """Compile; unless `multiline`, a match never spans lines. Raises ToolFailed."""
    try:
        return _with_re2(pattern, ignore_case, multiline) if linear else _with_re(pattern, ignore_case, multiline)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ToolFailed(f"grep: pattern: {error}") from None


def _with_re2(pattern: str, ignore_case: bool, multiline: bool) -> Find:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.never_nl = not multiline
    options.dot_nl = multiline
    options.max_mem = _MEMORY_BYTES
    try:
        compiled = re2.compile(b"(?m)" + pattern.encode(), options)
    except re2.error as error:
        text = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
        raise ValueError(f"{text} (lookaround and backreferences are not supported)") from None

    def find(data: bytes, start: int) -> tuple[int, int] | None:
        found = compiled.search(data, start)
        return found.span() if found else None

    return find


def _with_re(pattern: str, ignore_case: bool, multiline: bool) -> Find:
    flags = re.MULTILINE | (re.IGNORECASE if ignore_case else 0) | (re.DOTALL if multiline else 0)
    compiled = re.compile(pattern.encode(), flags)

    def find_anywhere(data: bytes, start: int) -> tuple[int, int] | None:
        found = compiled.search(data, start)
        return found.span() if found else None

    def find_in_line(data: bytes, start: int) -> tuple[int, int] | None:
        # Line by line, so that \s and [^x] cannot run across the end of one.
        while start <= len(data):
            end = data.find(b"\n", start)
            end = len(data) if end < 0 else end
            found = compiled.search(data, start, end)
            if found:
                return found.span()
            start = end + 1
        return None

    return find_anywhere if multiline else find_in_line
