"""Whole sessions: their calls are run here in order, confirmed where they must be, each in a folder of its own."""

import errno
import os
import time
from pathlib import Path

import pytest

from kit.archives import PackedFile
from kit.testing import await_until
from tests.integration.fleet.harness import answered, below, fleet
from tests.support.session_server import SessionServer
from tests.support.work_server import KEY


async def test_calls_are_run_in_order_in_one_shell(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session()
    calls = [
        session.call("bash", {"command": "cd /tmp; export A=1; mkdir -p $HOME/d; cd $HOME/d; pwd >&2; A=2"}),
        session.call("write", {"file_path": "d/x.txt", "content": "one\n"}),
        session.call("bash", {"command": "cat x.txt; echo $A"}),
        session.call("edit", {"file_path": "d/x.txt", "old_string": "one", "new_string": "two"}),
        session.call("read", {"file_path": "d/x.txt"}),
        session.call("glob", {"pattern": "**/*.txt"}),
        session.call("grep", {"pattern": "tw."}),
        session.call("bash", {"command": "exit 4"}),
        session.call("read", {"file_path": "../../../../etc/passwd"}),
    ]
    session.park(*calls)
    item = sessions.queue(session)
    async with fleet(sessions, tmp_path):
        texts = await answered(session, *calls)
        assert [session.results[each]["is_error"] for each in calls] == [*[False] * 7, True, True]
    folder = tmp_path / "sessions" / session.id / "workspace"
    assert texts[0] == str(folder / "d") and texts[2] == "one\n2" and texts[4] == "two\n"
    assert "x.txt" in texts[5] and "two" in texts[6] and "exit code 4" in texts[7] and "root:" not in texts[8]
    assert list(session.results) == calls
    assert item.acks == 1 and item.beats >= 1 and item.stops == [{"force": True}]


async def test_the_poll_is_made_with_the_key_and_all_else_with_the_items_token(
    tmp_path: Path, sessions: SessionServer
) -> None:
    session = sessions.session()
    call = session.call("bash", {"command": "env"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path) as worker:
        (text,) = await answered(session, call)
        told = worker.said.getvalue()
    used = {name: headers["authorization"] for name, _, headers in sessions.calls}
    assert used["poll"] == used["work.ack"] == f"Bearer {KEY}"
    assert {used[each] for each in ("session", "events", "stream", "send", "work.heartbeat", "work.stop")} == {
        f"Bearer {session.token}"
    }
    assert {headers["anthropic-worker-id"] for name, _, headers in sessions.calls if name == "poll"} == {"worker_test"}
    for secret in (session.token, KEY):
        assert secret not in text and secret not in told


async def test_what_needs_leave_waits_for_it_and_what_is_denied_is_never_run(
    tmp_path: Path, sessions: SessionServer
) -> None:
    session = sessions.session()
    asked = session.call("bash", {"command": "echo asked"}, "ask")
    denied = session.call("bash", {"command": "touch denied"}, "ask")
    never = session.call("bash", {"command": "touch never"}, "deny")
    other = session.call("web_fetch", {"url": "x"})
    free = session.call("bash", {"command": "echo free"})
    session.park(asked, denied, other)
    sessions.queue(session)
    async with fleet(sessions, tmp_path, max_idle_seconds=0.1):
        assert await answered(session, free) == ["free"]
        assert asked not in session.results
        session.say("user.tool_confirmation", tool_use_id=denied, result="deny")
        session.say("user.tool_confirmation", tool_use_id=asked, result="allow")
        assert await answered(session, asked) == ["asked"]
    assert set(session.results) == {asked, free}
    assert below(tmp_path / "sessions" / session.id / "workspace") == []
    assert never not in session.results


async def test_a_call_whose_result_lies_on_a_later_page_is_not_run(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session()
    old = session.call("bash", {"command": "touch again"})
    for _ in range(10):
        session.say("agent.message")
    session.say("user.tool_result", tool_use_id=old)
    new = session.call("bash", {"command": "ls"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path):
        assert await answered(session, new) == ["(no output)"]
    assert list(session.results) == [new]


async def test_a_session_that_rests_is_let_go_and_finds_its_files_again(
    tmp_path: Path, sessions: SessionServer
) -> None:
    session = sessions.session()
    first = session.call("bash", {"command": "echo kept > kept.txt"})
    item = sessions.queue(session)
    async with fleet(sessions, tmp_path, max_idle_seconds=0.2):
        await answered(session, first)
        session.rest()
        await await_until(lambda: item.state == "stopped")
        session.say("user.message")
        second = session.call("bash", {"command": "cat kept.txt"})
        following = sessions.queue(session)
        assert await answered(session, second) == ["kept"]
        session.say("session.deleted")
        await await_until(lambda: following.state == "stopped")
        await await_until(lambda: not (tmp_path / "sessions" / session.id).exists())


async def test_a_stream_that_breaks_is_taken_up_where_it_broke(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session()
    sessions.queue(session)
    calls = []
    async with fleet(sessions, tmp_path):
        for number in range(4):
            calls.append(session.call("bash", {"command": f"echo {number}; echo {number} >> all.txt"}))
            await answered(session, calls[-1])
            sessions._cut_streams = True
            session.say("agent.message")
            cut = sessions.count("stream")
            await await_until(lambda cut=cut: sessions.count("stream") > cut)
            sessions._cut_streams = False
    lasts = [int(headers["last-event-id"]) for name, _, headers in sessions.calls if name == "stream"]
    assert lasts == sorted(lasts)
    folder = tmp_path / "sessions" / session.id / "workspace"
    assert (folder / "all.txt").read_text() == "0\n1\n2\n3\n"
    # The history is read once.
    assert sessions.count("events") == 1


async def test_a_result_is_sent_until_it_is_taken_and_not_when_it_is_refused(
    tmp_path: Path, sessions: SessionServer
) -> None:
    session = sessions.session()
    sessions.cut("send")
    sessions.refuse("send", 503, times=1)
    sessions.cut("send", after=True)
    first = session.call("bash", {"command": "echo one"})
    refused = session.call("bash", {"command": "echo two"})
    session.refused[refused] = "The call is not pending."
    last = session.call("bash", {"command": "echo three"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path):
        await answered(session, first, last)
    keys = [headers["idempotency-key"] for name, _, headers in sessions.calls if name == "send"]
    assert len(keys) == 6 and len(set(keys)) == 3
    assert refused not in session.results


async def test_an_interrupt_ends_the_running_call(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session()
    call = session.call("bash", {"command": "touch began; sleep 600 & sleep 600"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path):
        workspace = tmp_path / "sessions" / session.id / "workspace"
        await await_until(lambda: (workspace / "began").exists())
        void = session.call("bash", {"command": "touch void"})
        session.say("user.interrupt")
        following = session.call("bash", {"command": "echo next"})
        began = time.monotonic()
        texts = await answered(session, call, following)
        assert time.monotonic() - began < 15
    assert void not in session.results
    assert "interrupted" in texts[0] and session.results[call]["is_error"]
    assert texts[1] == "next"


async def test_several_sessions_run_at_once_each_in_its_own_folder(tmp_path: Path, sessions: SessionServer) -> None:
    three = [sessions.session() for _ in range(3)]
    calls = [each.call("bash", {"command": "pwd; until [ -e go ]; do sleep 0.05; done; ls"}) for each in three]
    for each in three:
        sessions.queue(each)
    async with fleet(sessions, tmp_path, concurrency=2) as worker:
        folders = [tmp_path / "sessions" / each.id / "workspace" for each in three]
        await await_until(lambda: sum(each.exists() for each in folders) == 2)
        assert worker.metrics.running == 2 and not folders[2].exists()
        for folder in folders[:2]:
            (folder / "go").touch()
        texts = await answered(three[0], calls[0]) + await answered(three[1], calls[1])
        assert texts == [f"{folder}\ngo" for folder in folders[:2]]
        three[0].say("session.status_terminated")
        await await_until(lambda: folders[2].exists())
        (folders[2] / "go").touch()
        await answered(three[2], calls[2])


async def test_items_of_unknown_kinds_are_acked_and_skipped(tmp_path: Path, sessions: SessionServer) -> None:
    check = sessions.queue(None, "healthcheck")
    session = sessions.session()
    call = session.call("bash", {"command": "echo hi"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path):
        await answered(session, call)
    assert check.acks == 1 and check.state == "stopped" and check.beats == 0


async def test_an_item_that_comes_as_the_worker_is_asked_to_stop_is_handed_back(
    tmp_path: Path, sessions: SessionServer
) -> None:
    session = sessions.session()
    item = sessions.queue(session)
    acked = sessions.hold("work.ack")
    async with fleet(sessions, tmp_path) as worker:
        await await_until(lambda: sessions.count("work.ack") == 1)
        worker.stopping.asked.set()
        await await_until(lambda: item.state == "stopped")
        acked.set()
        assert await worker.task == 0
    assert not session.results


async def test_an_item_whose_ack_is_refused_is_put_away(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session()
    item = sessions.queue(session)
    sessions.refuse("work.ack", 409, "work_already_stopped")
    async with fleet(sessions, tmp_path):
        await await_until(lambda: item.state == "stopped")
    assert item.beats == 0


async def test_a_session_that_has_ended_is_not_served(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session(status="terminated")
    session.call("bash", {"command": "touch ran"})
    item = sessions.queue(session)
    async with fleet(sessions, tmp_path):
        await await_until(lambda: item.state == "stopped")
    assert sessions.count("events") == 0 and not session.results


async def test_without_a_sandbox_there_are_no_limits_but_the_users(tmp_path: Path, sessions: SessionServer) -> None:
    session = sessions.session()
    call = session.call("bash", {"command": "ulimit -t; ulimit -f; ulimit -v"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path):
        (text,) = await answered(session, call)
    assert all(each == "unlimited" or int(each) >= 2**31 for each in text.split()), text


# Skills.


async def test_skills_are_where_the_agent_looks_for_them(tmp_path: Path, sessions: SessionServer) -> None:
    files = [PackedFile("pdf/SKILL.md", b"how to"), PackedFile("pdf/bin/run.sh", b"echo ran", executable=True)]
    session = sessions.session(skills=[sessions.skill("pdf", files)])
    calls = [
        session.call("bash", {"command": "skills/pdf/bin/run.sh; cat skills/pdf/SKILL.md"}),
        session.call("read", {"file_path": "/mnt/session/skills/pdf/SKILL.md"}),
        session.call("write", {"file_path": "/mnt/session/skills/pdf/SKILL.md", "content": "mine"}),
    ]
    sessions.queue(session)
    async with fleet(sessions, tmp_path):
        texts = await answered(session, *calls)
    assert texts[0].split() == ["ran", "how", "to"] and texts[1] == "how to"
    assert session.results[calls[2]]["is_error"] and "read-only" in texts[2]


EVIL = [
    [PackedFile("x/../../../out", b"")],
    [PackedFile("/abs/x", b"")],
    [PackedFile("x/a", b""), PackedFile("x/a/b", b"")],
    [PackedFile("x/A", b""), PackedFile("x/a", b"")],
    [PackedFile("beside", b"")],
    [PackedFile("x/C:\\x", b"")],
]


async def test_a_package_that_breaks_a_rule_writes_nothing_and_keeps_nobody_from_working(
    tmp_path: Path, sessions: SessionServer
) -> None:
    skills = [sessions.skill(f"evil{number}", files) for number, files in enumerate(EVIL)]
    skills += [{"skill_id": "skill_gone", "version": "1"}]
    session = sessions.session(skills=skills)
    call = session.call("bash", {"command": "ls -A skills /mnt/session/skills 2>&1; echo works"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path):
        (text,) = await answered(session, call)
    assert "works" in text and "evil" in text and "skill_gone" in text and text.count("could not be brought") == 7
    assert not {"out", "a", "A", "b"} & {each.name for each in below(tmp_path)}


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".hidden", "", "a\0b"])
def test_the_name_of_a_skill_leads_nowhere(tmp_path: Path, name: str) -> None:
    from kit.archives import ArchiveRefused, write_zip
    from services.worker.fleet.session.skills import unpack

    with pytest.raises(ArchiveRefused):
        unpack(tmp_path, name, write_zip([PackedFile("x/SKILL.md", b"")]))
    assert list(tmp_path.iterdir()) == []


def test_a_skill_that_the_disk_does_not_take_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kit.archives import write_zip
    from services.worker.fleet.session import skills

    write = skills._write

    def write_some(root: int, incoming: str, file: PackedFile) -> None:
        if file.name == "second":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(root, incoming, file)

    monkeypatch.setattr(skills, "_write", write_some)
    with pytest.raises(OSError, match="No space"):
        skills.unpack(tmp_path, "pdf", write_zip([PackedFile(f"pdf/{each}", b"x") for each in ("first", "second")]))
    assert list(Path(f"{tmp_path}{skills.READ_ONLY}").iterdir()) == []


async def test_a_skill_is_not_written_through_a_link_of_the_agents(tmp_path: Path, sessions: SessionServer) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    workspace = tmp_path / "sessions" / "sess_left" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "skills").symlink_to(outside)
    session = sessions.session(skills=[sessions.skill("pdf", [PackedFile("pdf/SKILL.md", b"x")])])
    session.id, sessions.sessions = "sess_left", {"sess_left": session}
    call = session.call("bash", {"command": "echo hi"})
    sessions.queue(session)
    async with fleet(sessions, tmp_path):
        (text,) = await answered(session, call)
    assert "could not be brought" in text and below(outside) == []
