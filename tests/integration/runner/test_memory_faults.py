"""No edit of a memory is lost: sessions write at once, runners are killed, nobody answers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kit.testing import await_until
from kit.waiting import within
from tests.integration.runner.harness import World, of, text_of
from tests.integration.runner.played import TOOLSET
from tests.integration.runner.remembering import Remembering, sandboxes

NOTES = "/mnt/memory/notes"


@pytest.fixture
def sessions_settings() -> dict:
    """Turns of runners that die go on soon, and those of the others are still renewed in time on a busy machine."""
    return {"lease_seconds": 2.0}


@pytest.fixture
async def memory(platform: World) -> AsyncIterator[Remembering]:
    made = Remembering(platform)
    yield made
    await made.close()


async def test_sessions_that_write_one_store_at_once_lose_no_edit(platform: World, memory: Remembering) -> None:
    await memory.make(**{"shared.md": "start\n"})
    sessions = [await memory.attached() for _ in range(4)]
    async with platform.runner(sandboxes=sandboxes(platform)), platform.runner(sandboxes=sandboxes(platform)):
        for step in range(4):
            commands = [
                f"cd {NOTES} && echo {index}-{step} > own-{index}-{step} && echo {index}-{step} >> shared.md"
                for index in range(len(sessions))
            ]
            await asyncio.gather(*(memory.run(*each) for each in zip(sessions, commands, strict=True)))
        texts = await memory.texts()
        written = {version.content for version in await memory.history()}
    every = {f"{index}-{step}" for index in range(4) for step in range(4)}
    assert {text.strip() for path, text in texts.items() if path.startswith("/own")} == every
    # Each line of the shared file is in the store's history, or in a copy that its author was told of.
    kept = [
        path.read_text()
        for session in sessions
        for path in memory.folder(session, "/mnt/session/tool_outputs").glob("memory-*-shared.md")
    ]
    assert every <= set("".join([*(text or "" for text in written), *kept]).split())
    for version in await memory.history(operation="modified"):
        # Nobody wrote over a text that he had not read: each is the one before it and one line more.
        assert version.content.count("\n") == version.version


@pytest.mark.parametrize("point", ["runner.memory.changed", "runner.memory.pushed"])
async def test_a_runner_that_is_killed_around_the_write_back_loses_no_edit(
    platform: World, memory: Remembering, point: str
) -> None:
    await memory.make(**{"a.md": "old", "b.md": "goes"})
    session = await memory.attached()
    command = f"cd {NOTES}; echo edited > a.md; rm b.md; mkdir d; echo new > d/c.md"
    async with platform.runner_process(f"{point}=kill") as process:
        await platform.say(session, f'TOOL:bash:{{"command": "{command}"}}')
        await within(process.wait(), 30)
    stored = await memory.texts()
    assert stored == (
        {"/a.md": "old", "/b.md": "goes"} if point.endswith("changed") else {"/a.md": "edited\n", "/d/c.md": "new\n"}
    )
    async with platform.runner_process():
        log = await platform.until(session, seconds=40)
        assert "unknown" in text_of(of(log, "agent.tool_result")[0])
        assert await memory.texts() == {"/a.md": "edited\n", "/d/c.md": "new\n"}
    by_session = await memory.history(session_id=session)
    assert sorted((each.operation, each.path) for each in by_session) == [
        *(("created", "/d/c.md"), ("deleted", "/b.md"), ("modified", "/a.md"))
    ]


async def test_an_edit_of_a_killed_runner_meets_a_newer_text_and_is_kept(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "old"})
    session = await memory.attached()
    async with platform.runner_process("runner.memory.changed=kill") as process:
        await platform.say(session, f'TOOL:bash:{{"command": "echo mine > {NOTES}/a.md"}}')
        await within(process.wait(), 30)
    await memory.put("/a.md", "theirs")
    root = "data/sandboxes"
    async with platform.runner_process():
        await platform.until(session, seconds=40)
        told = await memory.run(session, f"cat {NOTES}/a.md")
    assert told.startswith("theirs") and "changed in the store meanwhile" in told
    copies = (platform.folder / root / session / "mnt/session/tool_outputs").glob("memory-*")
    assert [path.read_text() for path in copies] == ["mine\n"]
    assert await memory.texts() == {"/a.md": "theirs"}


async def test_an_edit_is_stored_later_where_nobody_answers_now(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "old"})
    session = await memory.attached()
    async with platform.runner(sandboxes=sandboxes(platform)) as runner:
        [mount] = [each for each in runner.workspaces.mounts if each.name == "memory"]
        push, away = mount._client.push, OSError("nobody answers")

        async def fail(*_: object) -> None:
            raise away

        mount._client.push = fail
        told = await memory.run(session, f"echo new > {NOTES}/a.md")
        assert "is not stored yet" in told
        assert await memory.texts() == {"/a.md": "old"}
        mount._client.push = push
        assert "[Memory" not in await memory.run(session, "true")
    assert await memory.texts() == {"/a.md": "new\n"}


async def test_an_interrupted_command_leaves_what_it_wrote(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "old"})
    session = await memory.attached()
    async with platform.runner(sandboxes=sandboxes(platform)):
        command = f"echo half > {NOTES}/a.md; touch started; sleep 60"
        await platform.say(session, f'TOOL:bash:{{"command": "{command}"}}')
        await await_until(memory.folder(session, "/workspace/started").exists, timeout=20)
        await platform.clients.send(session, {"type": "user.interrupt"})
        await platform.until(session)
    assert await memory.texts() == {"/a.md": "half\n"}


async def test_threads_of_a_session_write_as_the_session(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "old"})
    helper = await platform.agent({"name": "helper", "model": "default", "system": "Help.", "tools": [TOOLSET]})
    lead = await platform.agent(
        {
            "name": "lead",
            "model": "default",
            "system": "Lead.",
            "tools": [TOOLSET],
            "multiagent": {"type": "coordinator", "agents": [helper]},
        }
    )
    entry = {"type": "memory_store", "memory_store_id": memory.store_id}
    session = await memory.session(entry, agent=lead)
    task = f'TOOL:bash:{{\\"command\\": \\"echo thread > {NOTES}/t.md\\"}}'
    async with platform.runner(sandboxes=sandboxes(platform)):
        await platform.say(session, f'TOOL:start_thread:{{"agent": "helper", "message": "{task}"}}')
        await await_until(lambda: _has(memory, "/t.md"), timeout=30)
        await platform.until(session, seconds=30)
    [version] = await memory.history(session_id=session)
    assert (version.path, version.content) == ("/t.md", "thread\n")


async def _has(memory: Remembering, path: str) -> bool:
    return path in await memory.texts()
