"""Which live processes belong to a data folder: named in their arguments, their environment or their working place."""

import os
from pathlib import Path


def processes_of(data_dir: Path) -> list[str]:
    """Their command lines; zombies that only wait to be reaped do not count."""
    wanted, found = os.fsencode(data_dir), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            traces = command + (entry / "environ").read_bytes() + os.fsencode(os.readlink(entry / "cwd"))
        except OSError:
            continue
        if command and wanted in traces:
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found
