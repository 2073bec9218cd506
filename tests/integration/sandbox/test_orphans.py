"""A sandbox that is killed while it sets itself up leaves nothing: the child of its first process is ended too."""

import os
from pathlib import Path

import pytest

from kit.testing import await_until
from services.worker.sandbox.launching import LaunchedShell, Launcher, LaunchRequest

# As a bwrap that dies between its clone and its death signal: the child is left alone, in no namespace of its own.
# A file, since the launcher hands bwrap's own options to whatever it starts.
# Not what the same test starts beside it, in another process of the test run.
OWN_SECONDS = f"4902.{os.getpid():07d}"
SCRIPT = f"#!/bin/bash\nsleep {OWN_SECONDS} & read line\n"


async def _spawn(launcher: Launcher, folder: Path) -> tuple[LaunchedShell, list[int]]:
    script = folder / "first-process"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    shell = await launcher.spawn(LaunchRequest([str(script)], {"PATH": "/usr/bin:/bin"}))
    return shell, await await_until(lambda: _sleepers(), 20)


def _sleepers() -> list[int]:

    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_sleeper(entry)]


def _is_sleeper(entry: Path) -> bool:
    try:
        return OWN_SECONDS.encode() in (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.parametrize("end", ["one sandbox", "the launcher"])
async def test_the_child_of_a_sandbox_that_was_killed_is_ended(end: str, tmp_path: Path) -> None:
    launcher = Launcher()
    shell, sleepers = await _spawn(launcher, tmp_path)
    try:
        assert len(sleepers) == 1
        if end == "one sandbox":
            shell.kill()
            await shell.wait()
    finally:
        await launcher.aclose()
        await shell.wait()
    await await_until(lambda: not Path(f"/proc/{sleepers[0]}").exists(), 20)
