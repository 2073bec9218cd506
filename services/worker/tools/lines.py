"""Turning matches inside a file's bytes into lines to show, with context."""

from dataclasses import dataclass, field

from services.worker.tools.regex import Find

LIMIT_LINE_CHARS = 2_000


@dataclass(slots=True)
class _Shown:
    """What was shown of one file so far."""

    path: str
    lines: list[str] = field(default_factory=list)
    # Where the shown part ends, and the number of the line that begins there.
    end: int = 0
    number: int = 1


class MatchingLines:
    """Finds the lines of a match and renders them as `path:number:text`."""

    def __init__(self, find: Find, *, before: int, after: int, numbered: bool) -> None:
        self._find = find
        self._before = before
        self._after = after
        self._numbered = numbered

    def count(self, data: bytes, *, stop_at_first: bool) -> int:
        """Count the matching lines."""
        total = 0
        start = 0
        while start < len(data) and (found := self._find(data, start)):
            total += 1
            if stop_at_first:
                break
            start = _line_end(data, max(found[1] - 1, found[0])) + 1
        return total

    def show(self, path: str, data: bytes, room: int) -> tuple[list[str], int, bool]:
        """Render up to `room` matches; return lines, matches, and whether there were more."""
        shown = _Shown(path)
        total = 0
        start = 0
        while start < len(data) and (found := self._find(data, start)):
            if total == room:
                return shown.lines, total, True
            total += 1
            first = data.rfind(b"\n", 0, found[0]) + 1
            # An empty match, or one that ends with the newline, stays on its line.
            end = _line_end(data, max(found[1] - 1, found[0]))
            self._add(shown, data, first, end)
            start = end + 1
        self._add_after(shown, data, start if total else len(data))
        return shown.lines, total, False

    def _add(self, shown: _Shown, data: bytes, first: int, end: int) -> None:
        """Show the context due after the last match, that before this one, and the match."""
        gap_start = shown.end
        context_start = first
        for _ in range(self._before):
            if context_start <= gap_start:
                break
            context_start = data.rfind(b"\n", 0, context_start - 1) + 1
        if shown.lines and self._after:
            after_end = self._skip_lines(data, gap_start, self._after, first)
            if after_end >= context_start:
                context_start = gap_start
            else:
                self._emit(shown, data, gap_start, after_end, "-")
        context_start = max(context_start, shown.end)
        if context_start > shown.end:
            if shown.lines and (self._before or self._after):
                shown.lines.append("--")
            shown.number += data.count(b"\n", shown.end, context_start)
            shown.end = context_start
        self._emit(shown, data, context_start, first, "-")
        self._emit(shown, data, first, min(end + 1, len(data)), ":")

    def _add_after(self, shown: _Shown, data: bytes, start: int) -> None:
        if shown.lines and self._after:
            self._emit(shown, data, start, self._skip_lines(data, start, self._after, len(data)), "-")

    def _skip_lines(self, data: bytes, start: int, count: int, limit: int) -> int:
        for _ in range(count):
            if start >= limit:
                break
            start = min(_line_end(data, start) + 1, len(data))
        return min(start, limit)

    def _emit(self, shown: _Shown, data: bytes, start: int, end: int, mark: str) -> None:
        while start < end:
            stop = _line_end(data, start)
            text = data[start : min(stop, start + 4 * LIMIT_LINE_CHARS)].decode("utf-8", "replace").rstrip("\r")
            if len(text) > LIMIT_LINE_CHARS:
                text = text[:LIMIT_LINE_CHARS] + " [line cut]"
            number = f"{shown.number}{mark}" if self._numbered else ""
            shown.lines.append(f"{shown.path}{mark}{number}{text}")
            shown.number += 1
            start = stop + 1
        shown.end = max(shown.end, min(start, len(data)))


def _line_end(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    return len(data) if end < 0 else end
