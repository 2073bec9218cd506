"""What a session leaves under /mnt/session/outputs becomes files of the session, before its turn ends.

Looked at only where tools ran in the turn. A file that has not changed since it was last looked at costs one look at
its status; a changed one is read and hashed, and sent only where its content is new. The same path keeps its file id.
What was deleted stays listed. Links and devices are never followed or read. One pass takes a bounded number of new
files and bytes: the rest is told, and taken by the next. A failure is no failure of the turn: the next one looks again.
"""

import asyncio
import hashlib
import os
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kit import failpoints
from kit.errors import DeadlineExceeded, DomainError, FailedPrecondition, InvalidArgument, Unavailable
from kit.telemetry import log
from managed_agents.sessions.v1.common_pb2 import Page
from managed_agents.sessions.v1.files_pb2 import (
    FILE_PURPOSE_OUTPUT,
    ListFilesRequest,
    UploadFileEnd,
    UploadFileRequest,
    UploadFileStart,
)
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.workspace.ground import Ground
from services.worker.runner.workspace.mount import Mount
from services.worker.runner.workspace.placing import opened_folder, split

OUTPUTS = "/mnt/session/outputs"
MAX_NEW_FILES = 100
MAX_FILE_BYTES = 100 * 1024 * 1024
MAX_PASS_BYTES = 500 * 1024 * 1024
MAX_LOOKED_AT = 20_000
MAX_DEPTH = 32
_CHUNK_BYTES = 1024 * 1024
_SECONDS = 120.0
_PAGE = 1000
_PATIENCE_SECONDS, _PAUSE_SECONDS = 20.0, 0.5
_MOST_NAMED = 10

# What a file's status says of whether it changed: inode, size, times of content and of status.
Look = tuple[int, int, int, int]


@dataclass(slots=True)
class _Seen:
    """What this process knows of one session's outputs."""

    # By path: how the file looked when its content was recorded.
    looks: dict[str, Look] = field(default_factory=dict)
    # By path: the hash of what is recorded; None before it was asked for.
    recorded: dict[str, str] | None = None
    told: frozenset[str] = frozenset()
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _Pass:
    """One walk."""

    found: list[tuple[str, Look]] = field(default_factory=list)
    # Paths that are not taken, with the reason.
    refused: dict[str, str] = field(default_factory=dict)


class OutputsMount(Mount):
    """Sends outputs through FilesService."""

    name = "outputs"

    def __init__(self, files: Any, *, max_new_files: int = MAX_NEW_FILES, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        """`files` is the stub of FilesService."""
        self._files = files
        self._max_new_files = max_new_files
        self._max_file_bytes = max_file_bytes

    def applies(self, grant: TurnGrant) -> bool:
        """Every session has outputs; nothing is done where no tool ran."""
        return True

    async def before_idle(self, ground: Ground) -> None:
        """Record what is new or changed."""
        seen: _Seen = ground.memory.setdefault(self.name, _Seen())
        until = time.monotonic() + _PATIENCE_SECONDS
        async with seen.lock:
            while True:
                try:
                    return await self._collect(ground, seen)
                except (DomainError, OSError) as failure:
                    seen.recorded = None
                    passes = isinstance(failure, Unavailable | DeadlineExceeded) and time.monotonic() < until
                    log.warning(
                        "outputs not collected", session_id=ground.session_id, again=passes, error=repr(failure)
                    )
                    if not passes:
                        return None
                # The end of the turn needs the same service: it is worth to wait for it.
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _collect(self, ground: Ground, seen: _Seen) -> None:
        walked = await asyncio.to_thread(_walk, ground, self._max_file_bytes)
        changed = [(path, look) for path, look in walked.found if seen.looks.get(path) != look]
        if changed and seen.recorded is None:
            seen.recorded = await self._recorded(ground.session_id)
        recorded = seen.recorded or {}
        new = spent = 0
        for path, look in changed:
            if path not in recorded and new >= self._max_new_files:
                walked.refused[path] = f"one turn records at most {self._max_new_files} new files"
            elif spent + look[1] > MAX_PASS_BYTES:
                walked.refused[path] = f"one turn records at most {MAX_PASS_BYTES} bytes"
            else:
                new += path not in recorded
                spent += look[1]
                if refusal := await self._record(ground, path, look, seen, recorded):
                    walked.refused[path] = refusal
        await failpoints.point("runner.outputs.recorded")
        _tell(ground, seen, walked.refused)

    async def _recorded(self, session_id: str) -> dict[str, str]:
        """The hashes of what is recorded, by path."""
        found: dict[str, str] = {}
        cursor = ""
        while True:
            request = ListFilesRequest(page=Page(limit=_PAGE, cursor=cursor), scope_id=session_id)
            page = await self._files.ListFiles(request, retry=True)
            found |= {each.path: each.sha256 for each in page.files if each.purpose == FILE_PURPOSE_OUTPUT}
            cursor = page.page_info.next_cursor
            if not cursor:
                return found

    async def _record(self, ground: Ground, path: str, look: Look, seen: _Seen, recorded: dict[str, str]) -> str:
        """Send a file where its content is new. Why it was refused; empty where it was not."""
        fd = await asyncio.to_thread(_open, ground, path)
        if fd < 0:
            # It went away, or became something else: the next walk tells.
            return ""
        try:
            sha256 = await asyncio.to_thread(_hash, fd, look[1])
            if recorded.get(path) != sha256:
                try:
                    await self._files.UploadFile(
                        _messages(ground.session_id, path, fd, look[1], sha256), timeout_seconds=_SECONDS
                    )
                except (InvalidArgument, FailedPrecondition) as refused:
                    if not sha256_is_off(refused):
                        seen.looks[path] = look
                        return refused.message
                    return ""
            recorded[path] = sha256
            seen.looks[path] = look
        finally:
            os.close(fd)
        return ""


def sha256_is_off(refused: DomainError) -> bool:
    """Whether the file was written to while it was sent: it is taken once it is still."""
    return refused.field == "sha256"


def _walk(ground: Ground, max_file_bytes: int) -> _Pass:
    """All regular files below the outputs, without following anything."""
    walked = _Pass()
    waiting: list[tuple[str, int]] = [(OUTPUTS, 0)]
    looked_at = 0
    while waiting:
        folder, depth = waiting.pop()
        for name, status in _listed(ground, folder):
            looked_at += 1
            if looked_at > MAX_LOOKED_AT:
                walked.refused[OUTPUTS] = f"more than {MAX_LOOKED_AT} files and folders are in it"
                return walked
            path = f"{folder}/{name}"
            if stat.S_ISDIR(status.st_mode):
                if depth < MAX_DEPTH:
                    waiting.append((path, depth + 1))
                else:
                    walked.refused[path] = f"folders are nested deeper than {MAX_DEPTH}"
            elif refusal := _refusal(name, status, max_file_bytes):
                walked.refused[path] = refusal
            else:
                walked.found.append((path, _look(status)))
    walked.found.sort()
    return walked


def _listed(ground: Ground, folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        try:
            with opened_folder(ground.folder, folder) as folder_fd, os.scandir(folder_fd) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        yield entry.name, entry.stat(follow_symlinks=False)
        except OSError as error:
            log.info("a folder of outputs was not read", session_id=ground.session_id, error=repr(error))


def _refusal(name: str, status: os.stat_result, max_file_bytes: int) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if status.st_nlink > 1:
        return "it has several names (hard links)"
    if status.st_size > max_file_bytes:
        return f"it is larger than {max_file_bytes} bytes"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is no UTF-8"
    return "" if name.isprintable() else "its name has control characters"


def _look(status: os.stat_result) -> Look:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _open(ground: Ground, path: str) -> int:
    """A descriptor of a file that is still a plain one; -1 where it is not."""
    folder, name = split(path)
    try:
        with opened_folder(ground.folder, folder) as folder_fd:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    except OSError:
        return -1
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return fd
    os.close(fd)
    return -1


def _hash(fd: int, size: int) -> str:
    digest = hashlib.sha256()
    at = 0
    while at < size and (chunk := os.pread(fd, min(_CHUNK_BYTES, size - at), at)):
        digest.update(chunk)
        at += len(chunk)
    return digest.hexdigest()


async def _messages(session_id: str, path: str, fd: int, size: int, sha256: str) -> AsyncIterator[UploadFileRequest]:
    start = UploadFileStart(
        purpose=FILE_PURPOSE_OUTPUT, name=split(path)[1], session_id=session_id, path=path, max_bytes=size
    )
    yield UploadFileRequest(start=start)
    at = 0
    while at < size and (chunk := await asyncio.to_thread(os.pread, fd, min(_CHUNK_BYTES, size - at), at)):
        yield UploadFileRequest(chunk=chunk)
        at += len(chunk)
    yield UploadFileRequest(end=UploadFileEnd(sha256=sha256))


def _tell(ground: Ground, seen: _Seen, refused: dict[str, str]) -> None:
    """Say once what is not taken, and why."""
    told = frozenset(f"{path}: {why}" for path, why in refused.items())
    if not told or told <= seen.told:
        seen.told = told
        return
    named = sorted(told)[:_MOST_NAMED]
    more = f"; and {len(told) - len(named)} more" if len(told) > len(named) else ""
    ground.tell("outputs_incomplete", f"These outputs were not recorded: {'; '.join(named)}{more}.")
    seen.told = told
