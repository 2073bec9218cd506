"""Attached files are where their paths say, for tools and shell alike, and go when they are detached."""

from collections.abc import AsyncIterator

import pytest

from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, of, text_of
from tests.integration.runner.mounting import Mounting, refusal


@pytest.fixture
async def mounting(platform: World) -> AsyncIterator[Mounting]:
    made = Mounting(platform)
    yield made
    await made.close()


def _sandboxes(platform: World, kind: str = "auto") -> SandboxManager:
    return SandboxManager(platform.folder / "sandboxes", kind=kind)


def _results(log: list[dict]) -> list[str]:
    return [text_of(event) for event in of(log, "agent.tool_result")]


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock", "process"])
async def test_a_file_stands_where_its_path_says(platform: World, mounting: Mounting, kind: str) -> None:
    file_id = await mounting.upload(b"a,b\n1,2\n")
    session = await mounting.session(
        {"type": "file", "file_id": file_id, "mount_path": "/src/data.csv"},
        {"type": "file", "file_id": file_id},
        {"type": "file", "file_id": file_id, "mount_path": "/uploads/input.txt"},
    )
    async with platform.runner(sandboxes=_sandboxes(platform, kind)):
        uploads = "${SESSION_UPLOADS:-/mnt/session/uploads}"
        log = await mounting.bash(session, f"cd {uploads}; find . -type f | sort; cat src/data.csv")
        await platform.say(session, 'TOOL:read:{"file_path": "/mnt/session/uploads/uploads/input.txt"}')
        log = await platform.until(session)
    shell, read = _results(log)
    assert shell.split("\n")[:3] == [f"./{file_id}", "./src/data.csv", "./uploads/input.txt"], shell
    assert "1,2" in shell and "1,2" in read
    assert not of(log, "session.error")


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
async def test_the_agent_cannot_change_what_was_given(platform: World, mounting: Mounting, kind: str) -> None:
    file_id = await mounting.upload(b"given")
    session = await mounting.session({"type": "file", "file_id": file_id, "mount_path": "/given.txt"})
    async with platform.runner(sandboxes=_sandboxes(platform, kind)):
        uploads = "${SESSION_UPLOADS:-/mnt/session/uploads}"
        log = await mounting.bash(session, f"echo x > {uploads}/given.txt; rm -f {uploads}/given.txt; cat {uploads}/*")
        await platform.say(session, 'TOOL:write:{"file_path": "/mnt/session/uploads/given.txt", "content": "x"}')
        log = await platform.until(session)
    shell, write = of(log, "agent.tool_result")
    assert text_of(shell).rstrip().endswith("given") and write["is_error"]


async def test_a_hundred_files_mount_in_one_pass(platform: World, mounting: Mounting) -> None:
    file_id = await mounting.upload(b"one of many")
    session = await mounting.session(
        *({"type": "file", "file_id": file_id, "mount_path": f"/many/{number}.txt"} for number in range(100))
    )
    async with platform.runner(sandboxes=_sandboxes(platform)):
        log = await mounting.bash(session, "cat /mnt/session/uploads/many/* | grep -o many | wc -l")
    assert _results(log)[0].split()[0] == "100"


async def test_what_is_attached_and_detached_at_run_time_is_noticed(platform: World, mounting: Mounting) -> None:
    file_id = await mounting.upload(b"later")
    session = await mounting.session()
    async with platform.runner(sandboxes=_sandboxes(platform)):
        await mounting.bash(session, "ls -A /mnt/session/uploads")
        resource = await mounting.attach(session, type="file", file_id=file_id, mount_path="/deep/down/later.txt")
        log = await mounting.bash(session, "cat /mnt/session/uploads/deep/down/later.txt")
        assert _results(log)[-1].startswith("later")
        await mounting.detach(session, resource["id"])
        log = await mounting.bash(session, "ls -A /mnt/session/uploads | wc -l")
    assert _results(log)[-1].split()[0] == "0"


async def test_a_turn_that_runs_hears_of_it_with_its_next_request(platform: World, mounting: Mounting) -> None:
    file_id = await mounting.upload(b"meanwhile")
    session = await mounting.session()
    wait, look = "until [ -e go ]; do sleep 0.05; done", "cat /mnt/session/uploads/new.txt"
    async with platform.runner(sandboxes=_sandboxes(platform)):
        await platform.say(session, f'TOOL:bash:{{"command": "{wait}"}}')
        await platform.until_logged(session, "agent.tool_use")
        await mounting.attach(session, type="file", file_id=file_id, mount_path="/new.txt")
        await platform.say(session, f'TOOL:bash:{{"command": "{look}"}}')
        (platform.folder / "sandboxes" / session / "workspace" / "go").touch()
        log = await platform.until(session)
    assert _results(log)[-1].startswith("meanwhile")


async def test_a_lost_folder_is_prepared_anew_by_another_runner(platform: World, mounting: Mounting) -> None:
    file_id = await mounting.upload(b"again")
    session = await mounting.session({"type": "file", "file_id": file_id, "mount_path": "/again.txt"})
    manager = _sandboxes(platform)
    async with platform.runner(sandboxes=manager):
        await mounting.bash(session, "true")
        await manager.remove(session)
        log = await mounting.bash(session, "cat /mnt/session/uploads/again.txt")
        assert _results(log)[-1].startswith("again")
    async with platform.runner(sandboxes=_sandboxes(platform)):
        log = await mounting.bash(session, "cat /mnt/session/uploads/again.txt")
    assert _results(log)[-1].startswith("again")


async def test_a_session_keeps_its_copy_of_a_deleted_file(platform: World, mounting: Mounting) -> None:
    file_id = await mounting.upload(b"kept")
    session = await mounting.session({"type": "file", "file_id": file_id, "mount_path": "/kept.txt"})
    await mounting.archive(file_id)
    async with platform.runner(sandboxes=_sandboxes(platform)):
        log = await mounting.bash(session, "cat /mnt/session/uploads/kept.txt")
    assert _results(log)[-1].startswith("kept")


async def test_a_copy_that_is_gone_is_told_and_the_turn_goes_on(platform: World, mounting: Mounting) -> None:
    file_id = await mounting.upload(b"gone")
    session = await mounting.session(
        {"type": "file", "file_id": file_id, "mount_path": "/gone.txt"},
        {"type": "file", "file_id": file_id, "mount_path": "/there.txt"},
    )
    gone, _ = await mounting.resources(session)
    await mounting.archive(gone["session_file_id"])
    async with platform.runner(sandboxes=_sandboxes(platform)):
        log = await mounting.bash(session, "cat /mnt/session/uploads/there.txt")
    (error,) = of(log, "session.error")
    assert error["error"]["type"] == "file_mount_failed" and "/mnt/session/uploads/gone.txt" in text_of(error)
    assert _results(log)[-1].startswith("gone")


async def test_an_unknown_file_refuses_the_session(mounting: Mounting) -> None:
    refused = await refusal(mounting.session({"type": "file", "file_id": "file_none"}))
    assert (refused.reason, refused.field) == ("FILE_NOT_FOUND", "resources.0.file_id")
