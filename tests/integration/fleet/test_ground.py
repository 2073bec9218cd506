"""Proves: a control group goes from one command to the next only when nobody is left in it, and none stays behind."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.worker.fleet.ground import Ground
from services.worker.sandbox.cgroups import SessionGroup
from services.worker.sandbox.launching import LaunchRequest
from services.worker.tools import ShellUnavailable


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    ground = _confined(tmp_path)
    yield ground
    await ground.aclose()


def _confined(workdir: Path) -> Ground:
    ground = Ground(workdir, "auto", ())
    if not ground.confined or not ground.groups.memory:
        pytest.skip("no writable cgroup")
    return ground


def _group(ground: Ground) -> SessionGroup:
    group = ground.new_group()
    assert group is not None
    return group


@contextmanager
def _member_of(group: SessionGroup) -> Iterator[None]:
    with subprocess.Popen(["sleep", "600"]) as member:
        try:
            for path in group.joins:
                Path(path).write_text(str(member.pid))
            yield
        finally:
            member.kill()


async def test_an_empty_group_is_given_to_the_next_command(ground: Ground) -> None:
    group = _group(ground)
    assert _group(ground) != group
    ground.end_group(group)
    assert _group(ground) == group


async def test_a_group_in_which_somebody_is_left_is_given_to_nobody(ground: Ground) -> None:
    group = _group(ground)
    with _member_of(group):
        ground.end_group(group)
        assert _group(ground) != group


async def test_a_group_that_was_removed_meanwhile_is_given_to_nobody(ground: Ground) -> None:
    group = _group(ground)
    ground.end_group(group)
    for folder in group.folders:
        folder.rmdir()
    assert _group(ground) != group


async def test_ended_groups_are_bounded_and_go_with_the_worker(tmp_path: Path) -> None:
    ground = _confined(tmp_path)
    groups = [_group(ground) for _ in range(20)]
    for group in groups:
        ground.end_group(group)
    assert sum(group.folders[0].exists() for group in groups) == 4
    await ground.aclose()
    assert not any(folder.exists() for group in groups for folder in group.folders)


async def test_a_first_process_that_cannot_be_started_is_refused_and_others_still_start(
    ground: Ground, tmp_path: Path
) -> None:
    # What lives there goes on living, and nothing becomes two arguments.
    program = tmp_path / "lives"
    program.write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    program.chmod(0o700)
    other = await ground.launcher.spawn(LaunchRequest([str(program)], {}))
    refused = (["/nowhere/bwrap"], {}), (["/bin/true"], {"NAME": "a\0b"}), (["/bin/true", "\ud800"], {})
    for argv, env in (*refused, (["/bin/true", "a\0b", "--", "/bin/true"], {}), (["/bin/true", "--", "\ud800"], {})):
        with pytest.raises(ShellUnavailable, match="no process can be started"):
            await ground.launcher.spawn(LaunchRequest(argv, env))
    with pytest.raises(ShellUnavailable, match="No such file"):
        await ground.launcher.spawn(LaunchRequest(["/bin/true"], {}, cgroups=["/sys/fs/cgroup/nowhere/cgroup.procs"]))
    shell = await ground.launcher.spawn(LaunchRequest(["/bin/true"], {}))
    await shell.wait()
    assert not other.ended
    other.kill()
    await other.wait()
    for each in (shell, other):
        for fd in (each.control_fd, each.output_fd, each.status_fd):
            os.close(fd)
