"""`up` goes on as a process that has only loaded what a supervisor needs.

    handover.give(wanted)            # in the process that parsed the command line: returns only where that can't be
    wanted = handover.taken()        # first of all in the one that follows: what was wanted, or None

The parser of the command line is twenty megabytes and more that a supervisor would hold for as long as the platform
runs. So the program is executed once more in the same process, with the same command line: pid, terminal, signals that
are ignored, working folder and umask stay. What was parsed goes through a pipe, since an address may hold a password.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

_FD = "MANAGED_AGENTS_HANDED_FD"
# Those that end a process which does not listen yet. They wait until the one that follows can take them.
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
# Set by the program's own `main`: whoever calls a command from within Python stays what he is.
allowed = False


def give(wanted: dict[str, Any]) -> None:
    """Become the process that does what is wanted. Returns where it may not or can't; then this one has to do it."""
    program = sys.orig_argv[1:]
    if not allowed or not sys.executable or not program:
        return
    reads, writes = os.pipe()
    try:
        os.set_blocking(writes, False)
        content = json.dumps(wanted).encode()
        # What fits into a pipe is written at once; anything longer is no command line.
        if os.write(writes, content) < len(content):
            return
        os.close(writes)
        writes = -1
        os.set_inheritable(reads, True)
        for stream in (sys.stdout, sys.stderr):
            # None where it was closed when Python started.
            if stream is not None:
                stream.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            os.execve(sys.executable, [sys.executable, *program], {**os.environ, _FD: str(reads)})
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except (OSError, ValueError):
        return
    finally:
        for descriptor in (reads, writes):
            with suppress(OSError):
                os.close(descriptor)


def taken() -> dict[str, Any] | None:
    """What was handed to this process, if it follows one that did."""
    named = os.environ.pop(_FD, "")
    if not named.isdecimal():
        return None
    with open(int(named), "rb") as handed:
        wanted = json.loads(handed.read())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return wanted
