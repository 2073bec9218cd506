"""Memory stores are folders: every tool and the shell see them, and what any of them changes is stored as versions."""

from collections.abc import AsyncIterator

import pytest

from managed_agents.sessions.v1 import memory_pb2 as pb
from tests.integration.runner.harness import World, of, text_of
from tests.integration.runner.remembering import Remembering, sandboxes

NOTES = "/mnt/memory/notes"


@pytest.fixture
async def memory(platform: World) -> AsyncIterator[Remembering]:
    made = Remembering(platform)
    yield made
    await made.close()


async def test_every_tool_and_the_shell_see_the_store(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "alpha\n", "deep/down/b.md": "beta\n"})
    session = await memory.attached()
    async with platform.runner(sandboxes=sandboxes(platform)):
        assert (await memory.run(session, f"cd {NOTES} && find . -type f | sort && cat a.md")).split() == [
            *("./a.md", "./deep/down/b.md", "alpha")
        ]
        assert "beta" in text_of(await memory.tool(session, "read", file_path=f"{NOTES}/deep/down/b.md"))
        assert f"{NOTES}/a.md" in text_of(await memory.tool(session, "glob", pattern="**/*.md", path=NOTES))
        assert "b.md" in text_of(await memory.tool(session, "grep", pattern="bet", path=NOTES))
    assert len(await memory.history()) == 2


async def test_what_any_of_them_changes_is_stored_with_the_session_as_actor(
    platform: World, memory: Remembering
) -> None:
    await memory.make(**{"a.md": "one", "b.md": "two", "c.md": "three"})
    session = await memory.attached()
    async with platform.runner(sandboxes=sandboxes(platform)):
        await memory.tool(session, "write", file_path=f"{NOTES}/new/w.md", content="written")
        await memory.tool(session, "edit", file_path=f"{NOTES}/a.md", old_string="one", new_string="1")
        told = await memory.run(session, f"echo shell > {NOTES}/s.md; echo more >> {NOTES}/b.md; rm {NOTES}/c.md")
        assert "Deleted" in told and "/c.md" in told
    assert await memory.texts() == {"/a.md": "1", "/b.md": "twomore\n", "/new/w.md": "written", "/s.md": "shell\n"}
    by_session = await memory.history(session_id=session)
    assert [(each.operation, each.path) for each in by_session[:2]] == [("created", "/new/w.md"), ("modified", "/a.md")]
    assert {(each.operation, each.path) for each in by_session[2:]} == {
        *(("deleted", "/c.md"), ("modified", "/b.md"), ("created", "/s.md"))
    }
    assert {(each.created_by.kind, each.created_by.id) for each in by_session} == {("session", session)}


async def test_a_file_that_moves_is_stored_under_its_new_path(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "text"})
    session = await memory.attached()
    async with platform.runner(sandboxes=sandboxes(platform)):
        await memory.run(session, f"mkdir {NOTES}/d && mv {NOTES}/a.md {NOTES}/d/b.md")
        assert await memory.texts() == {"/d/b.md": "text"}
        await memory.run(session, f"cd {NOTES} && rm -r d && echo flat > d")
    assert await memory.texts() == {"/d": "flat\n"}


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock", "process"])
async def test_read_only_holds_against_tools_and_shell(platform: World, memory: Remembering, kind: str) -> None:
    await memory.make(**{"a.md": "kept", "d/b.md": "kept too"})
    session = await memory.attached(access="read_only")
    place = NOTES if kind == "bubblewrap" else str(memory.folder(session))
    async with platform.runner(sandboxes=sandboxes(platform, kind)):
        for tool, value in (
            ("write", {"file_path": f"{NOTES}/a.md", "content": "x"}),
            ("write", {"file_path": f"{NOTES}/new.md", "content": "x"}),
            ("edit", {"file_path": f"{NOTES}/a.md", "old_string": "kept", "new_string": "x"}),
        ):
            assert (await memory.tool(session, tool, **value))["is_error"]
        told = await memory.run(session, f"echo mine > {place}/a.md; echo x > {place}/new.md; rm -rf {place}/d; true")
        assert "kept" in await memory.run(session, f"cat {place}/a.md")
        assert (await memory.run(session, f"cd {place} && find . -type f | sort")).split()[:2] == ["./a.md", "./d/b.md"]
        if kind == "process":
            # Nothing keeps an unconfined shell from the folder, so what it did is undone, and its text is not lost.
            assert "read-only" in told and "undone" in told
            copies = [path.read_text() for path in memory.folder(session, "/mnt/session/tool_outputs").glob("memory-*")]
            assert "mine\n" in copies
    assert await memory.texts() == {"/a.md": "kept", "/d/b.md": "kept too"}
    assert not await memory.history(session_id=session)


async def test_changes_of_others_come_with_the_next_turn(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "old", "b.md": "moves", "c.md": "goes"})
    session = await memory.attached()
    async with platform.runner(sandboxes=sandboxes(platform)):
        await memory.run(session, "true")
        await memory.put("/a.md", "new")
        await memory.put("/x/y.md", "added")
        await memory.move("/b.md", "/moved/b.md")
        await memory.drop("/c.md")
        found = await memory.run(session, f"cd {NOTES} && find . -type f | sort && cat a.md x/y.md moved/b.md")
    assert found.split()[:3] == ["./a.md", "./moved/b.md", "./x/y.md"]
    assert found.endswith("newaddedmoves")
    assert not await memory.history(session_id=session)


async def test_changes_of_others_come_within_a_turn_when_they_are_heard_of(
    platform: World, memory: Remembering
) -> None:
    await memory.make(**{"a.md": "old"})
    session = await memory.attached()
    wait, look = "until [ -e go ]; do sleep 0.05; done", f"cat {NOTES}/a.md"
    async with platform.runner(sandboxes=sandboxes(platform)):
        await platform.say(session, f'TOOL:bash:{{"command": "{wait}"}}')
        await platform.until_logged(session, "agent.tool_use")
        await memory.put("/a.md", "new")
        await platform.say(session, f'TOOL:bash:{{"command": "{look}"}}')
        memory.folder(session, "/workspace/go").touch()
        log = await platform.until(session)
    assert text_of(of(log, "agent.tool_result")[-1]).startswith("new")


async def test_a_conflict_is_told_with_the_newer_text_and_loses_nothing(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "old"})
    session = await memory.attached()
    # The other one writes after the agent has read and before it has written.
    command = f"echo started > /mnt/session/outputs/s; until [ -e go ]; do sleep 0.05; done; echo mine > {NOTES}/a.md"
    async with platform.runner(sandboxes=sandboxes(platform)):
        await platform.say(session, f'TOOL:bash:{{"command": "{command}"}}')
        await platform.until_logged(session, "agent.tool_use")
        await memory.put("/a.md", "theirs")
        memory.folder(session, "/workspace/go").touch()
        log = await platform.until(session)
        told = text_of(of(log, "agent.tool_result")[-1])
        assert "changed in the store meanwhile" in told and "theirs" in told
        copy = told.partition("is in ")[2].partition(";")[0]
        assert (await memory.run(session, f"cat {copy}")).startswith("mine")
        assert (await memory.run(session, f"cat {NOTES}/a.md")).startswith("theirs")
        await memory.run(session, f"cat {copy} >> {NOTES}/a.md")
    assert await memory.texts() == {"/a.md": "theirsmine\n"}


async def test_deleted_here_and_changed_there_or_the_other_way_round_is_told(
    platform: World, memory: Remembering
) -> None:
    await memory.make(**{"a.md": "old", "b.md": "old"})
    session = await memory.attached()
    command = f"until [ -e go ]; do sleep 0.05; done; rm {NOTES}/a.md; echo mine > {NOTES}/b.md"
    async with platform.runner(sandboxes=sandboxes(platform)):
        await platform.say(session, f'TOOL:bash:{{"command": "{command}"}}')
        await platform.until_logged(session, "agent.tool_use")
        await memory.put("/a.md", "theirs")
        await memory.drop("/b.md")
        memory.folder(session, "/workspace/go").touch()
        told = text_of(of(await platform.until(session), "agent.tool_result")[-1])
        assert "it was not deleted" in told and "was deleted in the store" in told
        found = await memory.run(session, f"cat {NOTES}/a.md; ls {NOTES}; cat /mnt/session/tool_outputs/memory-*")
    assert found.split() == ["theirsa.md", "mine"]
    assert await memory.texts() == {"/a.md": "theirs"}


async def test_what_can_not_be_a_memory_is_told_once_and_left_alone(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "text"})
    session = await memory.attached()
    make = (
        f"cd {NOTES}; head -c 102401 /dev/zero | tr '\\0' x > large; printf '\\377\\376' > binary;"
        " printf 'a\\0b' > nul;"
        " ln -s /etc/passwd link; mkfifo pipe; printf x > $(printf 'na\\303\\050me'); echo x > $(printf 'e\\314\\201');"
        " echo x > $(printf 'line\\nbreak') 2>/dev/null; echo x > \"$(printf 'li\\tne')\"; ln -s /workspace dirlink"
    )
    async with platform.runner(sandboxes=sandboxes(platform)):
        told = await memory.run(session, make)
        for name in ("large", "binary", "nul", "link", "pipe", "e\u0301", "dirlink"):
            assert f"{NOTES}/{name} is not stored" in told, name
        assert "not UTF-8" in told and "control" in told and "102400" in told
        assert "[Memory" not in await memory.run(session, f"ls {NOTES}")
        assert "[Memory" in await memory.run(session, f"echo y >> {NOTES}/large")
        await memory.run(session, f"rm -r {NOTES}/*; echo fine > {NOTES}/large")
    assert await memory.texts() == {"/large": "fine\n"}


async def test_a_link_to_a_file_outside_is_never_read(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "text", "d/b.md": "deep"})
    session = await memory.attached()
    command = f"cd {NOTES}; echo secret > /workspace/s; ln -sf /workspace/s a.md; rm -r d; ln -s /workspace d"
    async with platform.runner(sandboxes=sandboxes(platform)):
        told = await memory.run(session, command)
        assert "symbolic link" in told
        texts = await memory.texts()
    assert "secret" not in "".join(texts.values())
    # What a link took the place of was not deleted.
    assert texts == {"/a.md": "text", "/d/b.md": "deep"}


async def test_a_store_that_is_archived_or_deleted_meanwhile_is_told(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "text"})
    session = await memory.attached()
    async with platform.runner(sandboxes=sandboxes(platform)):
        await memory.run(session, "true")
        await memory.ask("ArchiveMemoryStore", pb.ArchiveMemoryStoreRequest(memory_store_id=memory.store_id))
        told = await memory.run(session, f"echo x >> {NOTES}/a.md; rm -f {NOTES}/b.md")
        assert "was archived" in told and "not stored" in told
        assert (await memory.run(session, f"cat {NOTES}/a.md")).startswith("textx")
        assert await memory.texts() == {"/a.md": "text"}
        await memory.ask("DeleteMemoryStore", pb.DeleteMemoryStoreRequest(memory_store_id=memory.store_id))
        told = await memory.run(session, f"echo y >> {NOTES}/a.md")
        assert "was deleted" in told and "not stored" in told
        assert f"{NOTES}/a.md is not stored" in await memory.run(session, f"rm {NOTES}/a.md")
        assert "[Memory" not in await memory.run(session, "true")
        log = await platform.until(session)
    assert not of(log, "session.error")


async def test_a_folder_that_is_emptied_is_stored_so_and_the_history_stays(
    platform: World, memory: Remembering
) -> None:
    await memory.make(**{"a.md": "one", "d/b.md": "two"})
    session = await memory.attached()
    async with platform.runner(sandboxes=sandboxes(platform)):
        told = await memory.run(session, f"rm -rf {NOTES}")
        assert "/a.md, /d/b.md" in told
    assert await memory.texts() == {}
    assert [each.content for each in await memory.history() if each.operation == "created"] == ["one", "two"]


async def test_a_folder_that_is_moved_away_deletes_nothing(platform: World, memory: Remembering) -> None:
    await memory.make(**{"a.md": "one"})
    session = await memory.attached()
    async with platform.runner(sandboxes=sandboxes(platform, "process")):
        place = memory.folder(session)
        await memory.run(session, "true")
        told = await memory.run(session, f"mv {place} /tmp/{session} && mkdir {place} && echo mine > {place}/b.md")
        assert "moved or replaced" in told
        assert sorted((await memory.run(session, f"cat {place}/*; rm -r /tmp/{session}")).split()) == ["onemine"]
    assert await memory.texts() == {"/a.md": "one", "/b.md": "mine\n"}


async def test_two_stores_are_two_folders_and_the_prompt_tells_of_both(platform: World, memory: Remembering) -> None:
    first = await memory.make("Notes", **{"a.md": "of the first"})
    second = await memory.make("Notes!", **{"a.md": "of the second"})
    session = await memory.session(
        {"type": "memory_store", "memory_store_id": first, "instructions": "Keep it short."},
        {"type": "memory_store", "memory_store_id": second, "access": "read_only"},
    )
    async with platform.runner(sandboxes=sandboxes(platform)):
        found = await memory.run(session, f"cat {NOTES}/a.md; echo; cat {NOTES}-2/a.md")
    assert found.split("\n")[:2] == ["of the first", "of the second"]


async def test_a_session_without_stores_asks_for_nothing(platform: World, memory: Remembering) -> None:
    session = await memory.session()
    async with platform.runner(sandboxes=sandboxes(platform)):
        await memory.run(session, "true")
    assert not memory.folder(session, "/.memory").exists()
