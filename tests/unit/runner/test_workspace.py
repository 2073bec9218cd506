"""The frame of mounts: who is called when, what a failure comes to, and that nothing costs anything without a mount."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.errors import Unavailable
from managed_agents.sessions.v1.sessions_pb2 import Session
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop import workspace as module
from services.worker.runner.loop.context import Call
from services.worker.runner.loop.stopping import StopKind, Stopped, StopSignal
from services.worker.runner.loop.workspace import Workspace, Workspaces
from services.worker.runner.workspace import Ground, Mount, MountFailed, ToolRun
from services.worker.tools import ToolOutcome, VisibleRoot

CALL, READ = Call("sevt_1", "toolu_1", "bash", {}), Call("sevt_2", "toolu_2", "read", {})
DONE = ToolOutcome("done")


class Folders:
    """Hands out a folder, and notes that it was asked."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.asked = 0

    def folder(self, session_id: str, environment: Mapping[str, Any], roots: Sequence[VisibleRoot] = ()) -> Path:
        self.asked += 1
        self.path.mkdir(exist_ok=True)
        return self.path


class Noting(Mount):
    """Notes its calls; `fails` is raised by each of them."""

    name = "noting"

    def __init__(self, fails: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.fails = fails
        self.resources: list[bytes] = []

    def applies(self, grant: TurnGrant) -> bool:
        return grant.session.resources_json not in (b"", b"[]")

    def prompt_notes(self, grant: TurnGrant) -> Sequence[str]:
        return ("noted",)

    async def prepare(self, ground: Ground) -> None:
        self._note("prepare")
        self.resources.append(ground.grant.session.resources_json)

    async def after_tool(self, ground: Ground, call: ToolRun, outcome: ToolOutcome) -> Sequence[str]:
        self._note("after_tool")
        return ("look here",)

    async def before_idle(self, ground: Ground) -> None:
        self._note("before_idle")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.fails:
            raise self.fails


class Bare(Mount):
    """A kind that is there and does nothing but finish."""

    name = "bare"
    finished = 0

    def applies(self, grant: TurnGrant) -> bool:
        return True

    async def before_idle(self, ground: Ground) -> None:
        self.finished += 1


class Stage:
    """A runner's mounts over a folder, and the turns of one session."""

    def __init__(self, folder: Path, *mounts: Mount) -> None:
        self.folders = Folders(folder)
        self.told: list[dict[str, Any]] = []
        self.stop = StopSignal()
        self.attached = (b'[{"id":"b","type":"x"}]', 2)
        self.asked: list[str] = []
        self.shared = Workspaces(self.folders, mounts, self._read)

    async def _read(self, session_id: str) -> tuple[bytes, int]:
        self.asked.append(session_id)
        return self.attached

    def turn(self, resources: bytes = b'[{"id":"a","type":"x"}]', **fields: Any) -> Workspace:
        session = Session(id=fields.pop("session_id", "sess_1"), resources_json=resources)
        grant = TurnGrant(session=session, **{"session_revision": 1, "attempt": 1, **fields})
        return self.shared.of(grant, lambda kind, told: self.told.append({"type": kind, **told}), self.stop)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "session"


async def _whole(turn: Workspace) -> None:
    await turn.ready()
    turn.begin_tool(CALL)
    await turn.after_tool(CALL, DONE)
    await turn.ready()
    await turn.before_idle()


async def test_a_session_without_attachments_pays_nothing(folder: Path) -> None:
    stage = Stage(folder, Noting())
    turn = stage.turn(b"[]")
    await _whole(turn)
    assert (stage.folders.asked, stage.asked, turn.roots, turn.prompt_notes) == (0, [], (), ())


async def test_mounts_are_called_in_their_order_and_prepared_once(folder: Path) -> None:
    mount = Noting()
    stage = Stage(folder, mount)
    turn = stage.turn()
    assert turn.prompt_notes == ("noted",)
    await turn.ready()
    assert list(await turn.after_tool(CALL, DONE)) == ["look here"]
    assert list(await turn.after_tool(READ, DONE)) == []
    await turn.before_idle()
    await _whole(stage.turn())
    assert mount.calls == ["prepare", "after_tool", "before_idle", "after_tool", "before_idle"]


async def test_a_folder_that_was_made_anew_and_another_runner_prepare_again(folder: Path, tmp_path: Path) -> None:
    mount = Noting()
    stage = Stage(folder, mount)
    await stage.turn().ready()
    os.rename(folder, tmp_path / "old")
    await stage.turn().ready()
    await Stage(folder, mount).turn().ready()
    assert mount.calls == ["prepare"] * 3


async def test_what_changed_meanwhile_is_read_before_the_next_request(folder: Path) -> None:
    mount = Noting()
    stage = Stage(folder, mount)
    turn = stage.turn()
    await turn.ready()
    turn.notice(0)
    turn.notice(1)
    await turn.ready()
    assert stage.asked == []
    turn.notice(2)
    await turn.ready()
    assert stage.asked == ["sess_1"] and mount.resources[-1] == stage.attached[0]
    stage.attached = (b"[]", 3)
    turn.notice(3)
    await turn.ready()
    assert turn.prompt_notes == () and mount.calls == ["prepare", "prepare"]


async def test_a_thread_shares_the_folder_and_is_prepared_by_its_own_revision(folder: Path) -> None:
    mount = Noting()
    stage = Stage(folder, mount)
    await stage.turn().ready()
    for _ in range(2):
        await stage.turn(session_id="sthr_1", root_session_id="sess_1", session_revision=7).ready()
        await stage.turn().ready()
    assert mount.calls == ["prepare", "prepare"]


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (MountFailed("It is gone.", error_type="store_gone"), "store_gone", "It is gone."),
        (Unavailable("away"), "unknown_error", "could not be reached"),
        (RuntimeError("secret detail"), "unknown_error", "failed inside the platform"),
        (TimeoutError(), "unknown_error", "failed inside the platform"),
    ],
)
async def test_whatever_a_mount_raises_is_told_and_the_turn_goes_on(
    folder: Path, failure: Exception, kind: str, text: str
) -> None:
    mount, other = Noting(failure), Bare()
    stage = Stage(folder, mount, other)
    await _whole(stage.turn())
    assert mount.calls == ["prepare", "after_tool", "before_idle"] and other.finished == 1
    assert [each["error"]["type"] for each in stage.told] == [kind] * 3
    assert all(text in each["error"]["message"] and "secret" not in str(each) for each in stage.told)
    assert {each["error"]["retry_status"] for each in stage.told} == {"retryable"}
    # What failed is tried again by the next turn, not by each request of this one.
    await stage.turn().ready()
    assert mount.calls[-1] == "prepare"


async def test_nothing_is_finished_where_no_tool_ran_unless_an_attempt_before_may_have(folder: Path) -> None:
    mount = Bare()
    stage = Stage(folder, mount)
    turn = stage.turn(b"[]")
    await turn.ready()
    await turn.after_tool(READ, DONE)
    await turn.before_idle()
    assert (mount.finished, stage.folders.asked) == (0, 0)
    await stage.turn(b"[]", attempt=2).before_idle()
    assert mount.finished == 1


async def test_a_stop_cuts_a_mount_off_and_the_end_has_little_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Bare):
        async def before_idle(self, ground: Ground) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(module, "_HURRIED_SECONDS", 0.05)
    stage = Stage(folder, Slow())
    turn = stage.turn(b"[]", attempt=2)
    task = asyncio.current_task()
    assert task is not None
    stage.stop.bind(task)
    asyncio.get_running_loop().call_later(0.02, stage.stop.stop, StopKind.INTERRUPT)
    with pytest.raises(Stopped):
        await turn.before_idle()
    # The turn is closed as interrupted, and what could not be finished is told.
    stage.stop.clear_interrupt()
    await turn.before_idle()
    assert len(stage.told) == 1 and "not finished" in stage.told[0]["error"]["message"]
    await turn.before_idle()
    assert len(stage.told) == 1


async def test_a_turn_that_waits_for_another_one_to_prepare_can_be_stopped(folder: Path) -> None:
    stage = Stage(folder, Noting())
    lock = stage.shared.known("sess_1").lock
    await lock.acquire()
    task = asyncio.current_task()
    assert task is not None
    stage.stop.bind(task)
    asyncio.get_running_loop().call_later(0.02, stage.stop.stop, StopKind.INTERRUPT)
    with pytest.raises(Stopped):
        await stage.turn().ready()
    lock.release()
    stage.stop.clear_interrupt()
    await stage.turn().ready()
    assert not lock.locked()


async def test_a_sandbox_that_has_no_folder_here_is_no_failure_of_the_turn(folder: Path) -> None:
    stage = Stage(folder, Noting(), Bare())

    def missing(*_: Any) -> Path:
        raise LookupError("no such provider")

    stage.folders.folder = missing  # type: ignore[method-assign]
    await _whole(stage.turn())
    assert stage.told == []
