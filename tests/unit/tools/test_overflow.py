"""Proves: output of more than 50,000 characters goes to a file, and a failed spill never fails the call."""

import os
import re

import pytest

from services.worker.tools.overflow import (
    LIMIT_CHARS,
    PREVIEW_CHARS,
    SPILL_CAP_BYTES,
    SpillBuffer,
    SpillFile,
    limit_text,
    spill_opener,
)


@pytest.fixture
def spills(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield lambda name="s-1.txt": spill_opener(fd, "/mnt/session/tool_outputs", name)
    os.close(fd)


def broken():
    raise PermissionError(13, "no")


def feed(text, opener, **keywords):
    buffer = SpillBuffer(opener, **keywords)
    data = text if isinstance(text, bytes) else text.encode()
    for start in range(0, len(data), 777):
        buffer.feed(data[start : start + 777])
    return buffer.finish()


@pytest.mark.parametrize("make", [limit_text, feed])
def test_text_up_to_the_limit_is_left_alone(make, spills, tmp_path):
    outcome = make("ü" * LIMIT_CHARS, spills())
    assert outcome.text == "ü" * LIMIT_CHARS
    assert outcome.overflow is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [limit_text, feed])
@pytest.mark.parametrize(("unit", "count"), [("x", LIMIT_CHARS + 1), ("ü", 60_000), ("😀", 184_320)])
def test_longer_text_is_spilled_whole_and_previewed(make, unit, count, spills, tmp_path):
    text = unit * count
    outcome = make(text, spills())
    size = len(text.encode())
    assert outcome.text == (
        "[tool output overflow]\n"
        f"original_chars: {count}\n"
        f"preview_chars: {PREVIEW_CHARS}\n"
        "file: /mnt/session/tool_outputs/s-1.txt\n"
        f"file_bytes: {size}\n"
        "The full output is available at the path above.\n"
        "\n" + unit * PREVIEW_CHARS
    )
    assert outcome.overflow == {
        "path": "/mnt/session/tool_outputs/s-1.txt",
        "original_chars": count,
        "preview_chars": PREVIEW_CHARS,
        "file_bytes": size,
    }
    assert (tmp_path / "s-1.txt").read_text() == text


@pytest.mark.parametrize("make", [limit_text, feed])
@pytest.mark.parametrize("opener", [None, broken])
def test_a_failed_spill_says_so_and_records_no_path(make, opener):
    outcome = make("x" * 300_000, opener)
    assert "\nfile: none\n" in outcome.text
    assert "file_bytes" not in outcome.text
    assert outcome.overflow is None
    assert not outcome.is_error


@pytest.mark.parametrize("make", [limit_text, feed])
def test_a_disk_that_is_full_while_spilling_says_so(make):
    full = os.open("/dev/full", os.O_WRONLY)
    outcome = make("x" * 300_000, lambda: SpillFile(os.fdopen(full, "wb"), "/full"))
    assert "\nfile: none\n" in outcome.text
    assert outcome.overflow is None


def test_a_link_in_place_of_the_spill_file_is_not_followed(spills, tmp_path):
    (tmp_path / "s-1.txt").symlink_to("victim")
    outcome = limit_text("x" * 60_000, spills())
    assert outcome.overflow is None
    assert not (tmp_path / "victim").exists()


def test_what_exceeds_the_cap_is_dropped_and_counted(spills, tmp_path):
    outcome = feed("x" * 1_000_000, spills(), cap_bytes=400_000)
    assert (tmp_path / "s-1.txt").stat().st_size == 400_000
    assert outcome.overflow is not None
    assert outcome.overflow["file_bytes"] == 400_000
    assert outcome.overflow["original_chars"] == 1_000_000
    assert "600000 more were not kept" in outcome.text


def test_a_buffer_keeps_little_in_memory(spills):
    buffer = SpillBuffer(spills())
    for _ in range(40):
        buffer.feed(b"y" * 1024 * 1024)
    assert len(buffer._head) < 300_000
    assert buffer.finish().overflow["file_bytes"] == SPILL_CAP_BYTES


def test_nothing_that_a_log_row_cannot_hold_comes_out():
    assert feed(b"a\x00b\xff\x1b[31mred\x1b[0m", None).text == "a\ufffdb\ufffdred"
    assert limit_text("a\x00\ud800", None).text == "a\ufffd\ufffd"


def test_a_trailer_is_shown_in_either_case(spills):
    assert limit_text("a", None, trailer="\n[exit code: 1]").text == "a\n[exit code: 1]"
    long = limit_text("a" * 60_000, spills(), trailer="\n[exit code: 1]")
    assert re.search(r"a\n\[exit code: 1\]$", long.text)
