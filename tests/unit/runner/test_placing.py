"""Whatever links an agent puts into its folder, nothing is written, removed or read outside of it."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.runner.workspace.placing import (
    OWN_FOLDER,
    Incoming,
    Record,
    look,
    own_folder,
    remove_file,
    tidy,
)

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: "/mnt/" + "/".join(names))
# What the agent left at a path: a link to somewhere, a file, or a folder.
LEFT = st.lists(st.tuples(PATHS, st.sampled_from(["out", "root", "up", "file", "folder"])), max_size=6)


def _plant(root: Path, outside: Path, left: list[tuple[str, str]]) -> None:
    targets = {"out": str(outside), "root": "/", "up": "../../../../.."}
    for inside, kind in left:
        place = Path(f"{root}{inside}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.resolve().is_relative_to(root.resolve()):
                continue
            if kind == "file":
                place.write_text("the agent's")
            elif kind == "folder":
                place.mkdir(exist_ok=True)
            else:
                place.symlink_to(targets[kind])
        except OSError:
            continue


def _state(folder: Path) -> dict[str, str]:
    return {str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}


@settings(max_examples=150, deadline=None)
@given(LEFT, PATHS)
def test_nothing_is_placed_or_removed_outside(left: list[tuple[str, str]], inside: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        root, outside = Path(name, "session"), Path(name, "outside")
        root.mkdir()
        outside.mkdir()
        for each in ("a", "b", "c"):
            (outside / each).write_text("kept")
        _plant(root, outside, left)
        incoming = Incoming(root, inside)
        try:
            incoming.write(b"new")
            incoming.keep()
        except OSError:
            incoming.drop()
        else:
            found = look(root, inside)
            assert found is not None and found.st_size == 3
            assert os.path.realpath(f"{root}{inside}").startswith(os.path.realpath(root))
        with suppress(OSError):
            remove_file(root, inside, up_to="/mnt")
        assert _state(outside) == {"a": "kept", "b": "kept", "c": "kept"}
        assert os.listdir(root / OWN_FOLDER) == []


def test_an_empty_folder_gives_way_and_a_full_one_does_not(tmp_path: Path) -> None:
    (tmp_path / "mnt" / "a").mkdir(parents=True)
    incoming = Incoming(tmp_path, "/mnt/a")
    incoming.keep()
    assert (tmp_path / "mnt" / "a").is_file()
    (tmp_path / "mnt" / "b" / "c").mkdir(parents=True)
    incoming = Incoming(tmp_path, "/mnt/b")
    with pytest.raises(OSError, match="not empty"):
        incoming.keep()
    incoming.drop()


def test_folders_above_a_removed_file_go_when_they_are_empty(tmp_path: Path) -> None:
    for inside in ("/mnt/a/b/c", "/mnt/a/d"):
        Incoming(tmp_path, inside).keep()
    remove_file(tmp_path, "/mnt/a/b/c", up_to="/mnt")
    assert sorted(os.listdir(tmp_path / "mnt" / "a")) == ["d"]
    remove_file(tmp_path, "/mnt/a/d", up_to="/mnt")
    remove_file(tmp_path, "/mnt/a/d", up_to="/mnt")
    assert os.listdir(tmp_path / "mnt") == []


def test_a_record_is_read_as_it_was_written_and_a_damaged_one_as_empty(tmp_path: Path) -> None:
    record = Record(tmp_path, "files")
    assert record.read() == {}
    record.write({"/a": [1, 2]})
    assert Record(tmp_path, "files").read() == {"/a": [1, 2]}
    path = tmp_path / OWN_FOLDER / "files.json"
    path.chmod(0o600)
    for damaged in ("", "{", "[]"):
        path.write_text(damaged)
        assert record.read() == {}


def test_what_a_kill_left_is_tidied_once_it_is_old(tmp_path: Path) -> None:
    old, new = own_folder(tmp_path), own_folder(tmp_path)
    (old / "deep").mkdir()
    (old / "deep" / "file").write_text("x")
    left = Incoming(tmp_path, "/mnt/a")
    left.close()
    os.utime(old, (0, 0))
    os.utime(tmp_path / OWN_FOLDER / left._part, (0, 0))
    tidy(tmp_path)
    assert os.listdir(tmp_path / OWN_FOLDER) == [new.name]
