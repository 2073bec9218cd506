"""Archives of strangers: what is refused, that nothing leads elsewhere, and that no bomb costs more than the limits."""

from __future__ import annotations

import io
import stat
import struct
import time
import tracemalloc
import unicodedata
import warnings
import zipfile
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.archives import ArchiveRefused, Limits, PackedFile, check_names, clean_name, read_zip, write_zip

LIMITS = Limits(files=50, total_bytes=1_000_000)


def _zip(*entries: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Duplicates are what some of these are about.
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name, data in entries:
                archive.writestr(name, data)
    return buffer.getvalue()


def _special(name: str, mode: int, data: bytes = b"target") -> tuple[zipfile.ZipInfo, bytes]:
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = mode << 16
    return entry, data


def test_plain_archives_are_read_and_folders_left_out() -> None:
    tool = zipfile.ZipInfo("a/tool.sh")
    tool.create_system, tool.external_attr = 3, (stat.S_IFREG | 0o755) << 16
    data = _zip(("a/", b""), ("a/b.txt", b"text"), (tool, b"#!/bin/sh"), ("a/é.txt", b""))
    assert read_zip(data, LIMITS) == [
        PackedFile("a/b.txt", b"text"),
        PackedFile("a/tool.sh", b"#!/bin/sh", executable=True),
        PackedFile("a/é.txt", b""),
    ]


NAMES = [
    *(
        "../x",
        "a/../../x",
        "a/..",
        "..",
        "/abs",
        "//abs",
        "/",
        "C:\\x",
        "C:x",
        "c:/x",
        "a\\b",
        "\\\\host\\share",
        "a//b",
    ),
    *("./a", "a/./b", ".", "", "a\x00b", "a\nb", "a\x7f", "a\u2028b", "a\ud800", "x" * 256, "a/" * 24 + "b"),
    *("é" * 128, "/".join(["a" * 200] * 6), "~/../x", "a/\x1b[31m"),
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere_or_are_none_are_refused(name: str) -> None:
    with pytest.raises(ArchiveRefused):
        clean_name(name)


@pytest.mark.parametrize("name", [name for name in NAMES if "\ud800" not in name and name != ""])
def test_an_archive_with_such_a_name_is_refused_whole(name: str) -> None:
    # The writer of archives cleans names by itself; this one has them as they are.
    size = len(name.encode())
    # One that has other characters as well is marked as UTF-8.
    placeholder = "P" * size if name.isascii() else "é" + "P" * (size - 2)
    data = _zip(("fine.txt", b"x"), (placeholder, b"x")).replace(placeholder.encode(), name.encode())
    with pytest.raises(ArchiveRefused):
        read_zip(data, LIMITS)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=6).map("/".join))
def test_a_name_that_is_taken_stays_below(name: str) -> None:
    try:
        taken = clean_name(name)
    except ArchiveRefused:
        return
    path = PurePosixPath("/root") / taken
    assert path.is_relative_to("/root") and path != PurePosixPath("/root")
    assert not {"..", ".", ""} & set(taken.split("/")) and "\\" not in taken and "\x00" not in taken


@pytest.mark.parametrize(
    "names",
    [
        ("a", "a"),
        ("a", "A"),
        ("dir/a", "DIR/b"),
        ("straße", "STRASSE"),
        (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")),
        (unicodedata.normalize("NFC", "é/x"), unicodedata.normalize("NFD", "É/y")),
        ("a", "a/b"),
        ("A/b", "a"),
    ],
)
def test_names_that_would_meet_on_some_disk_are_refused(names: tuple[str, ...]) -> None:
    for order in (names, names[::-1]):
        with pytest.raises(ArchiveRefused):
            check_names(order)
        with pytest.raises(ArchiveRefused):
            read_zip(_zip(*((name, b"x") for name in order)), LIMITS)


@pytest.mark.parametrize(
    "mode",
    [stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o644, stat.S_IFCHR | 0o644, stat.S_IFBLK | 0o644, stat.S_IFSOCK | 0o644],
)
def test_links_and_devices_are_refused(mode: int) -> None:
    """Also the file that would be written through the link."""
    with pytest.raises(ArchiveRefused, match="link or no plain file"):
        read_zip(_zip(_special("link", mode, b"/etc"), ("link/passwd", b"x")), LIMITS)


def test_a_folder_that_is_a_file_and_a_file_that_is_a_folder_are_refused() -> None:
    for entry in (_special("a/", stat.S_IFREG | 0o644, b""), _special("a", stat.S_IFDIR | 0o755, b"x")):
        with pytest.raises(ArchiveRefused):
            read_zip(_zip(entry), LIMITS)


def test_an_encrypted_entry_is_refused() -> None:
    data = bytearray(_zip(("a", b"secret")))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    with pytest.raises(ArchiveRefused, match="encrypted"):
        read_zip(bytes(data), LIMITS)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_packing_is_refused(method: int) -> None:
    with pytest.raises(ArchiveRefused, match="unusual way"):
        read_zip(_zip(("a", b"x"), method=method), LIMITS)


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\x03\x04", b"no archive", b"\x1f\x8b" + bytes(100), b"ustar" * 200])
def test_other_data_is_refused(data: bytes) -> None:
    with pytest.raises(ArchiveRefused):
        read_zip(data, LIMITS)


def test_more_files_than_allowed_are_refused_before_the_directory_is_read() -> None:
    data = _zip(*((f"f{number}", b"") for number in range(51)))
    with pytest.raises(ArchiveRefused, match="50 files"):
        read_zip(data, LIMITS)
    huge = _zip(*((f"f{number}", b"") for number in range(100_000)), method=zipfile.ZIP_STORED)
    began = time.process_time()
    with pytest.raises(ArchiveRefused):
        read_zip(huge, Limits())
    assert time.process_time() - began < 0.5


def test_a_bomb_costs_no_more_than_the_limits() -> None:
    limits = Limits(files=50, total_bytes=2_000_000, ratio=10_000)
    bomb = _zip(("zeros", bytes(50_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveRefused, match=r"times as large|unpacked"):
            read_zip(bomb, Limits())
        with pytest.raises(ArchiveRefused, match="unpacked"):
            read_zip(bomb, limits)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_bomb_that_lies_about_its_size_is_refused() -> None:
    """The directory says ten bytes, the data unpack to a million."""
    data = bytearray(_zip(("zeros", bytes(900_000))))
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", data, data.index(signature) + offset, 10)
    with pytest.raises(ArchiveRefused):
        read_zip(bytes(data), LIMITS)


def test_archives_within_archives_stay_packed() -> None:
    inner = _zip(("zeros", bytes(900_000)))
    assert read_zip(_zip(("inner.zip", inner)), LIMITS) == [PackedFile("inner.zip", inner)]


def test_entries_that_share_their_data_are_refused() -> None:
    """One packed block under many names, which unpacks to many times the archive."""
    data = bytearray(_zip(("a", b"x" * 5_000), ("b", b""), method=zipfile.ZIP_STORED))
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 1)
    data[second + 16 : second + 28] = data[first + 16 : first + 28]
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    with pytest.raises(ArchiveRefused):
        read_zip(bytes(data), LIMITS)


@pytest.mark.parametrize("litter", ["__MACOSX/._a", ".DS_Store", "a/.DS_Store"])
def test_litter_of_one_operating_system_is_left_out(litter: str) -> None:
    assert read_zip(_zip(("a/b", b"x"), (litter, b"junk")), LIMITS) == [PackedFile("a/b", b"x")]


@given(st.binary(max_size=300))
def test_no_data_makes_it_fail_otherwise(data: bytes) -> None:
    for candidate in (data, b"PK\x03\x04" + data, _zip(("a", b"text"))[:40] + data, data + _zip(("a", b"text"))):
        try:
            for file in read_zip(candidate, LIMITS):
                assert clean_name(file.name) == file.name
        except ArchiveRefused:
            continue


@given(st.data())
def test_no_damage_makes_it_fail_otherwise(data: st.DataObject) -> None:
    archive = bytearray(_zip(("a/b.txt", b"text" * 20), ("a/c", b"x")))
    for _ in range(data.draw(st.integers(1, 4))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    try:
        files = read_zip(bytes(archive), LIMITS)
    except ArchiveRefused:
        return
    assert all(clean_name(file.name) == file.name for file in files)


_PLAIN = st.text("abcdef", min_size=1, max_size=4)


@given(st.dictionaries(st.lists(_PLAIN, min_size=1, max_size=3).map("/".join), st.binary(max_size=50), max_size=8))
def test_what_is_written_is_read_and_depends_on_nothing_else(files: dict[str, bytes]) -> None:
    packed = [PackedFile(name, data, executable=len(name) % 2 == 0) for name, data in files.items()]
    try:
        check_names(files)
    except ArchiveRefused:
        return
    data = write_zip(packed)
    assert data == write_zip(reversed(packed))
    assert read_zip(data, LIMITS) == sorted(packed, key=lambda file: file.name)
