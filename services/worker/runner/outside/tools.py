"""The six built-in tools on a worker's machine.

Each call becomes items: `bash` an exec, `read` a read, `write` a write, `edit` a read and a write, `glob` and `grep` an
exec that searches. Every command runs in a shell of its own that begins in the worker's folder: the next one may well
be run by another worker, so what one leaves to the next are files and nothing else, and the model is told so.
"""

from collections.abc import Awaitable, Callable, Mapping
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
BASH_DESCRIPTION = (
    "Run a command on a machine of the operator. Every command gets a shell of its own that begins in the work folder:"
    " files stay from call to call, the working directory and variables don't, so keep what belongs together in one"
    " command. Output comes first and errors after it; standard input is empty. A command ends after 120 seconds unless"
    " timeout_ms says otherwise (at most 600000)."
)

# Has an item of this kind done within so many seconds.
Do = Callable[[str, Mapping[str, Any], float], Awaitable[Result]]


async def run_tool(name: str, value: object, do: Do, spill_path: str) -> ToolOutcome:
    """Run one tool. Raises WorkFailed where an item ended without a result; other failures are outcomes."""
    try:
        arguments = validate_input(name, value)
        if name == "bash":
            return await _bash(arguments, do, spill_path)
        text = await _RUNS[name](arguments, do)
    except ToolFailed as error:
        return limit_text(str(error), None, is_error=True)
    return await _limited(text, do, spill_path)


async def _bash(arguments: Mapping[str, Any], do: Do, spill_path: str) -> ToolOutcome:
    if arguments.get("restart", False):
        if "command" in arguments:
            raise ToolFailed("bash: restart: runs no command; send the command in a call of its own")
        return ToolOutcome("Every command gets a new shell here, so there was nothing to restart.")
    if "command" not in arguments:
        raise ToolFailed("bash: command: required, and missing")
    seconds = arguments.get("timeout_ms", 0) / 1000 or DEFAULT_TIMEOUT_SECONDS
    payload = {"command": arguments["command"], "timeout_ms": round(seconds * 1000)}
    answer = _object(await do("exec", payload, seconds + _MORE_SECONDS))
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
    if not isinstance(answer.get("exitCode"), int):
        # An answer of another form is no search that found nothing.
        raise ToolFailed(f"{name}: the worker told no exit code, so what it found is not known")
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
