"""Entry point of the command `managed-agents`: parses the command line, or goes on with what was parsed."""

import os
import sys
from contextlib import suppress

from cli import handover

# What a shell calls a command that Ctrl-C ended.
_INTERRUPTED = 130


def main() -> None:
    # Whatever is written from here on, by the servers and services that it starts too, is for this user alone.
    os.umask(0o077)
    _open_what_is_closed()
    try:
        wanted = handover.taken()
        if wanted is not None:
            from cli.serving import run

            sys.exit(run(**wanted))
        from cli.commands import app

        handover.allowed = True
        app()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _open_what_is_closed() -> None:
    """Whoever starts us without standard input or output must not find his words in a file that has its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with suppress(OSError):
                # The lowest number that is free is this one, since those below it are open. It stays for the services.
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
