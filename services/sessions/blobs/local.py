"""Blobs in a folder: `<root>/<first two digits>/<sha256>`, written beside and moved into place.

A put writes a file of its own under `<root>/incoming`, flushes it, moves it under its hash and flushes the folder, so a
blob is whole or not there. Bytes that lie there already are replaced by the same ones: that mends a damaged copy, and
tells the sweep that somebody counts on them. All blocking calls run in threads of the store, hashing with them, while
the loop already waits for the next chunk.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from kit import failpoints
from kit.errors import Unavailable
from kit.telemetry import log
from services.sessions.blobs.base import (
    CHUNK_BYTES,
    FULL_RETRY_SECONDS,
    Blob,
    BlobMissing,
    FileDamaged,
    StorageFull,
    Stored,
)

INCOMING = "incoming"
MAX_CHECKED = 1_000
_HASH = re.compile(r"[0-9a-f]{64}")
_FULL = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


class LocalBlobs:
    """The blobs of one folder, which several replicas on one host, or on one shared disk, may use."""

    def __init__(self, root: Path, *, threads: int = 4) -> None:
        self._root = root
        self._threads = ThreadPoolExecutor(threads, "blobs")
        # Which copies were found sound, so that a part can be read without reading the rest again.
        self._checked: OrderedDict[str, tuple[int, int]] = OrderedDict()

    async def put(self, chunks: AsyncIterator[bytes]) -> Blob:
        """Store the bytes, durably; what is not complete leaves nothing behind."""
        incoming = _Incoming(self._root)
        pending: asyncio.Future[None] | None = None
        kept = False
        try:
            await self._run(incoming.create)
            async for chunk in chunks:
                # One chunk is written while the next one is on its way.
                if pending is not None:
                    await pending
                pending = self._run(incoming.write, chunk)
            if pending is not None:
                await pending
            await failpoints.point("blobs.written")
            await self._run(incoming.flush)
            await failpoints.point("blobs.flushed")
            await self._run(incoming.keep)
            kept = True
            await failpoints.point("blobs.kept")
            return Blob(incoming.sha256, incoming.size)
        finally:
            if not kept:
                await asyncio.shield(self._drop(incoming, pending))

    async def open(self, sha256: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes, or a part of them; their hash is checked either way."""
        reading = await self._run(_Reading, self._path(sha256))
        pending: asyncio.Future[bytes] | None = None
        try:
            stop = reading.size if end is None else min(end, reading.size)
            whole = start == 0 and stop == reading.size
            if not whole and self._checked.get(sha256) != reading.identity:
                await self._run(reading.check_whole, sha256)
                self._remember(sha256, reading.identity)
            at = start
            if whole and not stop:
                reading.compare(sha256)
            if at < stop:
                pending = self._run(reading.read, at, stop, whole)
            while pending is not None and at < stop:
                chunk = await pending
                if not chunk:
                    raise FileDamaged("A stored file is shorter than it was.", sha256=sha256)
                at += len(chunk)
                if at < stop:
                    pending = self._run(reading.read, at, stop, whole)
                elif whole:
                    reading.compare(sha256)
                yield chunk
        finally:
            if pending is None or pending.done():
                reading.close()
            else:
                pending.add_done_callback(lambda _: reading.close())

    async def size(self, sha256: str) -> int | None:
        """How many bytes lie there."""
        try:
            return (await self._run(os.stat, self._path(sha256))).st_size
        except FileNotFoundError:
            return None

    async def delete(self, sha256: str) -> None:
        """Remove the bytes."""
        await self._run(lambda: self._path(sha256).unlink(missing_ok=True))

    async def list(self) -> AsyncIterator[Stored]:
        """Every blob, a folder at a time."""
        for number in range(256):
            for found in await self._run(_stored, self._root / f"{number:02x}"):
                yield found

    async def remove_leftovers(self, older_than: datetime) -> int:
        """Remove what puts that were cut off left behind; how many files."""
        return await self._run(_remove_older, self._root / INCOMING, older_than.timestamp())

    async def close(self) -> None:
        """Let the threads go."""
        await asyncio.to_thread(self._threads.shutdown, True)

    def _path(self, sha256: str) -> Path:
        if not _HASH.fullmatch(sha256):
            raise BlobMissing("This is no hash of a stored file.", sha256=sha256[:80])
        return self._root / sha256[:2] / sha256

    def _remember(self, sha256: str, identity: tuple[int, int]) -> None:
        self._checked[sha256] = identity
        if len(self._checked) > MAX_CHECKED:
            self._checked.popitem(last=False)

    def _run(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return asyncio.ensure_future(self._call(function, *arguments))

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise translated(error) from error

    async def _drop(self, incoming: "_Incoming", pending: "asyncio.Future[None] | None") -> None:
        if pending is not None:
            await asyncio.wait({pending})
            pending.exception() if not pending.cancelled() else None
        await asyncio.get_running_loop().run_in_executor(self._threads, incoming.drop)


class _Incoming:
    """One file on its way; its methods run in threads, one at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / INCOMING / secrets.token_hex(16)
        self._file = -1
        self._hash = hashlib.sha256()
        self.size = 0
        self.sha256 = ""

    def create(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._file = os.open(self._path, flags, 0o600)
        except FileNotFoundError:
            _make_folder(self._path.parent)
            self._file = os.open(self._path, flags, 0o600)
        # Tells the sweep of every process that somebody works on it, and ends with this process.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        if not os.fstat(self._file).st_nlink:
            # The sweep was faster than the lock.
            os.close(self._file)
            self.create()

    def write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[os.write(self._file, view) :]
        self._hash.update(chunk)
        self.size += len(chunk)

    def flush(self) -> None:
        os.fsync(self._file)

    def keep(self) -> None:
        self.sha256 = self._hash.hexdigest()
        folder = self._root / self.sha256[:2]
        try:
            os.rename(self._path, folder / self.sha256)
        except FileNotFoundError:
            _make_folder(folder)
            os.rename(self._path, folder / self.sha256)
        _flush_folder(folder)
        os.close(self._file)
        self._file = -1

    def drop(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._path.unlink(missing_ok=True)


class _Reading:
    """One open blob; its methods run in threads, one at a time."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise BlobMissing("A stored file is missing.", sha256=path.name) from None
        found = os.fstat(self._file)
        self.size = found.st_size
        self.identity = (found.st_ino, found.st_mtime_ns)
        self._hash = hashlib.sha256()

    def read(self, at: int, stop: int, hashed: bool) -> bytes:
        chunk = os.pread(self._file, min(CHUNK_BYTES, stop - at), at)
        if hashed:
            self._hash.update(chunk)
        return chunk

    def check_whole(self, sha256: str) -> None:
        at = 0
        while chunk := os.pread(self._file, CHUNK_BYTES, at):
            self._hash.update(chunk)
            at += len(chunk)
        self.compare(sha256)

    def compare(self, sha256: str) -> None:
        if self._hash.hexdigest() != sha256:
            raise FileDamaged("A stored file is not what it was when it was stored.", sha256=sha256)

    def close(self) -> None:
        os.close(self._file)


def translated(error: OSError) -> Exception:
    """What a fault of the disk means to a caller."""
    if error.errno in _FULL:
        return StorageFull(
            "The disk that keeps files is full. Free some space, then try again.",
            retry_after_seconds=FULL_RETRY_SECONDS,
        )
    log.error("the folder of files can't be used", cause=str(error))
    return Unavailable("The folder that keeps files can't be used now. Try again shortly.")


def _make_folder(folder: Path) -> None:
    """Makes the folder and those above it, so that they survive a crash too."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        _flush_folder(each.parent)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _stored(folder: Path) -> list[Stored]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _HASH.fullmatch(entry.name):
                    put_at = datetime.fromtimestamp(entry.stat(follow_symlinks=False).st_mtime, UTC)
                    found.append(Stored(entry.name, put_at))
    except FileNotFoundError:
        pass
    return found


def _remove_older(folder: Path, before: float) -> int:
    removed = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.stat(follow_symlinks=False).st_mtime < before and _remove_unless_held(entry.path):
                    removed += 1
    except FileNotFoundError:
        pass
    return removed


def _remove_unless_held(path: str) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        os.unlink(path)
        return True
    finally:
        os.close(handle)
