"""Proves: nothing that a sandbox started outlives its runner or its launcher, and a dead launcher is replaced."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from kit.testing import await_until
from kit.waiting import within

from .conftest import LIMITS, Session, processes_with

# Looked for among all processes of the host, where the same tests of another checkout may run.
OWN_SECONDS = str(5000 + os.getpid())

RUNNER = """
import asyncio, sys
from pathlib import Path
from services.worker.sandbox import SandboxManager

async def main():
    manager = SandboxManager(Path(sys.argv[1]), kind=sys.argv[2])
    session = manager.session("sess_one", {"network": {"type": "unrestricted"}})
    outcome = await session.run_tool("bash", {"command": f"(setsid sleep {sys.argv[3]} &) >/dev/null 2>&1; echo up"})
    print(outcome.text, flush=True)
    await session.run_tool("bash", {"command": f"setsid sleep {sys.argv[3]}"})

asyncio.run(main())
"""


def _groups() -> set[str]:
    """Names of our control groups; not by `rglob`, which fails when one goes while it looks."""
    found = (name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders)
    return {name for name in found if name.startswith("managed-agents-")}


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock", "process"])
@pytest.mark.parametrize("victim", ["runner", "launcher"])
async def test_a_kill_of_the_runner_or_launcher_ends_everything(make_manager, tmp_path, kind, victim):
    make_manager(kind)
    if victim == "launcher" and kind != "bubblewrap":
        pytest.skip("only a process namespace ends what a killed launcher leaves; said in describe()")
    # What a killed runner of another test left may carry the same number, and be another user's to remove.
    before = _groups()
    runner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUNNER, str(tmp_path), kind, OWN_SECONDS, stdout=subprocess.PIPE
    )
    try:
        assert await within(runner.stdout.readline(), 30) == b"up\n"
        await await_until(lambda: len(processes_with(f"sleep\x00{OWN_SECONDS}")) == 2, 20)
        if victim == "runner":
            runner.kill()
        else:
            for pid in processes_with("launcher.py"):
                if _parent(pid) == runner.pid:
                    os.kill(pid, signal.SIGKILL)
        await await_until(lambda: not processes_with(f"sleep\x00{OWN_SECONDS}"), 20)
        if victim == "runner":
            own = f"managed-agents-{runner.pid}-"
            await await_until(lambda: not [name for name in _groups() - before if name.startswith(own)], 20)
    finally:
        if runner.returncode is None:
            runner.kill()
        await runner.wait()
        runner._transport.close()


async def test_a_dead_launcher_is_replaced(bubblewrap, isolated):
    await isolated.text("x=1")
    launcher = bubblewrap._providers["local"].launcher
    first = launcher._process
    first.kill()
    first.wait()

    async def fresh() -> bool:
        # The first command may still find the old shell alive, or see it die.
        return (await isolated.bash("echo ${x:-fresh}")).text == "fresh"

    await await_until(fresh, 20)
    assert launcher._process is not first


async def test_closing_leaves_no_process_and_no_descriptor(make_manager):
    before = set(os.listdir("/proc/self/fd"))
    manager = make_manager("bubblewrap", limits=LIMITS)
    sessions = [Session(manager, f"sess_{n}", {"network": {"type": "unrestricted"}}) for n in range(5)]
    await asyncio.gather(*(each.text(f"sleep {OWN_SECONDS} >/dev/null 2>&1 & echo") for each in sessions))
    await await_until(lambda: len(processes_with(f"sleep\x00{OWN_SECONDS}")) == 5)
    await manager.aclose()
    await await_until(lambda: not processes_with(f"sleep\x00{OWN_SECONDS}"), 20)
    assert set(os.listdir("/proc/self/fd")) <= before


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stream:
        return int(stream.read().rpartition(")")[2].split()[1])
