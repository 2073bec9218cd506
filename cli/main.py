"""Entry point of the command `managed-agents`: parses the command line, or goes on with what was parsed."""

import os
import sys

from cli import handover

# What a shell calls a command that Ctrl-C ended.
_INTERRUPTED = 130


def main() -> None:
    # Whatever is written from here on, by the servers and services that it starts too, is for this user alone.
    os.umask(0o077)
    try:
        wanted = handover.taken()
        if wanted is not None:
            from cli.serving import run

            sys.exit(run(**wanted))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    from cli.commands import app

    handover.allowed = True
    app()
