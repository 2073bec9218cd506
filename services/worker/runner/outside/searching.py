"""`glob` and `grep` on a worker's machine: one command that finds, and results in the shape that they have everywhere.

A folder is searched by the machine's own `find` and `grep`, so nothing is copied to be looked at, and who watches what
workers run can read what it does. What matches a wildcard is decided here, by the rules of the local tool.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from services.worker.tools import ToolFailed
from services.worker.tools.glob import LIMIT_RESULTS as MOST_PATHS
from services.worker.tools.glob import split_start
from services.worker.tools.grep import LIMIT_RESULTS as MOST_MATCHES
from services.worker.tools.lines import LIMIT_LINE_CHARS
from services.worker.tools.regex import compile_search
from services.worker.tools.wildcards import PathPattern, PatternInvalid

SEARCH_SECONDS = 25.0
_MOST_ENTRIES = 20_000
_DATED = re.compile(r"(\d+)(?:\.(\d+))? ([a-z]) (.+)")
_MATCH, _CONTEXT = re.compile(r"(.*?):(\d+):(.*)"), re.compile(r"(.*?)-(\d+)-(.*)")


class Glob:
    """One search for names."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Raises ToolFailed for a pattern that can't be understood."""
        self._text, self._folder = split_start(arguments["pattern"], arguments.get("path"))
        if ".." in self._text.split("/"):
            raise ToolFailed("glob: pattern: must not contain '..'; name the folder in path")
        try:
            self._pattern = PathPattern(self._text)
        except PatternInvalid as error:
            raise ToolFailed(f"glob: pattern: {error}") from None

    @property
    def command(self) -> str:
        """Lists what lies there, with times where the machine's `find` can tell them."""
        depth = self._pattern.deepest
        walk = f"find . {f'-maxdepth {depth} ' if depth is not None else ''}-type d -name .git -prune -o{self._named}"
        return (
            f"cd -- {quote(self._folder)} &&"
            f" {{ {walk} -printf '%T@ %y %P\\n' 2>/dev/null || {walk} -print 2>/dev/null; }}"
            f" | head -n {_MOST_ENTRIES + 1}"
        )

    @property
    def _named(self) -> str:
        """Leaves out on the machine what can't match by its name."""
        name = self._text.rstrip("/").rpartition("/")[2]
        return "" if name == "**" or set("{}\\") & set(self._text) else f" -name {quote(name)}"

    def read(self, stdout: str) -> str:
        """The result for the model."""
        lines = stdout.splitlines()
        dated = [found for line in lines if (found := _DATED.fullmatch(line))]
        if dated:
            entries = [(f"{d[1]}.{d[2] or 0}", d[4] + ("/" if d[3] == "d" else "")) for d in dated]
        else:
            entries = [("0", line.removeprefix("./")) for line in lines if line.startswith("./")]
        found = [entry for entry in entries if self._pattern.matches(entry[1].rstrip("/").split("/"))]
        found.sort(key=lambda entry: (-float(entry[0]), entry[1]))
        base = "" if self._folder == "." else self._folder.rstrip("/") + "/"
        shown = [f"{base}{path}" for _, path in found[:MOST_PATHS]] or ["No matches."]
        if len(found) > MOST_PATHS:
            shown.append(f"[{len(found) - MOST_PATHS} older matches are not listed]")
        # A line of another form is the worker's word that it told less than all.
        if len(lines) > _MOST_ENTRIES or (dated and not lines[-1].startswith("./") and not _DATED.fullmatch(lines[-1])):
            shown.append("[not all entries were looked at; narrow the search by path or pattern]")
        return "\n".join(shown)


class Grep:
    """One search for text."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Raises ToolFailed for a pattern that can't be understood, or a search that a worker can't make."""
        self._arguments = arguments
        self._path: str = arguments.get("path", ".")
        self._mode: str = arguments.get("output_mode", "content")
        self._limit: int = arguments.get("head_limit", MOST_MATCHES)
        around: int = arguments.get("-C", 0)
        self._before: int = arguments.get("-B", around)
        self._after: int = arguments.get("-A", around)
        if arguments.get("multiline", False):
            raise ToolFailed("grep: multiline: a worker's machine is searched line by line; leave it out")
        compile_search(arguments["pattern"], ignore_case=arguments.get("-i", False), multiline=False)
        self._filter = _filter(arguments.get("glob"))

    @property
    def command(self) -> str:
        """Searches with Perl's expressions, which know what the local tool's do; with extended ones where it must."""
        flags = {"files_with_matches": ["-l"], "count": ["-c"]}.get(self._mode, ["-n"])
        if self._arguments.get("-i", False):
            flags.append("-i")
        if self._mode == "content" and (self._before or self._after):
            flags += [f"-B{self._before}", f"-A{self._after}"]
        if (wanted := self._arguments.get("glob")) is not None:
            flags += [f"--include={quote(each)}" for each in _names(wanted)]
        kind = "$(printf x | grep -qP x 2>/dev/null && printf %s -P || printf %s -E)"
        search = f"grep -rHI {kind} {' '.join(flags)} --exclude-dir=.git -e {quote(self._arguments['pattern'])}"
        end = " | grep -v ':0$'" if self._mode == "count" else ""
        return f"{search} -- {quote(self._path)}{end} | head -n {self._most_lines}"

    @property
    def _most_lines(self) -> int:
        # Between two matches stand at most their context and a separator.
        per_match = 1 + (self._before + self._after + 1 if self._mode == "content" else 0)
        return (self._limit + 1) * per_match

    def read(self, stdout: str, stderr: str) -> str:
        """The result for the model."""
        if not stdout and stderr.strip():
            raise ToolFailed(stderr.strip().splitlines()[0][:LIMIT_LINE_CHARS])
        shown: list[str] = []
        results = 0
        for line in map(self._parsed, stdout.splitlines()):
            if not self._wanted(line.path):
                continue
            if line.is_result and results == self._limit:
                shown.append(f"[cut off after {self._limit} results]")
                break
            results += line.is_result
            shown.append(line.shown)
        return "\n".join(shown) or "No matches."

    def _wanted(self, path: str) -> bool:
        if self._filter is None or not path:
            return True
        base = "" if self._path == "." else self._path.rstrip("/") + "/"
        segments = path.removeprefix(base).split("/")
        return self._filter.matches(segments[-1:]) or self._filter.matches(segments)

    def _parsed(self, line: str) -> "_Line":
        line = line.removeprefix("./")
        if self._mode == "count":
            return _Line(line, line.rpartition(":")[0], is_result=True)
        if self._mode != "content":
            return _Line(line, line, is_result=True)
        found, mark = _MATCH.fullmatch(line), ":"
        context = _CONTEXT.fullmatch(line) if self._before or self._after else None
        # The number that stands first is the line's.
        if context is not None and (found is None or len(context[1]) < len(found[1])):
            found, mark = context, "-"
        if found is None:
            return _Line(line[:LIMIT_LINE_CHARS])
        path, number, text = found.groups()
        if len(text) > LIMIT_LINE_CHARS:
            text = text[:LIMIT_LINE_CHARS] + " [line cut]"
        number = f"{number}{mark}" if self._arguments.get("-n", True) else ""
        return _Line(f"{path}{mark}{number}{text}", path, is_result=mark == ":")


@dataclass(frozen=True, slots=True)
class _Line:
    shown: str
    # Empty where the line is of no file.
    path: str = ""
    is_result: bool = False


def _filter(pattern: str | None) -> PathPattern | None:
    if pattern is None:
        return None
    try:
        return PathPattern(pattern)
    except PatternInvalid as error:
        raise ToolFailed(f"grep: glob: {error}") from None


def _names(pattern: str) -> list[str]:
    """What grep compares with names: it knows neither folders nor braces."""
    name = pattern.rpartition("/")[2] or pattern
    found = re.fullmatch(r"([^{}]*)\{([^{}]*)\}([^{}]*)", name)
    if found is not None:
        return [f"{found[1]}{each}{found[3]}" for each in found[2].split(",")]
    return [] if "{" in name or name == "**" else [name]
