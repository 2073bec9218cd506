"""How a command speaks to the person at the terminal, and ends with a code."""

import contextlib
import os
import sys
from collections.abc import Awaitable

from cli.errors import CannotStart, CommandFailed


def say(text: str) -> None:
    """Tell the person at the terminal, apart from a command's output. A terminal that is gone changes nothing."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


async def told(command: Awaitable[int | None]) -> int:
    """Run a command and turn its plain reasons into a message and an exit code."""
    try:
        return await command or 0
    except (CannotStart, CommandFailed) as reason:
        say(f"managed-agents: {reason}")
        return 1
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
