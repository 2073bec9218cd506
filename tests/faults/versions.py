"""A former version of the platform, taken from the project's own history, beside the one that is tested."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kit.testing import await_until
from tests.faults.ground import RUNNERS, Ground
from tests.faults.outages import paused

ROOT = Path(__file__).parents[2]
_RUNNER = [sys.executable, "-P", "-m", "services.worker.runner"]
_OF_THE_SUPERVISOR = ("MANAGED_AGENTS_SUPERVISOR_FD", "MANAGED_AGENTS_READY_FD")


class NoHistory(Exception):
    """The checkout doesn't reach back: no repository, or a clone of its tip alone."""


def before_the_contracts_changed() -> str:
    """The newest commit of the main line whose contracts were not yet those of today.

    What lies on the second line of a merge was never released, and may not even run.
    """
    changed = _git("log", "-1", "--first-parent", "--format=%H", "--", "protos").decode().strip()
    if not changed:
        raise NoHistory("no commit in reach touched the contracts")
    return _before(changed)


def the_last_commit() -> str:
    """The commit before this one, on the main line."""
    return _before("HEAD")


def unpack(commit: str, folder: Path) -> Path:
    """What a commit holds, in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", folder], input=_git("archive", "--format=tar", commit), check=True)
    return folder


def python_path(version: Path) -> str:
    """What makes a Python process run this version and no other."""
    found = f"{version}{os.pathsep}{version / 'gen'}"
    script = "import services, cli, kit, managed_agents as m; print(*(p.__path__[0] for p in (services, cli, kit, m)))"
    asked = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**os.environ, "PYTHONPATH": found},
        cwd="/",
        check=True,
        capture_output=True,
        text=True,
    )
    assert all(Path(path).is_relative_to(version) for path in asked.stdout.split()), asked.stdout
    return found


@asynccontextmanager
async def runner_of(version: Path, ground: Ground) -> AsyncIterator[None]:
    """One runner of a version in the place of the platform's own, which end in order and stay away."""
    pids = {name: ground.pid(name) for name in RUNNERS}
    environment = _environment_of(pids[RUNNERS[0]]) | {"PYTHONPATH": python_path(version)}
    async with paused(lambda: [ground.platform.process.pid]):
        for pid in pids.values():
            os.kill(pid or 0, signal.SIGTERM)
        await await_until(lambda: not any(ground.pid(name) for name in RUNNERS), timeout=20)
        other = _start(environment, ground.data_dir)
        try:
            await await_until(lambda: bool(ground.runner_id(RUNNERS[0])), timeout=30)
            yield
            assert other.poll() is None, "the runner ended by itself"
        finally:
            other.terminate()
            other.wait(30)


def _start(environment: dict[str, str], data_dir: Path) -> subprocess.Popen[bytes]:
    with open(data_dir / "logs" / "other.log", "ab") as log:
        return subprocess.Popen(_RUNNER, env=environment, cwd=data_dir, stdout=log, stderr=log)


def _environment_of(pid: int | None) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    found = dict(pair.split("=", 1) for pair in pairs if pair)
    return {name: value for name, value in found.items() if name not in _OF_THE_SUPERVISOR}


def _before(commit: str) -> str:
    found = _git("rev-parse", "--verify", "--quiet", f"{commit}^").decode().strip()
    # Nothing to run where the history begins with the whole platform at once.
    _git("cat-file", "-e", f"{found}:services/worker/runner/__main__.py")
    return found


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", b"").decode().strip()
        raise NoHistory(f"git {arguments[0]} finds nothing here: {told or error}") from error
    return done.stdout
