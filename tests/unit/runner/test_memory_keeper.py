"""Folders of memory agree with their store, whoever writes when and whatever breaks; no text is ever lost."""

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from managed_agents.sessions.v1 import memory_pb2 as pb
from services.worker.memory import keeper as keeping
from services.worker.memory.base import load
from services.worker.memory.keeper import Folder, Holder, Keeper
from services.worker.memory.store import CONFLICT, REFUSED, WRITTEN
from services.worker.memory.tree import Tree
from services.worker.memory.wording import MAX_TOLD_CHARACTERS, Wording
from tests.unit.runner.memory_model import Away, Flaky, ModelStore

MOUNT = "/mnt/memory/notes"
HOLDER = Holder("sess_1", 1)


class Desk:
    """One session's folder of a store, and the agent at it."""

    def __init__(self, store: ModelStore, *, read_only: bool = False) -> None:
        # In memory where there is room for it: each pass waits for the disk.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.session = Path(tempfile.mkdtemp(prefix="ma-", dir=memory))
        self.root = Path(f"{self.session}{MOUNT}")
        self.copies = Path(f"{self.session}{keeping.COPIES}")
        self.copies.mkdir(parents=True)
        self.line = Flaky(store)
        self.folder = Folder(self.session, "sesrsc_1", "memstore_1", MOUNT, read_only)

    async def agree(self, *, pull: bool = True) -> list[str]:
        """One pass; what the agent is told."""
        keeper = Keeper(self.folder, self.line)  # type: ignore[arg-type]
        await keeper.agree(HOLDER, pull=pull)
        return keeper.notes

    def write(self, path: str, content: str) -> None:
        """As a tool of the agent does it."""
        target = Path(f"{self.root}{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)

    def delete(self, path: str) -> None:
        """As a tool of the agent does it."""
        Path(f"{self.root}{path}").unlink(missing_ok=True)

    def texts(self) -> dict[str, str]:
        """What is in the folder."""
        return {
            "/" + str(path.relative_to(self.root)): path.read_text()
            for path in self.root.rglob("*")
            if path.is_file() and not path.is_symlink()
        }

    def kept(self) -> set[str]:
        """What was moved out of the way."""
        return {path.read_text() for path in self.copies.iterdir()}

    def close(self) -> None:
        """Nothing is left."""
        shutil.rmtree(self.session, ignore_errors=True)


@pytest.fixture
def store() -> ModelStore:
    return ModelStore()


@pytest.fixture
def desks() -> Any:
    made: list[Desk] = []

    def make(store: ModelStore, **options: Any) -> Desk:
        made.append(Desk(store, **options))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


async def test_the_first_pass_fills_the_folder(store: ModelStore, desks: Any) -> None:
    store.write("/a", "one")
    store.write("/d/e/b", "two")
    desk = desks(store)
    assert await desk.agree() == []
    assert desk.texts() == {"/a": "one", "/d/e/b": "two"}


async def test_a_pass_that_finds_nothing_writes_nothing(store: ModelStore, desks: Any) -> None:
    store.write("/a", "one")
    desk = desks(store)
    await desk.agree()
    state = desk.folder.beside / "base.json"
    before = state.stat().st_ino
    assert await desk.agree(pull=False) == []
    assert state.stat().st_ino == before


async def test_files_are_read_until_their_times_tell_and_never_again(
    store: ModelStore, desks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("/a", "one")
    desk = desks(store)
    await desk.agree()
    read: list[str] = []
    monkeypatch.setattr("services.worker.memory.tree.Tree.read", _noting(read))
    await desk.agree(pull=False)
    assert read == ["/a"]
    # Later than the grain of times.
    monkeypatch.setattr(keeping, "time_ns", lambda: time.time_ns() + 2_000_000_000)
    await desk.agree(pull=False)
    await desk.agree(pull=False)
    assert read == ["/a", "/a"]


def _noting(read: list[str]) -> Any:
    original = Tree.read

    def note(self: Tree, path: str) -> Any:
        read.append(path)
        return original(self, path)

    return note


async def test_a_change_within_the_grain_of_times_is_seen(store: ModelStore, desks: Any) -> None:
    store.write("/a", "one")
    desk = desks(store)
    await desk.agree()
    # The same size and the same times: only the bytes tell.
    times = os.stat(f"{desk.root}/a")
    desk.write("/a", "two")
    os.utime(f"{desk.root}/a", ns=(times.st_atime_ns, times.st_mtime_ns))
    await desk.agree(pull=False)
    assert store.texts() == {"/a": "two"}


async def test_two_who_edit_one_file_lose_nothing(store: ModelStore, desks: Any) -> None:
    store.write("/a", "old")
    first, second = desks(store), desks(store)
    await first.agree()
    await second.agree()
    first.write("/a", "of the first")
    second.write("/a", "of the second")
    await first.agree(pull=False)
    told = "\n".join(await second.agree(pull=False))
    assert "of the first" in told and str(keeping.COPIES) in told
    assert (second.texts(), second.kept()) == ({"/a": "of the first"}, {"of the second"})
    assert store.texts() == {"/a": "of the first"}


async def test_the_same_edit_by_two_is_no_conflict(store: ModelStore, desks: Any) -> None:
    store.write("/a", "old")
    first, second = desks(store), desks(store)
    for desk in (first, second):
        await desk.agree()
        desk.write("/a", "same")
    assert await first.agree() == [] and await second.agree() == []
    assert second.kept() == set()


async def test_what_the_base_lost_is_offered_and_found_to_be_the_same(store: ModelStore, desks: Any) -> None:
    store.write("/a", "one")
    desk = desks(store)
    await desk.agree()
    (desk.folder.beside / "base.json").write_text("{broken")
    desk.write("/b", "two")
    assert await desk.agree() == []
    assert (store.texts(), store.revision) == ({"/a": "one", "/b": "two"}, 2)


async def test_an_edit_that_nobody_wrote_back_is_found_by_the_next_pass(store: ModelStore, desks: Any) -> None:
    store.write("/a", "old")
    desk = desks(store)
    await desk.agree()
    desk.write("/a", "edited")
    desk.write("/b", "new")
    desk.line.breaks = "before"
    with pytest.raises(Away):
        await desk.agree()
    desk.line.breaks = "behind"
    with pytest.raises(Away):
        await desk.agree()
    desk.line.breaks = ""
    assert await desk.agree() == []
    assert store.texts() == {"/a": "edited", "/b": "new"}
    assert store.revision == 3


async def test_a_text_that_was_moved_aside_when_the_runner_died_is_found(store: ModelStore, desks: Any) -> None:
    store.write("/a", "old")
    desk = desks(store)
    await desk.agree()
    staging = desk.folder.beside / "staging"
    (staging / "aside-0").write_text("precious")
    (staging / "aside-1").write_text("old")
    (staging / "new-2").write_text("half")
    told = await desk.agree()
    assert len(told) == 1 and "cut off" in told[0]
    assert (desk.kept(), list(staging.iterdir())) == ({"precious"}, [])


async def test_a_memory_in_the_way_of_another_is_hidden_until_it_has_room(store: ModelStore, desks: Any) -> None:
    store.write("/a", "file")
    store.write("/a/b", "in a folder")
    store.write("/" + "x" * 300, "long")
    desk = desks(store)
    told = await desk.agree()
    assert len(told) == 2 and all("has no file here" in each for each in told)
    shown = desk.texts()
    assert len(shown) == 1 and store.texts().keys() >= shown.keys()
    assert await desk.agree() == []
    desk.delete(next(iter(shown)))
    await desk.agree()
    assert len(store.texts()) == 2
    desk.write("/c", "another")
    await desk.agree()
    assert len(desk.texts()) == 2


async def test_renames_of_others_move_files(store: ModelStore, desks: Any) -> None:
    for path in ("/a", "/b", "/c"):
        store.write(path, path)
    desk = desks(store)
    await desk.agree()
    store.move("/a", "/t")
    store.move("/b", "/a")
    store.move("/t", "/b")
    store.move("/c", "/d/e")
    assert await desk.agree() == []
    assert desk.texts() == {"/b": "/a", "/a": "/b", "/d/e": "/c"} == store.texts()
    assert desk.kept() == set()


async def test_a_read_only_folder_gives_nothing_and_keeps_what_was_written(store: ModelStore, desks: Any) -> None:
    store.write("/a", "one")
    desk = desks(store, read_only=True)
    await desk.agree()
    desk.write("/a", "mine")
    desk.write("/n", "new")
    told = "\n".join(await desk.agree(pull=False))
    assert "read-only" in told
    assert (desk.texts(), desk.kept()) == ({"/a": "one"}, {"mine", "new"})
    assert store.texts() == {"/a": "one"}


async def test_a_refusal_is_told_once_and_offered_again_by_the_next_turn(store: ModelStore, desks: Any) -> None:
    desk = desks(store)
    await desk.agree()
    store.state = "archived"
    desk.write("/a", "one")
    assert len(await desk.agree(pull=False)) == 2
    assert await desk.agree(pull=False) == []
    store.state = "active"
    await desk.agree(pull=True)
    assert store.texts() == {"/a": "one"}


async def test_more_texts_than_fit_into_memory_go_out_in_parts(
    store: ModelStore, desks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_READ_BYTES", 10)
    desk = desks(store)
    await desk.agree()
    expected = {f"/{number}": f"text {number}" for number in range(20)}
    for path, content in expected.items():
        desk.write(path, content)
    await desk.agree(pull=False)
    assert store.texts() == expected


async def test_a_folder_with_too_much_in_it_deletes_nothing(
    store: ModelStore, desks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("/a", "one")
    desk = desks(store)
    await desk.agree()
    monkeypatch.setattr("services.worker.memory.tree.MAX_ENTRIES", 3)
    desk.delete("/a")
    for number in range(8):
        desk.write(f"/{number}", "x")
    assert any("more than" in note for note in await desk.agree(pull=False))
    assert store.texts()["/a"] == "one"


async def test_a_folder_that_can_not_be_looked_into_deletes_nothing(store: ModelStore, desks: Any) -> None:
    if os.geteuid() == 0:
        pytest.skip("root looks into everything")
    store.write("/d/a", "one")
    desk = desks(store)
    await desk.agree()
    os.chmod(f"{desk.root}/d", 0)
    assert any("looked into" in note for note in await desk.agree(pull=False))
    os.chmod(f"{desk.root}/d", 0o755)
    assert store.texts() == {"/d/a": "one"}


async def test_links_are_never_followed(store: ModelStore, desks: Any, tmp_path: Path) -> None:
    store.write("/a", "one")
    store.write("/d/b", "two")
    desk = desks(store)
    await desk.agree()
    (tmp_path / "b").write_text("outside")
    for name in ("a", "d/b"):
        desk.delete(f"/{name}")
    (desk.root / "a").symlink_to(tmp_path / "b")
    (desk.root / "d").rmdir()
    (desk.root / "d").symlink_to(tmp_path)
    told = await desk.agree(pull=False)
    assert len(told) == 2 and all("symbolic link" in each for each in told)
    store.write("/d/b", "newer")
    store.write("/a", "newer")
    await desk.agree()
    assert (tmp_path / "b").read_text() == "outside"
    assert store.texts() == {"/a": "newer", "/d/b": "newer"}
    assert (desk.root / "a").read_text() == "newer" and not (desk.root / "a").is_symlink()


async def test_the_mount_itself_is_never_a_link(store: ModelStore, desks: Any, tmp_path: Path) -> None:
    store.write("/a", "one")
    desk = desks(store)
    desk.root.parent.mkdir(parents=True)
    desk.root.symlink_to(tmp_path)
    assert "is no folder any more" in (await desk.agree())[0]
    assert not os.listdir(tmp_path)


async def test_passes_over_one_folder_take_turns(store: ModelStore, desks: Any) -> None:
    desk = desks(store)
    for number in range(10):
        desk.write(f"/{number}", str(number))
    await asyncio.gather(*(desk.agree() for _ in range(6)))
    assert store.revision == 10 and desk.texts() == store.texts()
    assert load(desk.folder.beside / "base.json").revision == 10


def test_what_is_told_is_bounded() -> None:
    notes: list[str] = []
    say = Wording(MOUNT, notes)
    for number in range(1_000):
        say.conflict(f"/{number}", "x" * 1_900, deleting=False)
    assert sum(map(len, notes)) < MAX_TOLD_CHARACTERS + 4_000
    assert "more is to be told" in notes[-1]


_PATHS = st.sampled_from(["/a", "/b", "/d/a", "/d/e/b", "/a/deep"])


class MemoryMachine(RuleBasedStateMachine):
    """Two agents and an API caller at one store, over lines that break and runners that die."""

    def __init__(self) -> None:
        super().__init__()
        self.store = ModelStore()
        self.desks = [Desk(self.store), Desk(self.store)]
        self.count = 0
        for desk in self.desks:
            asyncio.run(desk.agree())

    def teardown(self) -> None:
        try:
            for index in (0, 1, 0, 1):
                self.agree(index, "", True)
            for desk in self.desks:
                hidden = load(desk.folder.beside / "base.json").hidden
                shown = {path: text for path, text in self.store.texts().items() if path not in hidden}
                assert desk.texts() == shown
        finally:
            for desk in self.desks:
                desk.close()

    @rule(who=st.integers(0, 1), path=_PATHS)
    def an_agent_writes(self, who: int, path: str) -> None:
        self.count += 1
        try:
            self.desks[who].write(path, f"text {self.count}")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            return

    @rule(who=st.integers(0, 1), path=_PATHS)
    def an_agent_deletes(self, who: int, path: str) -> None:
        target = Path(f"{self.desks[who].root}{path}")
        if target.is_file():
            target.unlink()

    @rule(path=_PATHS)
    def somebody_writes(self, path: str) -> None:
        self.count += 1
        self.store.write(path, f"text {self.count}")

    @rule(path=_PATHS)
    def somebody_deletes(self, path: str) -> None:
        self.store.delete(path)

    @rule(path=_PATHS, to=_PATHS)
    def somebody_moves(self, path: str, to: str) -> None:
        self.store.move(path, to)

    @rule(who=st.integers(0, 1), breaks=st.sampled_from(["", "", "before", "behind", "pull"]), pull=st.booleans())
    def agree(self, who: int, breaks: str, pull: bool) -> None:
        desk = self.desks[who]
        there = set(desk.texts().values())
        desk.line.breaks = breaks
        try:
            asyncio.run(desk.agree(pull=pull))
        except Away:
            pass
        finally:
            desk.line.breaks = ""
        staged = {path.read_text() for path in (desk.folder.beside / "staging").iterdir()}
        assert there <= self.store.history | desk.kept() | set(desk.texts().values()) | staged

    @rule(who=st.integers(0, 1))
    def a_runner_loses_its_base(self, who: int) -> None:
        (self.desks[who].folder.beside / "base.json").unlink(missing_ok=True)


MemoryMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestMemoryMachine = MemoryMachine.TestCase


def test_the_outcomes_of_a_change_have_the_numbers_of_the_contract() -> None:
    assert (WRITTEN, CONFLICT, REFUSED) == (
        pb.MEMORY_CHANGE_OUTCOME_WRITTEN,
        pb.MEMORY_CHANGE_OUTCOME_CONFLICT,
        pb.MEMORY_CHANGE_OUTCOME_REFUSED,
    )
