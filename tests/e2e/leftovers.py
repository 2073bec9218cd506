"""Which live processes belong to a data folder: named in their arguments, their environment or their working place."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def processes_of(data_dir: Path) -> list[str]:
    """Their command lines; zombies that only wait to be reaped do not count."""
    return list(_found(data_dir).values())


def kill_all(data_dir: Path) -> None:
    """Nothing of it lives on, and nothing had the time to say goodbye."""
    while found := _found(data_dir):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _found(data_dir: Path) -> dict[int, str]:
    wanted, found = os.fsencode(data_dir), dict[int, str]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            traces = command + (entry / "environ").read_bytes() + os.fsencode(os.readlink(entry / "cwd"))
        except OSError:
            continue
        if command and wanted in traces:
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found
