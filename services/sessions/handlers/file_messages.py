"""Files as messages, and uploads as they come in."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from kit.clock import rfc3339
from managed_agents.sessions.v1 import files_pb2 as pb
from services.sessions.domain import file as rules
from services.sessions.domain.file import Purpose, StoredFile
from services.sessions.domain.file_errors import FileTooLarge, InvalidFile

PURPOSES: dict[int, Purpose] = {
    pb.FILE_PURPOSE_UPLOAD: Purpose.UPLOAD,
    pb.FILE_PURPOSE_OUTPUT: Purpose.OUTPUT,
    pb.FILE_PURPOSE_ARTIFACT: Purpose.ARTIFACT,
    pb.FILE_PURPOSE_MOUNT: Purpose.MOUNT,
}
_WIRE: dict[str, Any] = {purpose.value: number for number, purpose in PURPOSES.items()}


class Upload:
    """One upload: what its start says, its bytes while they pass, and what its end adds."""

    def __init__(self, start: pb.UploadFileStart) -> None:
        purpose = PURPOSES.get(start.purpose)
        if purpose is None or purpose is Purpose.MOUNT:
            raise InvalidFile("The purpose of an upload must be UPLOAD, OUTPUT or ARTIFACT.", field="purpose")
        self.purpose = purpose
        self.session_id = start.session_id
        self.path = _path(purpose, start)
        given = start.name or self.path
        self.media_type = rules.read_media_type(start.media_type, rules.safe_name(given, ""))
        self.name = rules.safe_name(given, self.media_type)
        highest = rules.MAX_OUTPUT_BYTES if purpose is Purpose.OUTPUT else rules.MAX_FILE_BYTES
        self.max_bytes = min(start.max_bytes, highest) if start.max_bytes > 0 else highest
        self.end: pb.UploadFileEnd | None = None
        self.size = 0
        self._head = bytearray()

    async def chunks(self, requests: AsyncIterator[Any], now: datetime) -> AsyncIterator[bytes]:
        """The bytes as they come. What is wrong with them, or with the end, is raised here, so that nothing is kept."""
        async for request in requests:
            part = request.WhichOneof("part")
            if part == "chunk":
                chunk = request.chunk
                self._take(chunk)
                yield chunk
            elif part == "end":
                end: pb.UploadFileEnd = request.end
                self.end = end
                rules.expires_at(end.expires_in_seconds, now)
                return
            else:
                break
        raise InvalidFile("The upload was cut off.", field="file")

    def file(self, file_id: str, sha256: str, now: datetime) -> StoredFile:
        """The row, once the bytes are safe."""
        assert self.end is not None
        preview, truncated = rules.preview_of(bytes(self._head), self.size, self.media_type)
        return StoredFile(
            id=file_id,
            purpose=self.purpose.value,
            name=self.name,
            media_type=self.media_type,
            size_bytes=self.size,
            sha256=sha256,
            downloadable=True,
            session_id=self.session_id,
            path=self.path,
            preview=preview,
            preview_truncated=truncated,
            created_at=now,
            updated_at=now,
            expires_at=rules.expires_at(self.end.expires_in_seconds, now),
            archived_at=None,
        )

    def _take(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > self.max_bytes:
            raise FileTooLarge(f"The file is larger than {self.max_bytes} bytes, the most that is taken.", field="file")
        if len(self._head) < rules.PREVIEW_BYTES:
            self._head += chunk[: rules.PREVIEW_BYTES - len(self._head)]


def file_message(file: StoredFile) -> pb.File:
    """The row as a message."""
    message = pb.File(
        id=file.id,
        purpose=_WIRE[file.purpose],
        name=file.name,
        media_type=file.media_type,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        downloadable=file.downloadable,
        session_id=file.session_id,
        path=file.path,
        created_at=rfc3339(file.created_at),
        updated_at=rfc3339(file.updated_at),
        expires_at=rfc3339(file.expires_at) if file.expires_at else "",
        archived_at=rfc3339(file.archived_at) if file.archived_at else "",
    )
    if file.preview is not None:
        message.preview = file.preview
        message.preview_truncated = file.preview_truncated
    return message


def _path(purpose: Purpose, start: pb.UploadFileStart) -> str:
    if purpose is Purpose.UPLOAD:
        if start.session_id or start.path:
            raise InvalidFile("An upload of a client belongs to no session and has no path.", field="path")
        return ""
    if purpose is Purpose.ARTIFACT:
        return rules.read_artifact_path(start.path)
    return rules.read_output_path(start.path)
