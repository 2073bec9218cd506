"""Blobs in a folder: whole or not there, named by what they hold, checked when they are read."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import failpoints
from kit.errors import Unavailable
from services.sessions.blobs import Blob, BlobMissing, FileDamaged, StorageFull
from services.sessions.blobs.base import CHUNK_BYTES
from services.sessions.blobs.local import INCOMING, LocalBlobs

SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7]


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[LocalBlobs]:
    store = LocalBlobs(tmp_path / "files")
    yield store
    await store.close()


async def pieces(content: bytes, size: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
    for at in range(0, len(content), size):
        yield content[at : at + size]


async def read(blobs: LocalBlobs, sha256: str, *part: int) -> bytes:
    return b"".join([chunk async for chunk in blobs.open(sha256, *part)])


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_put_is_read_back(blobs: LocalBlobs, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    blob = await blobs.put(pieces(content, 700_000))
    assert blob == Blob(hashlib.sha256(content).hexdigest(), size)
    assert await read(blobs, blob.sha256) == content and await blobs.size(blob.sha256) == size
    (path,) = files(tmp_path)
    assert path == tmp_path / "files" / blob.sha256[:2] / blob.sha256
    assert path.stat().st_mode & 0o777 == 0o600
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in (path.parent, tmp_path / "files" / INCOMING))


async def test_the_same_bytes_are_kept_once_and_put_anew(blobs: LocalBlobs, tmp_path: Path) -> None:
    first = await blobs.put(pieces(b"hello"))
    (path,) = files(tmp_path)
    os.utime(path, (1, 1))
    again = await asyncio.gather(*(blobs.put(pieces(b"hello")) for _ in range(20)))
    assert set(again) == {first} and files(tmp_path) == [path]
    (stored,) = [each async for each in blobs.list()]
    assert datetime.now(UTC) - stored.put_at < timedelta(minutes=1)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 2_600_000), length=st.none() | st.integers(0, 2_600_000))
async def test_any_part_is_that_part(blobs: LocalBlobs, start: int, length: int | None) -> None:
    content = bytes(range(256)) * 9_000
    blob = await blobs.put(pieces(content))
    end = None if length is None else start + length
    chunks = [chunk async for chunk in blobs.open(blob.sha256, start, end)]
    assert b"".join(chunks) == content[start:end] and all(0 < len(each) <= CHUNK_BYTES for each in chunks)


@pytest.mark.parametrize("part", [(), (5, 9)])
@pytest.mark.parametrize("size", [10, 3 * CHUNK_BYTES])
async def test_damaged_bytes_never_look_complete(
    blobs: LocalBlobs, tmp_path: Path, size: int, part: tuple[int, ...]
) -> None:
    content = os.urandom(size)
    blob = await blobs.put(pieces(content))
    (path,) = files(tmp_path)
    for damage in (content[:-1] + bytes([content[-1] ^ 1]), content[:-1], content + b"x", b""):
        path.write_bytes(damage)
        got = b""
        with pytest.raises(FileDamaged):
            async for chunk in blobs.open(blob.sha256, *part):
                got += chunk
        assert len(got) < max(1, len(damage)), "the last chunk is held back"
    await blobs.put(pieces(content))
    assert await read(blobs, blob.sha256) == content, "the same bytes mend a damaged copy"


@pytest.mark.parametrize("name", ["", "x", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n", "0" * 64])
async def test_nothing_lies_under_another_name(blobs: LocalBlobs, name: str) -> None:
    with pytest.raises(BlobMissing):
        await read(blobs, name)


async def test_a_link_in_place_of_a_blob_is_not_followed(blobs: LocalBlobs, tmp_path: Path) -> None:
    blob = await blobs.put(pieces(b"hello"))
    (path,) = files(tmp_path)
    secret = tmp_path / "secret"
    secret.write_bytes(b"hello")
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(Unavailable):
        await read(blobs, blob.sha256)


async def test_a_put_that_is_cut_off_leaves_nothing(blobs: LocalBlobs, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 100
        raise LookupError("gone")

    with pytest.raises(LookupError):
        await blobs.put(broken())
    assert files(tmp_path) == []

    hanging = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * 100
        hanging.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(blobs.put(endless()))
    await hanging.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files(tmp_path) == []


@pytest.mark.parametrize("point", ["blobs.written", "blobs.flushed"])
async def test_a_failure_before_the_move_leaves_nothing(blobs: LocalBlobs, tmp_path: Path, point: str) -> None:
    failpoints.arm(f"{point}=raise")
    try:
        with pytest.raises(failpoints.FailpointHit):
            await blobs.put(pieces(b"hello"))
    finally:
        failpoints.arm("")
    assert files(tmp_path) == []


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "open"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_full_or_broken_disk_is_told_and_leaves_nothing(
    blobs: LocalBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    await blobs.put(pieces(b"before"))

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(Unavailable) as told:
            await blobs.put(pieces(b"hello"))
    assert isinstance(told.value, StorageFull) == (number != errno.EIO)
    assert str(tmp_path) not in told.value.message and told.value.retry_after_seconds
    assert len(files(tmp_path)) == 1
    await blobs.put(pieces(b"hello"))


async def test_bytes_are_flushed_before_they_get_their_name_and_the_name_before_it_is_told(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    names: dict[int, str] = {}
    real_open, real_fsync, real_rename = os.open, os.fsync, os.rename

    def opened(path: Any, *arguments: Any, **options: Any) -> int:
        handle = real_open(path, *arguments, **options)
        names[handle] = "folder" if Path(path).is_dir() else "file"
        return handle

    def flushed(handle: int) -> None:
        done.append(f"flush {names[handle]}")
        real_fsync(handle)

    def renamed(*arguments: Any) -> None:
        done.append("rename")
        real_rename(*arguments)

    await blobs.put(pieces(b"first"))
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    await blobs.put(pieces(b"first"))
    assert done == ["flush file", "rename", "flush folder"]


async def test_leftovers_go_when_they_are_old(blobs: LocalBlobs, tmp_path: Path) -> None:
    await blobs.put(pieces(b"hello"))
    old, young = (tmp_path / "files" / INCOMING / name for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    assert await blobs.remove_leftovers(datetime.now(UTC) - timedelta(hours=1)) == 1
    assert young.exists() and not old.exists()


async def test_what_is_on_its_way_is_no_leftover_however_old_it_is(blobs: LocalBlobs, tmp_path: Path) -> None:
    async def swept() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 100
            assert await blobs.remove_leftovers(datetime.now(UTC) + timedelta(hours=1)) == 0

    blob = await blobs.put(swept())
    assert await read(blobs, blob.sha256) == b"x" * 300


async def test_delete_and_list(blobs: LocalBlobs) -> None:
    assert [each async for each in blobs.list()] == []
    kept, gone = await blobs.put(pieces(b"kept")), await blobs.put(pieces(b"gone"))
    await blobs.delete(gone.sha256)
    await blobs.delete(gone.sha256)
    assert [each.sha256 async for each in blobs.list()] == [kept.sha256]
    assert await blobs.size(gone.sha256) is None


async def test_a_reader_that_leaves_early_lets_the_file_go(blobs: LocalBlobs) -> None:
    blob = await blobs.put(pieces(os.urandom(4 * CHUNK_BYTES)))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        chunks = blobs.open(blob.sha256)
        await anext(chunks)
        await chunks.aclose()  # type: ignore[attr-defined]
    await blobs.size(blob.sha256)
    assert len(os.listdir("/proc/self/fd")) <= before + 4
