"""`bash`: a command in the session's persistent shell."""

from typing import Any

from services.worker.tools.outcome import ToolFailed, ToolOutcome
from services.worker.tools.overflow import OpenSpill, Scrub, SpillBuffer
from services.worker.tools.shell import CommandEnd, Ending, PersistentShell, ShellUnavailable, Watch
from services.worker.tools.spec import ToolSpec

DEFAULT_TIMEOUT_SECONDS = 120.0
MAX_TIMEOUT_SECONDS = 600.0

SPEC = ToolSpec(
    name="bash",
    description=(
        "Run a command in a bash that stays open for the session: working directory, variables and functions are kept "
        "from call to call. Output and errors come back in order; standard input is empty. A command ends after 120 "
        "seconds unless timeout_ms says otherwise (at most 600000). restart gives a new shell."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "command": {
                "type": "string",
                "minLength": 1,
                "maxLength": 256 * 1024,
                "description": "The command; leave it out only with restart.",
            },
            "timeout_ms": {
                "type": "integer",
                "minimum": 0,
                "maximum": int(MAX_TIMEOUT_SECONDS * 1000),
                "description": "Milliseconds after which the command is ended; 0 means the default.",
            },
            "restart": {"type": "boolean", "description": "Start a new shell instead of running a command."},
        },
        "additionalProperties": False,
    },
)

_NEW_SHELL = "Everything that it had started was ended. The next command gets a new shell in the same folder."


async def run(
    shell: PersistentShell,
    arguments: dict[str, Any],
    *,
    open_spill: OpenSpill | None,
    watch: Watch | None = None,
    scrub: Scrub | None = None,
) -> ToolOutcome:
    """Run the command and tell output and end."""
    if arguments.get("restart", False):
        if "command" in arguments:
            raise ToolFailed("bash: restart: runs no command; send the command in a call of its own")
        await shell.restart()
        return ToolOutcome("The shell was restarted.")
    if "command" not in arguments:
        raise ToolFailed("bash: command: required, and missing")
    seconds = arguments.get("timeout_ms", 0) / 1000 or DEFAULT_TIMEOUT_SECONDS
    buffer = SpillBuffer(open_spill, scrub=scrub)
    try:
        end = await shell.run(arguments["command"], timeout_seconds=seconds, buffer=buffer, watch=watch)
    except ShellUnavailable as error:
        raise ToolFailed(f"bash: no shell: {error}") from error
    except BaseException:
        buffer.discard()
        raise
    note = _note(end, seconds)
    if not note and buffer.empty:
        note = "(no output)"
    elif note and not buffer.empty:
        note = f"\n{note}"
    return buffer.finish(is_error=end.exit_code != 0, trailer=note)


def _note(end: CommandEnd, timeout_seconds: float) -> str:
    match end.ending:
        case Ending.FINISHED:
            return f"[exit code: {end.exit_code}]" if end.exit_code != 0 else ""
        case Ending.SHELL_DIED:
            code = "" if end.exit_code is None else f" with exit code {end.exit_code}"
            return f"[The command ended the shell{code}. {_NEW_SHELL}]"
        case Ending.TIMED_OUT:
            return f"[The command was ended after {timeout_seconds:g} seconds. {_NEW_SHELL}]"
        case Ending.INTERRUPTED:
            return f"[The command was interrupted. {_NEW_SHELL}]"
        case Ending.STOPPED:
            return f"[The command was ended: {end.reason}. {_NEW_SHELL}]"
