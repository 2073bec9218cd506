"""The six built-in tools on a worker's machine.

Each call becomes items: `bash` an exec, `read` a read, `write` a write, `edit` a read and a write, `glob` and `grep` an
exec that searches. A command runs in a shell of its own in the worker's folder. What one leaves to the next are files
and, where the worker reports them with its result (`cwd`, `env`), the folder and the variables that it ended with:
they go along with the session's next command.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.worker.runner.outside.fetched import CapturedSpill, FetchedFile, encoded
from services.worker.runner.outside.items import LEASE_LOST, Result, WorkFailed
from services.worker.runner.outside.searching import SEARCH_SECONDS, Glob, Grep
from services.worker.tools import ToolFailed, ToolOutcome, edit, limit_text, read, validate_input
from services.worker.tools.bash import DEFAULT_TIMEOUT_SECONDS
from services.worker.tools.overflow import SpillBuffer

# How long a file may take, and what a command may take beyond its own time: to start, to be killed, to be reported.
FILE_SECONDS = 90.0
_MORE_SECONDS = 60.0
_MOST_VARIABLES_BYTES = 64 * 1024
BASH_DESCRIPTION = (
    "Run a command on a machine of the operator, in its work folder. Every command gets a shell of its own: files stay"
    " from call to call, functions and plain variables don't, so keep what belongs together in one command. Standard"
    " input is empty. A command ends after 120 seconds unless timeout_ms says otherwise (at most 600000). restart goes"
    " back to the work folder."
)

# Has an item of this kind done within so many seconds.
Do = Callable[[str, Mapping[str, Any], float], Awaitable[Result]]


@dataclass(slots=True)
class Shell:
    """What the next command of a session begins with."""

    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def take(self, answer: Mapping[str, Any]) -> None:
        """What a worker says that a command ended with."""
        cwd, env = answer.get("cwd"), answer.get("env")
        if isinstance(cwd, str):
            self.cwd = cwd
        if isinstance(env, dict) and all(isinstance(value, str) for value in env.values()):
            size = sum(len(name) + len(value) for name, value in env.items())
            self.env = dict(env) if size <= _MOST_VARIABLES_BYTES else {}


class OutsideTools:
    """The tools of one session or thread."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def run(self, name: str, value: object, do: Do, spill_path: str) -> ToolOutcome:
        """Run one tool. Raises WorkFailed where an item ended without a result; other failures are outcomes."""
        try:
            arguments = validate_input(name, value)
            if name == "bash":
                return await self._bash(arguments, do, spill_path)
            text = await _RUNS[name](arguments, do)
        except ToolFailed as error:
            return limit_text(str(error), None, is_error=True)
        return await _limited(text, do, spill_path)

    async def _bash(self, arguments: Mapping[str, Any], do: Do, spill_path: str) -> ToolOutcome:
        if arguments.get("restart", False):
            if "command" in arguments:
                raise ToolFailed("bash: restart: runs no command; send the command in a call of its own")
            self._shell.cwd, self._shell.env = "", {}
            return ToolOutcome("The next command begins in the work folder.")
        if "command" not in arguments:
            raise ToolFailed("bash: command: required, and missing")
        seconds = arguments.get("timeout_ms", 0) / 1000 or DEFAULT_TIMEOUT_SECONDS
        payload: dict[str, Any] = {"command": arguments["command"], "timeout_ms": round(seconds * 1000)}
        if self._shell.cwd:
            payload["cwd"] = self._shell.cwd
        if self._shell.env:
            payload["env"] = self._shell.env
        answer = _object(await do("exec", payload, seconds + _MORE_SECONDS))
        self._shell.take(answer)
        return await _command_outcome(answer, seconds, do, spill_path)


async def _command_outcome(answer: Mapping[str, Any], seconds: float, do: Do, spill_path: str) -> ToolOutcome:
    output = _joined(_text(answer, "stdout"), _text(answer, "stderr"))
    code, timed_out = answer.get("exitCode"), answer.get("timedOut") is True
    note = ""
    if timed_out:
        note = f"[The command was ended after {seconds:g} seconds.]"
    elif code != 0:
        note = f"[exit code: {code}]" if code is not None else "[The command told no exit code.]"
    elif not output:
        note = "(no output)"
    is_error = timed_out or code != 0
    trailer = f"\n{note}" if note and output else note
    spill = CapturedSpill(spill_path)
    outcome = _finished(output, spill, is_error=is_error, trailer=trailer)
    if spill.content is None or await _is_written(spill, do):
        return outcome
    return _finished(output, None, is_error=is_error, trailer=trailer)


def _finished(output: str, spill: CapturedSpill | None, *, is_error: bool, trailer: str) -> ToolOutcome:
    buffer = SpillBuffer(spill.opener if spill is not None else None)
    if output:
        buffer.feed(output.encode())
    return buffer.finish(is_error=is_error, trailer=trailer)


async def _limited(text: str, do: Do, spill_path: str) -> ToolOutcome:
    spill = CapturedSpill(spill_path)
    outcome = limit_text(text, spill.opener)
    if spill.content is None or await _is_written(spill, do):
        return outcome
    return limit_text(text, None)


async def _is_written(spill: CapturedSpill, do: Do) -> bool:
    """A spill that can't be written is no failure of the call: the tool has run."""
    assert spill.content is not None
    try:
        return not (await do("write", {"path": spill.path} | encoded(spill.content), FILE_SECONDS)).failed
    except WorkFailed:
        return False


async def _read(arguments: dict[str, Any], do: Do) -> str:
    return read.run((await _fetched(arguments["file_path"], do)).view, arguments)


async def _write(arguments: dict[str, Any], do: Do) -> str:
    data: bytes = arguments["content"].encode()
    await _put(arguments["file_path"], data, do)
    return f"Wrote {len(data)} bytes to {arguments['file_path']}."


async def _edit(arguments: dict[str, Any], do: Do) -> str:
    fetched = await _fetched(arguments["file_path"], do)
    told = edit.run(fetched.view, arguments)
    assert fetched.written is not None
    await _put(arguments["file_path"], fetched.written, do)
    return told


async def _glob(arguments: dict[str, Any], do: Do) -> str:
    search = Glob(arguments)
    answer = await _searched("glob", search.command, do)
    if not _text(answer, "stdout") and answer.get("exitCode"):
        raise ToolFailed(_text(answer, "stderr").strip()[:500] or "glob: the folder can't be listed")
    return search.read(_text(answer, "stdout"))


async def _grep(arguments: dict[str, Any], do: Do) -> str:
    search = Grep(arguments)
    answer = await _searched("grep", search.command, do)
    return search.read(_text(answer, "stdout"), _text(answer, "stderr"))


_RUNS = {"read": _read, "write": _write, "edit": _edit, "glob": _glob, "grep": _grep}


async def _searched(name: str, command: str, do: Do) -> Mapping[str, Any]:
    payload = {"command": command, "timeout_ms": round(SEARCH_SECONDS * 1000)}
    answer = _object(await do("exec", payload, SEARCH_SECONDS + _MORE_SECONDS))
    if answer.get("timedOut") is True:
        raise ToolFailed(f"{name}: the search took over {SEARCH_SECONDS:g} seconds; narrow it by path or pattern")
    return answer


async def _fetched(path: str, do: Do) -> FetchedFile:
    return FetchedFile(path, _object(await do("read", {"path": path}, FILE_SECONDS)))


async def _put(path: str, data: bytes, do: Do) -> None:
    _object(await do("write", {"path": path} | encoded(data), FILE_SECONDS))


def _object(result: Result) -> Mapping[str, Any]:
    """What a worker answered, or the failure that it told."""
    value = result.value if isinstance(result.value, dict) else {}
    if not result.failed:
        return value
    error = value.get("error", result.value)
    if isinstance(error, dict):
        if error.get("code") == LEASE_LOST:
            raise WorkFailed(LEASE_LOST)
        error = error.get("message")
    if not error and isinstance(result.value, dict):
        error = value.get("message")
    raise ToolFailed(error if isinstance(error, str) and error else "The worker could not do this, and told no reason.")


def _text(answer: Mapping[str, Any], name: str) -> str:
    value = answer.get(name)
    return value if isinstance(value, str) else ""


def _joined(first: str, second: str) -> str:
    return f"{first}\n{second}" if first and second and not first.endswith("\n") else first + second
