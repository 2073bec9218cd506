"""`grep`: lines of files that match a regular expression, bounded in number and time."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from kit.waiting import within
from services.worker.tools.files import FileView
from services.worker.tools.lines import MatchingLines
from services.worker.tools.outcome import ToolFailed
from services.worker.tools.regex import HAS_LINEAR_ENGINE, Find, compile_search
from services.worker.tools.spec import ToolSpec
from services.worker.tools.walk import TIME_LIMIT_SECONDS, Walk
from services.worker.tools.wildcards import PathPattern, PatternInvalid

LIMIT_RESULTS = 200
LIMIT_FILE_BYTES = 16 * 1024 * 1024
KILL_SECONDS = TIME_LIMIT_SECONDS + 5
_COUNT = {"type": "integer", "minimum": 0, "maximum": 100}

SPEC = ToolSpec(
    name="grep",
    description=(
        "Search file contents with a regular expression (RE2 syntax). Shows file:line:text by default; output_mode "
        f"can name only the files or count matches. At most {LIMIT_RESULTS} results; binary files and .git are skipped."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "The expression."},
            "path": {
                "type": "string",
                "minLength": 1,
                "maxLength": 4096,
                "description": "The file or folder to search; the working directory by default.",
            },
            "glob": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1000,
                "description": "Search only files whose name or path fits, such as *.py.",
            },
            "output_mode": {
                "type": "string",
                "enum": ["content", "files_with_matches", "count"],
                "description": "What to show; content by default.",
            },
            "-i": {"type": "boolean", "description": "Ignore upper and lower case."},
            "-n": {"type": "boolean", "description": "Show line numbers; true by default."},
            "-A": {**_COUNT, "description": "Lines to show after each match."},
            "-B": {**_COUNT, "description": "Lines to show before each match."},
            "-C": {**_COUNT, "description": "Lines to show before and after each match."},
            "head_limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": LIMIT_RESULTS,
                "description": "Show at most so many results.",
            },
            "multiline": {"type": "boolean", "description": "Let a match span lines."},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
)


def run(files: FileView, arguments: dict[str, Any], *, linear: bool = HAS_LINEAR_ENGINE) -> str:
    """Return the result for the model."""
    find = compile_search(
        arguments["pattern"],
        ignore_case=arguments.get("-i", False),
        multiline=arguments.get("multiline", False),
        linear=linear,
    )
    return _Search(files, arguments, find).run()


class _Search:
    """One search: what was asked, and what was found so far."""

    def __init__(self, files: FileView, arguments: dict[str, Any], find: Find) -> None:
        self._files = files
        self._path: str = arguments.get("path", ".")
        self._mode: str = arguments.get("output_mode", "content")
        self._limit: int = arguments.get("head_limit", LIMIT_RESULTS)
        around: int = arguments.get("-C", 0)
        self._lines = MatchingLines(
            find,
            before=arguments.get("-B", around),
            after=arguments.get("-A", around),
            numbered=arguments.get("-n", True),
        )
        self._filter = _filter(arguments.get("glob"))
        self._found: list[str] = []
        self._results = 0
        self._too_large = 0
        self._cut = False

    def run(self) -> str:
        single = self._single_file()
        stopped = ""
        if single is not None:
            self._take(self._path, single)
        else:
            stopped = self._folder()
        lines = self._found or ["No matches."]
        if self._cut:
            lines.append(f"[cut off after {self._limit} results]")
        if self._too_large:
            lines.append(f"[{self._too_large} files of more than {LIMIT_FILE_BYTES} bytes were not searched]")
        if stopped:
            lines.append(f"[{stopped}]")
        return "\n".join(lines)

    def _single_file(self) -> bytes | None:
        try:
            opened, status = self._files.open_file(self._path)
        except ToolFailed:
            # A folder, or nothing at all: opening it as a folder tells which.
            return None
        with os.fdopen(opened.fd, "rb") as stream:
            if status.st_size > LIMIT_FILE_BYTES:
                raise ToolFailed(f"{self._path} has more than the {LIMIT_FILE_BYTES} bytes that grep searches.")
            return stream.read(LIMIT_FILE_BYTES)

    def _folder(self) -> str:
        opened = self._files.open_folder(self._path)
        base = opened.path.rstrip("/")
        try:
            walk = Walk(opened.fd)
            for path, data in self._contents(walk):
                self._take(f"{base}/{path}", data)
                if self._cut:
                    break
        finally:
            os.close(opened.fd)
        return walk.stopped

    def _contents(self, walk: Walk) -> Iterator[tuple[str, bytes]]:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
        for entry in walk.entries():
            if not entry.is_file or not self._wanted(entry.segments):
                continue
            try:
                fd = os.open(entry.name, flags, dir_fd=entry.folder_fd)
            except OSError:
                continue
            with os.fdopen(fd, "rb") as stream:
                try:
                    data = stream.read(LIMIT_FILE_BYTES + 1)
                except OSError:
                    continue
            if len(data) > LIMIT_FILE_BYTES:
                self._too_large += 1
                continue
            yield entry.path, data

    def _wanted(self, segments: tuple[str, ...]) -> bool:
        if self._filter is None:
            return True
        return self._filter.matches(segments[-1:]) or self._filter.matches(segments)

    def _take(self, path: str, data: bytes) -> None:
        if b"\x00" in data[:8192]:
            return
        if self._mode == "content":
            room = self._limit - self._results
            shown, count, self._cut = self._lines.show(path, data, room)
            self._found += shown
            self._results += count
            return
        count = self._lines.count(data, stop_at_first=self._mode == "files_with_matches")
        if count == 0:
            return
        if self._results == self._limit:
            self._cut = True
            return
        self._results += 1
        self._found.append(path if self._mode == "files_with_matches" else f"{path}:{count}")


def _filter(pattern: str | None) -> PathPattern | None:
    if pattern is None:
        return None
    try:
        return PathPattern(pattern)
    except PatternInvalid as error:
        raise ToolFailed(f"grep: glob: {error}") from None


async def run_killable(files: FileView, arguments: dict[str, Any]) -> str:
    """Search in a process that can be killed, for hosts without the linear engine."""
    job = json.dumps({"files": files.describe(), "arguments": arguments})
    program = "import sys; sys.path[:0] = sys.argv[1:]; from services.worker.tools import grep; grep.child()"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-B",
        "-c",
        program,
        *(path for path in sys.path if path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        out, _ = await within(process.communicate(job.encode()), KILL_SECONDS)
    except TimeoutError:
        raise ToolFailed("grep: pattern: takes too long; make it simpler") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    answer = json.loads(out or '{"failed": "the search ended without an answer"}')
    if "failed" in answer:
        raise ToolFailed(answer["failed"])
    return answer["text"]


def child() -> None:
    """Entry of the process that searches where RE2 is missing."""
    job = json.load(sys.stdin)
    files = FileView.from_description(job["files"])
    try:
        answer = {"text": run(files, job["arguments"], linear=False)}
    except ToolFailed as error:
        answer = {"failed": str(error)}
    json.dump(answer, sys.stdout)
