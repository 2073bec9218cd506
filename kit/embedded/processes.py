"""Facts about processes of this machine, read from /proc where there is one and from `ps` elsewhere.

A pid alone proves nothing: it may belong to a zombie or, once recycled, to another program. So every question here is
about a pid *and* what runs under it.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

_PROC = Path("/proc")
_HAS_PROC = (_PROC / "self" / "stat").exists()


def wait_until(condition: Callable[[], bool], timeout_seconds: float, *, every_seconds: float = 0.003) -> bool:
    """Whether `condition` came true in time."""
    deadline = time.monotonic() + timeout_seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause.wait(every_seconds)
    return True


def runs(pid: int, *, program: str, folder: Path | None = None, argument: str | None = None) -> bool:
    """Whether `pid` is a live `program`, working in `folder` and started with `argument` where these are given."""
    if pid <= 0:
        return False
    if not _HAS_PROC:
        return _runs_by_ps(pid, program, argument)
    try:
        name, state = _name_and_state(pid)
        if state in "ZXx" or not name.startswith(program[:15]):
            return False
        if folder is not None and not os.path.samefile(_PROC / str(pid) / "cwd", folder):
            return False
        return argument is None or argument in (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False


def ended(pid: int) -> bool:
    """Whether the process is gone or only waits to be reaped. Exact right after a signal, before a pid is recycled."""
    try:
        os.kill(pid, 0)
        return _HAS_PROC and _name_and_state(pid)[1] in "ZXx"
    except (ProcessLookupError, FileNotFoundError):
        return True


def _name_and_state(pid: int) -> tuple[str, str]:
    text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, rest.split()[0]


def _runs_by_ps(pid: int, program: str, argument: str | None) -> bool:
    found = subprocess.run(["ps", "-ww", "-p", str(pid), "-o", "stat=,command="], capture_output=True, text=True)
    state, _, command = found.stdout.strip().partition(" ")
    return bool(state) and state[0] != "Z" and program in command and (argument is None or argument in command)


def started_in(folder: Path, *, program: str) -> list[int]:
    """Pids of every live `program` whose working directory is, or before it was deleted was, `folder`."""
    lost = f"{folder} (deleted)"
    found = []
    for pid in _all(program):
        with contextlib.suppress(OSError):
            if runs(pid, program=program, folder=folder) or os.readlink(_PROC / str(pid) / "cwd") == lost:
                found.append(pid)
    return found


def started_with(argument: str, *, program: str) -> list[int]:
    """Pids of every live `program` that has `argument` on its command line."""
    return [pid for pid in _all(program) if runs(pid, program=program, argument=argument)]


def _all(program: str) -> list[int]:
    if not _HAS_PROC:
        return []
    pids = (int(entry) for entry in os.listdir(_PROC) if entry.isdigit())
    return [pid for pid in pids if runs(pid, program=program)]


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have gone meanwhile, or be someone else's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
