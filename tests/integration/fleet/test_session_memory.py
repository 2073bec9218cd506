"""Memory stores of sessions on an operator's machine: folders that agree with their stores, both sides kept."""

import signal
from pathlib import Path

import pytest

from kit.testing import await_until
from services.worker.fleet.session.memory import MountRefused, attached
from tests.integration.fleet.harness import answered, below, fleet, process
from tests.support.session_server import SessionServer

STORE = "memstore_notes"


def where(folder: Path, session_id: str) -> Path:
    """The store's folder on the disk."""
    return folder / "sessions" / session_id / "mnt" / "memory" / "notes"


async def test_what_an_agent_writes_is_stored_after_the_tool_and_what_others_write_comes(
    tmp_path: Path, sessions: SessionServer
) -> None:
    session = sessions.session(resources=[sessions.store("notes", {"/a.md": "one", "/d/b.md": "two"})])
    first = session.call("read", {"file_path": "/mnt/memory/notes/d/b.md"})
    second = session.call("write", {"file_path": "/mnt/memory/notes/a.md", "content": "mine"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path, memory_seconds=0.0, max_idle_seconds=0.1) as worker:
        assert (await answered(session, first, second))[0] == "two"
        assert sessions.texts(STORE) == {"/a.md": "mine", "/d/b.md": "two"}
        sessions.write_memory(STORE, "/d/b.md", "theirs")
        sessions.write_memory(STORE, "/new.md", "new")
        # With the next tool that runs.
        third = session.call("bash", {"command": "true"})
        fourth = session.call("read", {"file_path": "/mnt/memory/notes/d/b.md"})
        assert (await answered(session, third, fourth))[1] == "theirs"
        gone = session.call("bash", {"command": f"rm {where(tmp_path, session.id)}/new.md"})
        (text,) = await answered(session, gone)
        assert "Deleted from the memory" in text
        session.rest()
        await await_until(lambda: bool(worker.heard("session done")))
    assert sessions.texts(STORE) == {"/a.md": "mine", "/d/b.md": "theirs"}
    # Nothing stays that a next item could take for its own.
    assert not where(tmp_path, session.id).exists()


async def test_where_both_wrote_the_store_keeps_its_text_and_the_agents_is_kept_beside(
    tmp_path: Path, sessions: SessionServer
) -> None:
    session = sessions.session(resources=[sessions.store("notes", {"/a.md": "one"})])
    sessions.queue(session)
    async with fleet(sessions, tmp_path, memory_seconds=60.0):
        await answered(session, session.call("bash", {"command": "true"}))
        sessions.write_memory(STORE, "/a.md", "theirs")
        call = session.call("write", {"file_path": "/mnt/memory/notes/a.md", "content": "mine"})
        (text,) = await answered(session, call)
        assert "changed in the store meanwhile" in text and "theirs" in text
        kept = text.rpartition("/mnt/session/tool_outputs/")[2].partition(";")[0].strip()
        look = session.call("read", {"file_path": f"/mnt/session/tool_outputs/{kept}"})
        assert await answered(session, look) == ["mine"]
    assert sessions.texts(STORE) == {"/a.md": "theirs"}


async def test_a_store_that_is_read_only_stays_as_it_is(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session(resources=[sessions.store("notes", {"/a.md": "one"}, access="read_only")])
    folder = where(tmp_path, session.id)
    calls = [
        session.call("write", {"file_path": "/mnt/memory/notes/a.md", "content": "mine"}),
        session.call("bash", {"command": f"chmod u+w {folder}; echo x > {folder}/a.md"}),
        session.call("bash", {"command": "true"}),
        session.call("read", {"file_path": "/mnt/memory/notes/a.md"}),
    ]
    sessions.queue(session)
    async with fleet(sessions, tmp_path, memory_seconds=0.0):
        texts = await answered(session, *calls)
    assert "read-only" in texts[0] and "undone" in texts[1] and texts[3] == "one"
    assert sessions.texts(STORE) == {"/a.md": "one"} and sessions.writes == []


async def test_an_answer_that_is_lost_stores_nothing_twice(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session(resources=[sessions.store("notes", {"/a.md": "one", "/b.md": "two"})])
    folder = where(tmp_path, session.id)
    sessions.cut("memory.create", after=True)
    sessions.cut("memory.update", after=True)
    sessions.cut("memory.delete", after=True)
    sessions.queue(session)
    async with fleet(sessions, tmp_path, memory_seconds=0.0):
        await answered(session, session.call("bash", {"command": "true"}))
        commands = f"echo new > {folder}/new.md; echo more > {folder}/a.md; rm {folder}/b.md"
        call = session.call("bash", {"command": commands})
        (text,) = await answered(session, call)
        assert STORE in text and "tried again" in text
        for _ in range(4):
            await answered(session, session.call("bash", {"command": "true"}))
    assert sessions.texts(STORE) == {"/a.md": "more\n", "/new.md": "new\n"}
    assert sorted(sessions.writes) == [("create", "/new.md"), ("delete", "/b.md"), ("update", "/a.md")]


async def test_a_store_that_cannot_be_had_is_told_by_name_and_the_session_works(
    tmp_path: Path, sessions: SessionServer
) -> None:
    session = sessions.session(resources=[sessions.store("notes", {"/a.md": "one"})])
    sessions.refuse("memories", 503, times=1)
    call = session.call("bash", {"command": "echo works"})
    following = session.call("read", {"file_path": "/mnt/memory/notes/a.md"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path, memory_seconds=0.0):
        texts = await answered(session, call, following)
    assert "works" in texts[0] and STORE in texts[0]
    assert texts[1] == "one"


async def test_edits_that_could_not_be_stored_wait_for_the_next_item(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session(resources=[sessions.store("notes", {"/a.md": "one", "/b.md": "two"})])
    sessions.refuse("memory.update", 503, times=1000)
    call = session.call("write", {"file_path": "/mnt/memory/notes/a.md", "content": "mine"})
    item = sessions.queue(session)
    async with fleet(sessions, tmp_path, max_idle_seconds=0.1, memory_seconds=0.0):
        await answered(session, call)
        session.rest()
        await await_until(lambda: item.state == "stopped")
        assert sessions.texts(STORE)["/a.md"] == "one"
        sessions._wrongs["memory.update"].clear()
        # Meanwhile somebody else deletes.
        (memory_id,) = [each["id"] for each in sessions.memories[STORE].values() if each["path"] == "/b.md"]
        del sessions.memories[STORE][memory_id]
        session.say("user.message")
        following = session.call("bash", {"command": f"ls {where(tmp_path, session.id)}"})
        sessions.queue(session)
        assert (await answered(session, following))[0].split()[0] == "a.md"
        assert sessions.texts(STORE) == {"/a.md": "mine"}


async def test_what_a_killed_worker_had_written_is_rescued(tmp_path: Path) -> None:
    async with SessionServer(ttl_seconds=1.0) as sessions:
        session = sessions.session(resources=[sessions.store("notes", {"/a.md": "one", "/b.md": "two"})])
        folder = where(tmp_path, session.id)
        edits = f"echo mine > {folder}/a.md; echo mine > {folder}/b.md; echo x > {folder}/new.md"
        command = f"{edits}; touch {tmp_path}/began; sleep 600"
        session.call("bash", {"command": command})
        sessions.queue(session)
        async with process(sessions, tmp_path) as worker:
            await await_until(lambda: (tmp_path / "began").exists(), timeout=30)
            worker.signal(signal.SIGKILL)
            await worker.ended()
        # Somebody else's newer text is not overwritten by the rescue.
        sessions.write_memory(STORE, "/b.md", "theirs")
        look = session.call("bash", {"command": f"cat {folder}/*.md"})
        async with fleet(sessions, tmp_path) as following:
            assert await answered(session, look) == ["mine\ntheirsx"]
            assert any("/b.md" in line["note"] for line in following.heard("memory that was left"))
        assert sessions.texts(STORE) == {"/a.md": "mine\n", "/b.md": "theirs", "/new.md": "x\n"}
        left = [each for each in below(tmp_path / "sessions") if ".left-" in str(each) and each.is_file()]
        assert any(each.read_bytes() == b"mine\n" for each in left)


@pytest.mark.parametrize(
    "resource",
    [
        {"mount_path": "/etc"},
        {"mount_path": "/mnt/memory/../../etc"},
        {"mount_path": "/mnt/memory/a/b"},
        {"mount_path": "/mnt/memory/.."},
        {"mount_path": "/mnt/memory/"},
        {"memory_store_id": "../x"},
        {"memory_store_id": ""},
    ],
)
def test_a_store_is_mounted_below_its_place_only(resource: dict[str, str]) -> None:
    given = {"type": "memory_store", "memory_store_id": "memstore_1", "mount_path": "/mnt/memory/x"} | resource
    with pytest.raises(MountRefused):
        attached({"resources": [given]})


async def test_a_session_whose_store_has_no_place_is_handed_back(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session(resources=[sessions.store("notes", {}) | {"mount_path": "/etc"}])
    item = sessions.queue(session)
    async with fleet(sessions, tmp_path) as worker:
        await await_until(lambda: item.state == "stopped")
        assert STORE in worker.heard("a session could not be served")[0]["reason"]


async def test_a_large_store_comes_whole(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session(resources=[sessions.store("notes", {f"/{n}.md": str(n) for n in range(250)})])
    call = session.call("bash", {"command": f"ls {where(tmp_path, session.id)} | wc -l"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path):
        assert await answered(session, call) == ["250"]
