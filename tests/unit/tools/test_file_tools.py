"""Proves: read, write and edit do what their descriptions say, within their bounds, and fail with a usable text."""

import pytest

from services.worker.tools import ToolFailed, edit, read, write


def test_write_makes_folders_and_counts_bytes(files, work):
    assert write.run(files, {"file_path": "a/b/c.txt", "content": "ü\n"}) == "Wrote 3 bytes to a/b/c.txt."
    assert (work / "a/b/c.txt").read_bytes() == "ü\n".encode()
    assert (work / "a/b/c.txt").stat().st_mode & 0o777 == 0o644


def test_write_reaches_outputs_but_not_uploads(files, folder):
    write.run(files, {"file_path": "/mnt/session/outputs/r.md", "content": "r"})
    assert (folder / "mnt/session/outputs/r.md").read_text() == "r"
    with pytest.raises(ToolFailed, match="read-only"):
        write.run(files, {"file_path": "/mnt/session/uploads/r.md", "content": "r"})


def test_write_through_a_file_as_a_folder_is_refused(files, work):
    (work / "f").write_text("x")
    with pytest.raises(ToolFailed, match="not a directory"):
        write.run(files, {"file_path": "f/g", "content": "x"})


def test_a_path_outside_names_the_roots_that_exist(files):
    with pytest.raises(ToolFailed, match="/workspace, /mnt/session/uploads, /mnt/session/outputs"):
        read.run(files, {"file_path": "/etc/hosts"})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "1\n2\n3\n4\n5"),
        ({"offset": 2}, "2\n3\n4\n5"),
        ({"offset": 2, "limit": 2}, "2\n3\n"),
        ({"limit": 1}, "1\n"),
        ({"view_range": [2, 3]}, "2\n3\n"),
        ({"view_range": [4, -1]}, "4\n5"),
        ({"view_range": [0, 1]}, "1\n"),
        ({"offset": 9}, "f has no line 9."),
    ],
)
def test_read_takes_lines(files, work, asked, expected):
    (work / "f").write_text("1\n2\n3\n4\n5")
    assert read.run(files, {"file_path": "f", **asked}) == expected


@pytest.mark.parametrize("asked", [{"view_range": [3, 2]}, {"view_range": [1, 2], "offset": 1}])
def test_read_refuses_contradictory_ranges(files, work, asked):
    (work / "f").write_text("1\n2\n3\n")
    with pytest.raises(ToolFailed, match="view_range"):
        read.run(files, {"file_path": "f", **asked})


def test_read_bounds_what_comes_at_once(files, work):
    (work / "large").write_bytes(b"line\n" * 100_000)
    with pytest.raises(ToolFailed, match="500000 bytes"):
        read.run(files, {"file_path": "large"})
    assert read.run(files, {"file_path": "large", "offset": 99_999}) == "line\nline\n"
    with pytest.raises(ToolFailed, match="ask for fewer"):
        read.run(files, {"file_path": "large", "limit": 90_000})
    (work / "one-line").write_bytes(b"x" * 600_000)
    with pytest.raises(ToolFailed, match="longer than"):
        read.run(files, {"file_path": "one-line", "limit": 1})


def test_read_tells_of_binary_and_empty_files(files, work):
    (work / "b").write_bytes(b"\x7fELF\0\0")
    (work / "e").write_bytes(b"")
    assert read.run(files, {"file_path": "b"}) == "b is a binary file of 6 bytes; its content is not shown."
    assert read.run(files, {"file_path": "e"}) == "e is empty."
    (work / "l").write_bytes(b"caf\xe9")
    assert read.run(files, {"file_path": "l"}) == "caf\ufffd"


def test_read_refuses_a_folder(files):
    with pytest.raises(ToolFailed, match="is a folder"):
        read.run(files, {"file_path": "."})


def test_edit_replaces_exactly_one(files, work):
    (work / "f").write_bytes(b"a\r\nb\r\na\r\n")
    text = edit.run(files, {"file_path": "f", "old_string": "b", "new_string": "c"})
    assert text == "Replaced 1 occurrence in f."
    assert (work / "f").read_bytes() == b"a\r\nc\r\na\r\n"


def test_edit_refuses_what_is_not_unique_unless_told(files, work):
    (work / "f").write_text("a a")
    with pytest.raises(ToolFailed, match="occurs 2 times"):
        edit.run(files, {"file_path": "f", "old_string": "a", "new_string": "b"})
    assert (work / "f").read_text() == "a a"
    edit.run(files, {"file_path": "f", "old_string": "a", "new_string": "b", "replace_all": True})
    assert (work / "f").read_text() == "b b"


@pytest.mark.parametrize(
    ("old", "new", "problem"), [("x", "y", "not found"), ("a", "a", "is the same"), ("A", "b", "not found")]
)
def test_edit_names_the_field(files, work, old, new, problem):
    (work / "f").write_text("a")
    with pytest.raises(ToolFailed, match=problem):
        edit.run(files, {"file_path": "f", "old_string": old, "new_string": new})


def test_edit_takes_text_only(files, work):
    (work / "f").write_bytes(b"a\xff")
    with pytest.raises(ToolFailed, match="UTF-8"):
        edit.run(files, {"file_path": "f", "old_string": "a", "new_string": "b"})
    with pytest.raises(ToolFailed, match="no such file"):
        edit.run(files, {"file_path": "g", "old_string": "a", "new_string": "b"})
