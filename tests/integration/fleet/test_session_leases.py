"""The lease of a session: beaten in time, given up when it is lost; what a killed worker leaves is looked at first."""

import os
import signal
from pathlib import Path

import pytest

from kit.testing import await_until
from services.worker.fleet.session.folders import SessionBusy, SessionFolders
from tests.integration.fleet.harness import answered, fleet, named, process
from tests.support.session_server import SessionServer

WAITS = "touch began; until [ -e go ]; do sleep 0.05; done; echo whole"


async def test_each_heartbeat_names_the_one_before(tmp_path: Path) -> None:
    async with SessionServer(ttl_seconds=0.4) as sessions:
        session = sessions.session()
        item = sessions.queue(session)
        async with fleet(sessions, tmp_path):
            await await_until(lambda: item.beats >= 4)
            call = session.call("bash", {"command": "echo hi"})
            await answered(session, call)
        assert item.state == "stopped" and sessions.count("poll") >= 1


async def test_a_lost_lease_ends_the_run_here_and_leaves_the_item_alone(tmp_path: Path) -> None:
    async with SessionServer(ttl_seconds=1.0) as sessions:
        session = sessions.session()
        call = session.call("bash", {"command": "touch began; sleep 600; touch late"})
        item = sessions.queue(session)
        async with fleet(sessions, tmp_path) as worker:
            workspace = tmp_path / "sessions" / session.id / "workspace"
            await await_until(lambda: (workspace / "began").exists())
            # Another worker has it now, and keeps it: it is not to be had again here.
            item.beat, item.until = "somebody else's", 0.0
            await await_until(lambda: bool(worker.heard("session done")))
            assert [line["end"] for line in worker.heard("the lease is over")] == ["lost"]
        assert not item.stops and call not in session.results
        assert not named(workspace, "late")


async def test_silence_for_as_long_as_the_lease_lasts_ends_the_run(tmp_path: Path) -> None:
    async with SessionServer(ttl_seconds=0.4) as sessions:
        session = sessions.session()
        item = sessions.queue(session)
        async with fleet(sessions, tmp_path) as worker:
            await await_until(lambda: item.beats >= 1)
            sessions.refuse("work.heartbeat", 503, times=1000)
            await await_until(lambda: bool(worker.heard("session done")))
            assert [line["end"] for line in worker.heard("the lease is over")] == ["silent"]
            # It is somebody else's by now, as far as this worker can know.
            assert not item.stops


async def test_a_few_failures_end_nothing(tmp_path: Path) -> None:
    async with SessionServer(ttl_seconds=2.0) as sessions:
        session = sessions.session()
        item = sessions.queue(session)
        async with fleet(sessions, tmp_path, heartbeat_seconds=0.05):
            await await_until(lambda: item.beats >= 1)
            sessions.refuse("work.heartbeat", 503, times=2)
            sessions.cut("work.heartbeat", times=2)
            beats = item.beats
            await await_until(lambda: item.beats > beats + 2)
            call = session.call("bash", {"command": "echo hi"})
            assert await answered(session, call) == ["hi"]


@pytest.mark.parametrize(("state", "whole"), [("stopping", True), ("stopped", False)])
async def test_a_platform_that_asks_to_stop_is_heard(tmp_path: Path, state: str, whole: bool) -> None:
    async with SessionServer(ttl_seconds=60) as sessions:
        session = sessions.session()
        call = session.call("bash", {"command": WAITS})
        session.call("bash", {"command": "touch next"})
        item = sessions.queue(session)
        async with fleet(sessions, tmp_path, heartbeat_seconds=0.05) as worker:
            workspace = tmp_path / "sessions" / session.id / "workspace"
            await await_until(lambda: (workspace / "began").exists())
            item.state = state
            await await_until(lambda: bool(worker.heard("the lease is over")))
            if whole:
                (workspace / "go").touch()
            await await_until(lambda: bool(worker.heard("session done")))
        assert (call in session.results) is whole
        assert not named(workspace, "next")
        assert item.state == "stopped"


async def test_what_is_to_stop_and_goes_on_for_too_long_is_cut_off_before_the_lease_is_over(tmp_path: Path) -> None:
    async with SessionServer(ttl_seconds=1.0) as sessions:
        session = sessions.session()
        call = session.call("bash", {"command": "touch began; sleep 600; touch late"})
        item = sessions.queue(session)
        async with fleet(sessions, tmp_path) as worker:
            workspace = tmp_path / "sessions" / session.id / "workspace"
            await await_until(lambda: (workspace / "began").exists())
            item.state = "stopping"
            await await_until(lambda: bool(worker.heard("session done")))
            assert [line["end"] for line in worker.heard("the lease is over")] == ["stopping", "overtime"]
        # It has begun the call: the platform is to find that out, so the item is not handed back.
        assert not item.stops and call not in session.results
        assert not named(workspace, "late")


async def test_a_call_that_has_its_result_from_elsewhere_is_cut_off(tmp_path: Path) -> None:
    async with SessionServer() as sessions:
        session = sessions.session()
        call = session.call("bash", {"command": "touch began; sleep 600; touch late"})
        following = session.call("bash", {"command": "echo on"})
        sessions.queue(session)
        async with fleet(sessions, tmp_path):
            workspace = tmp_path / "sessions" / session.id / "workspace"
            await await_until(lambda: (workspace / "began").exists())
            session.say("user.tool_result", tool_use_id=call, content=[])
            assert await answered(session, following) == ["on"]
        assert not named(workspace, "late")


async def test_an_item_that_is_gone_is_let_go_and_work_goes_on(tmp_path: Path) -> None:
    async with SessionServer(ttl_seconds=0.4) as sessions:
        gone = sessions.queue(sessions.session())
        async with fleet(sessions, tmp_path) as worker:
            await await_until(lambda: gone.beats >= 1)
            sessions.refuse("work.heartbeat", 404, "work_item_not_found", times=1)
            sessions.refuse("work.stop", 404, "work_item_not_found", times=1)
            await await_until(lambda: bool(worker.heard("session done")))
            session = sessions.session()
            call = session.call("bash", {"command": "echo hi"})
            sessions.queue(session)
            assert await answered(session, call) == ["hi"]


async def test_a_stop_of_the_worker_finishes_the_call_and_hands_the_rest_back(tmp_path: Path) -> None:
    async with SessionServer() as sessions:
        session = sessions.session()
        call = session.call("bash", {"command": WAITS})
        rest = session.call("bash", {"command": "echo rest"})
        item = sessions.queue(session)
        async with fleet(sessions, tmp_path) as worker:
            workspace = tmp_path / "sessions" / session.id / "workspace"
            await await_until(lambda: (workspace / "began").exists())
            worker.stopping.asked.set()
            (workspace / "go").touch()
            assert await worker.task == 0
        assert session.text(call) == "whole" and rest not in session.results
        assert item.state == "stopped"


# What a killed worker leaves.


async def test_after_kill_9_the_session_goes_on_in_a_fresh_folder_and_no_call_is_run_twice(tmp_path: Path) -> None:
    async with SessionServer(ttl_seconds=1.0) as sessions:
        session = sessions.session()
        done = session.call("bash", {"command": "echo done > done.txt"})
        call = session.call("bash", {"command": "echo ran >> ../../../ran.txt; sleep 600"})
        rest = session.call("bash", {"command": "ls"})
        item = sessions.queue(session)
        async with process(sessions, tmp_path) as worker:
            await await_until(lambda: (tmp_path / "ran.txt").exists(), timeout=30)
            worker.signal(signal.SIGKILL)
            await worker.ended()
        assert done in session.results and call not in session.results
        async with fleet(sessions, tmp_path) as following:
            texts = await answered(session, call, rest)
            (told,) = following.heard("a killed worker left this folder; its session")
            assert told["session"] == session.id and told["call"] == call and told["worker"] == f"worker_{worker.pid}"
            (moved,) = following.heard("a killed worker left this folder; the session")
        assert texts[0].startswith("work_outcome_unknown") and session.results[call]["is_error"]
        # Fresh: nothing of what the killed one had made.
        assert texts[1] == "(no output)"
        assert (tmp_path / "ran.txt").read_text() == "ran\n"
        assert (Path(moved["folder"]) / "workspace" / "done.txt").exists()
        assert item.acks == 2


def test_a_folder_is_held_by_one_worker_and_free_when_it_dies(tmp_path: Path) -> None:
    one, other = SessionFolders(tmp_path, "one"), SessionFolders(tmp_path, "other")
    held = one.hold("sess_1")
    with pytest.raises(SessionBusy):
        other.hold("sess_1")
    assert other.left() == []
    held.release()
    again = other.hold("sess_1")
    assert again.left is None
    again.note_call("call_1")
    # Its death, as the kernel sees it.
    again.abandon()
    (left,) = one.left()
    assert (left.session_id, left.call_id, left.worker_id) == ("sess_1", "call_1", "other")
    taken = one.hold("sess_1")
    assert taken.left is not None and taken.left.call_id == "call_1"
    taken.release()
    assert one.left() == [] and one.hold("sess_1").left is None


def test_a_note_that_was_cut_off_still_says_that_something_was_left(tmp_path: Path) -> None:
    folders = SessionFolders(tmp_path, "one")
    held = folders.hold("sess_1")
    os.truncate(tmp_path / "sessions" / ".held" / "sess_1", 7)
    held.abandon()
    assert [each.session_id for each in folders.left()] == ["sess_1"]


@pytest.mark.parametrize("session_id", ["..", "a/b", "", ".held", "a\0b", "x" * 101])
def test_what_is_no_session_names_no_folder(tmp_path: Path, session_id: str) -> None:
    with pytest.raises(ValueError):
        SessionFolders(tmp_path, "one").hold(session_id)


def test_a_link_in_the_place_of_the_sessions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "sessions").symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        SessionFolders(tmp_path, "one")


async def test_a_session_that_another_worker_of_this_machine_is_at_is_handed_back(
    tmp_path: Path, sessions: SessionServer
) -> None:
    session = sessions.session()
    other = SessionFolders(tmp_path, "other")
    held = other.hold(session.id)
    item = sessions.queue(session)
    async with fleet(sessions, tmp_path) as worker:
        await await_until(lambda: item.state == "stopped")
        assert "another worker" in worker.heard("a session could not be served")[0]["reason"]
    held.release()


async def test_a_start_says_at_once_what_lies_there(tmp_path: Path, sessions: SessionServer) -> None:
    SessionFolders(tmp_path, "dead").hold("sess_1").abandon()
    async with fleet(sessions, tmp_path) as worker:
        await await_until(lambda: bool(worker.heard("a killed worker left")))
