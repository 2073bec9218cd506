"""Becomes git, with the least rights that a clone takes. Run by path, standard library only.

    python -I -S -B confined.py '{"read": […], "write": […], "port": 1234, …}' git fetch …

The process, and every program that git starts, can write below one folder, read the system's programs, and connect to
one port of this host where the kernel knows Landlock; elsewhere it has at least no capabilities, no further privileges,
and limits. It ends with the process that started it.
"""

import json
import os
import resource
import signal
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3, "sandbox"))
from confinement import drop_capabilities, landlock_abi, libc, restrict_files  # pyright: ignore[reportMissingImports]

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


def main() -> None:
    """Confine this process and become the command."""
    given, command = json.loads(sys.argv[1]), sys.argv[2:]
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, given["cpu_seconds"]),
        (resource.RLIMIT_FSIZE, given["file_bytes"]),
        (resource.RLIMIT_NOFILE, 256),
    ):
        resource.setrlimit(limit, (value, value))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    drop_capabilities()
    if landlock_abi() >= 1:
        restrict_files(
            {"read": given["read"], "write": given["write"], "device": given["device"], "connect": [given["port"]]}
        )
    os.execve(command[0], command, dict(os.environ))


if __name__ == "__main__":
    main()
