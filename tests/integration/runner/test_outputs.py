"""What is left under /mnt/session/outputs is listed before the session is idle, once per path, and nothing else is."""

import os
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from kit.testing import await_until
from managed_agents.sessions.v1 import sessions_pb2
from services.worker.runner.workspace import outputs as module
from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, of, text_of
from tests.integration.runner.mounting import Mounting
from tests.integration.runner.played import TOOLSET
from tests.integration.runner.test_threads import saved, starts

OUT = "/mnt/session/outputs"


@pytest.fixture
async def mounting(platform: World) -> AsyncIterator[Mounting]:
    made = Mounting(platform)
    yield made
    await made.close()


def _sandboxes(platform: World, kind: str = "auto") -> SandboxManager:
    return SandboxManager(platform.folder / "sandboxes", kind=kind)


def _folder(platform: World, session: str) -> Any:
    return platform.folder / "sandboxes" / session


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock", "process"])
async def test_outputs_are_listed_when_the_session_is_idle(platform: World, mounting: Mounting, kind: str) -> None:
    session = await mounting.session()
    async with platform.runner(sandboxes=_sandboxes(platform, kind)):
        out = f"${{SESSION_OUTPUTS:-{OUT}}}"
        await mounting.bash(session, f"mkdir -p {out}/deep/er; echo report > {out}/report.md; echo x > {out}/deep/er/x")
        found = await mounting.outputs(session)
    assert sorted(found) == ["deep/er/x", "report.md"]
    assert await mounting.content(found["report.md"].id) == b"report\n"
    assert found["report.md"].name == "report.md" and found["report.md"].media_type == "text/markdown"


async def test_a_rewritten_output_keeps_its_id(platform: World, mounting: Mounting) -> None:
    session = await mounting.session()
    async with platform.runner(sandboxes=_sandboxes(platform)):
        await mounting.bash(session, f"echo one > {OUT}/a; echo same > {OUT}/b")
        before = await mounting.outputs(session)
        await mounting.bash(session, f"echo two > {OUT}/a; touch {OUT}/b")
        after = await mounting.outputs(session)
        await mounting.bash(session, f"rm {OUT}/a")
        kept = await mounting.outputs(session)
    assert {path: file.id for path, file in before.items()} == {path: file.id for path, file in after.items()}
    assert await mounting.content(after["a"].id) == b"two\n"
    assert before["b"].updated_at == after["b"].updated_at
    # What was delivered stays delivered.
    assert sorted(kept) == ["a", "b"]


async def test_another_runner_records_nothing_twice(platform: World, mounting: Mounting) -> None:
    session = await mounting.session()
    async with platform.runner(sandboxes=_sandboxes(platform)):
        await mounting.bash(session, f"echo one > {OUT}/a")
        before = await mounting.outputs(session)
    async with platform.runner(sandboxes=_sandboxes(platform)):
        await mounting.bash(session, "true")
        after = await mounting.outputs(session)
    assert {path: (file.id, file.updated_at) for path, file in before.items()} == {
        path: (file.id, file.updated_at) for path, file in after.items()
    }


async def test_links_and_devices_are_refused_and_told(platform: World, mounting: Mounting) -> None:
    session = await mounting.session()
    secret = platform.folder / "secret.txt"
    secret.write_text("host secret")
    async with platform.runner(sandboxes=_sandboxes(platform)):
        await mounting.bash(session, "true")
        out = _folder(platform, session) / OUT[1:]
        (out / "link").symlink_to(secret)
        (out / "folder").symlink_to(platform.folder)
        os.mkfifo(out / "fifo")
        os.link(secret, out / "hard")
        (out / "good").write_text("good")
        log = await mounting.bash(session, "true")
        found = await mounting.outputs(session)
        again = await mounting.bash(session, "true")
    assert sorted(found) == ["good"]
    (error,) = of(log, "session.error")
    assert error["error"]["type"] == "outputs_incomplete"
    assert all(f"{OUT}/{name}" in text_of(error) for name in ("link", "folder", "fifo", "hard"))
    # Told once, as long as it stays the same.
    assert len(of(again, "session.error")) == 1


async def test_new_files_of_one_turn_are_capped_and_the_next_goes_on(
    platform: World, mounting: Mounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await mounting.session()
    async with platform.runner(sandboxes=_sandboxes(platform)) as runner:
        (mount,) = [each for each in runner.workspaces.mounts if each.name == "outputs"]
        monkeypatch.setattr(mount, "_max_new_files", 5)
        log = await mounting.bash(session, f"for n in 1 2 3 4 5 6 7 8; do echo $n > {OUT}/$n; done")
        assert len(await mounting.outputs(session)) == 5
        assert "at most 5 new files" in text_of(of(log, "session.error")[0])
        await mounting.bash(session, "true")
        assert len(await mounting.outputs(session)) == 8


async def test_a_file_that_is_too_large_is_told(platform: World, mounting: Mounting) -> None:
    session = await mounting.session()
    async with platform.runner(sandboxes=_sandboxes(platform)) as runner:
        (mount,) = [each for each in runner.workspaces.mounts if each.name == "outputs"]
        mount._max_file_bytes = 10
        log = await mounting.bash(session, f"echo 0123456789abc > {OUT}/large; echo ok > {OUT}/small")
        assert sorted(await mounting.outputs(session)) == ["small"]
    assert "larger than 10 bytes" in text_of(of(log, "session.error")[0])


async def test_nothing_is_looked_at_where_no_tool_ran(
    platform: World, mounting: Mounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await mounting.session()
    walks: list[Any] = []
    monkeypatch.setattr(module, "_walk", lambda *arguments: walks.append(arguments) or module._Pass())
    async with platform.runner(sandboxes=_sandboxes(platform)):
        await platform.say(session, "Hello")
        await platform.until(session)
        assert walks == [] and not _folder(platform, session).exists()
        await mounting.bash(session, "true")
        assert len(walks) == 1


async def test_threads_share_what_is_given_and_deliver_for_the_session(platform: World, mounting: Mounting) -> None:
    file_id = await mounting.upload(b"shared")
    writer = await saved(platform, "writer", TOOLSET, description="Writes.")
    lead = await saved(platform, "lead", multiagent={"type": "coordinator", "agents": [writer]})
    request = {"agent": lead, "resources": [{"type": "file", "file_id": file_id, "mount_path": "/given"}]}
    created = await platform.clients.sessions.CreateSession(
        sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps(request))
    )
    session, command = created.session.id, f"cp /mnt/session/uploads/given {OUT}/delivered"
    async with platform.runner(sandboxes=_sandboxes(platform)):
        await platform.say(session, starts(f'TOOL:bash:{{"command": "{command}"}}'))
        await platform.until(session, seconds=30)
    found = await mounting.outputs(session)
    assert sorted(found) == ["delivered"] and await mounting.content(found["delivered"].id) == b"shared"


async def test_a_failure_of_collecting_is_no_failure_of_the_turn(
    platform: World, mounting: Mounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await mounting.session()

    def fail(*_: Any) -> None:
        raise OSError("the disk is gone")

    async with platform.runner(sandboxes=_sandboxes(platform)):
        with monkeypatch.context() as patched:
            patched.setattr(module, "_walk", fail)
            log = await mounting.bash(session, f"echo late > {OUT}/late")
        assert not of(log, "session.error") and of(log, "session.status_idle")
        assert await mounting.outputs(session) == {}
        await mounting.bash(session, "true")
        assert sorted(await mounting.outputs(session)) == ["late"]


@pytest.mark.parametrize("sessions_settings", [{"lease_seconds": 2.0}], ids=["short lease"], indirect=True)
async def test_a_runner_killed_before_the_idle_leaves_a_clean_retry(platform: World, mounting: Mounting) -> None:
    session = await mounting.session()
    environment = {"SANDBOX_KIND": "auto"}
    async with platform.runner_process("runner.outputs.recorded=kill", **environment) as process:
        command = f"echo once > {OUT}/once"
        await platform.say(session, f'TOOL:bash:{{"command": "{command}"}}')
        assert await process.wait() != 0
    recorded = await mounting.outputs(session)
    assert sorted(recorded) == ["once"] and not of(await platform.clients.log(session), "session.status_idle")
    async with platform.runner_process(**environment):
        log = await platform.until(session, seconds=40)

        async def idle() -> bool:
            return bool(of(await platform.clients.log(session), "session.status_idle"))

        await await_until(idle, timeout=10)
    assert {path: file.id for path, file in (await mounting.outputs(session)).items()} == {
        path: file.id for path, file in recorded.items()
    }
    assert len(of(log, "agent.tool_result")) == 1
