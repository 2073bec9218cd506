"""Uploads of skills: collected within bounds, judged, and kept.

A package is held in memory until it is kept, so there are only so many at a time, and few of them are judged at once;
others wait before their first byte is read. Its bytes are safe before the row that names them is written; where
anything is refused, nothing is written.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from managed_agents.sessions.v1.skills_pb2 import CreateSkillRequest, CreateSkillVersionRequest, SkillUpload
from services.sessions.domain.skill_errors import InvalidSkillPackage
from services.sessions.domain.skill_package import MAX_UPLOAD_BYTES, SkillPackage, UploadedPart, read_package

# As many uploads may be on their way, and as many be judged: a slow caller keeps nobody else waiting.
MAX_ARRIVING = 24
MAX_JUDGED = 2
# More than any package may have: what is over it is refused while it comes in.
MAX_PARTS = 1_001
PIECE_BYTES = 1024 * 1024

M = TypeVar("M", CreateSkillRequest, CreateSkillVersionRequest)


class UploadedParts:
    """The parts of one upload, as its messages bring them."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, bytearray]] = []
        self._size = 0

    def add(self, upload: SkillUpload) -> None:
        """Take the next piece."""
        if upload.HasField("begins"):
            self._parts.append((upload.begins, bytearray()))
            if len(self._parts) > MAX_PARTS:
                raise InvalidSkillPackage(f"The upload has {MAX_PARTS} files or more, too many.", field="files")
        if not upload.data:
            return
        if not self._parts:
            raise InvalidSkillPackage("The upload begins with bytes of no file.", field="files")
        self._size += len(upload.data)
        if self._size > MAX_UPLOAD_BYTES:
            raise InvalidSkillPackage(f"The upload is larger than {MAX_UPLOAD_BYTES} bytes.", field="files")
        self._parts[-1][1].extend(upload.data)

    def finish(self) -> list[UploadedPart]:
        """All parts."""
        return [UploadedPart(name, bytes(data)) for name, data in self._parts]


class PackageReader:
    """Turns uploads into packages, a few at a time."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MAX_ARRIVING)
        self._judges = asyncio.Semaphore(MAX_JUDGED)

    async def read(self, requests: AsyncIterator[M], head: M) -> tuple[M, SkillPackage]:
        """What the messages say beside their bytes, merged into `head`, and the package that they hold."""
        async with self._room:
            parts = UploadedParts()
            async for request in requests:
                parts.add(request.upload)
                request.ClearField("upload")
                head.MergeFrom(request)
            async with self._judges:
                # Unpacking and packing 30 MiB takes a while.
                return head, await asyncio.to_thread(read_package, parts.finish())


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    """The data in pieces, as a store of blobs takes it."""
    for at in range(0, len(data), PIECE_BYTES):
        yield data[at : at + PIECE_BYTES]
