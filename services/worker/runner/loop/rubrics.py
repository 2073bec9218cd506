"""The text of a rubric: what the declaration holds, or what the file holds that it names.

The file is read when it is needed, evaluation by evaluation: it may have been archived, or have expired, since.
"""

from collections.abc import Mapping
from typing import Any

from kit.errors import DomainError, NotFound, Unavailable
from managed_agents.sessions.v1.files_pb2 import DownloadFileRequest

MAX_BYTES = 256 * 1024
READ_SECONDS = 30.0


class RubricUnreadable(Exception):
    """There is no text to measure by; the message says why. `missing` where the file itself is not there."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.missing = missing


class RubricReader:
    """Reads rubrics, by the files that the sessions service keeps."""

    def __init__(self, files: Any) -> None:
        """`files` is a stub of FilesService, which is called in the context of the turn."""
        self._files = files

    async def read(self, rubric: Mapping[str, Any]) -> str:
        """The text. RubricUnreadable where there is none, Unavailable where another attempt may find it."""
        if rubric.get("type") == "text":
            return rubric["content"]
        file_id = rubric.get("file_id")
        try:
            content = await self._download(file_id)
        except Unavailable:
            raise
        except NotFound as error:
            message = f"The rubric can't be read: there is no file {file_id}. {error.message}"
            raise RubricUnreadable(message, missing=True) from error
        except DomainError as error:
            raise RubricUnreadable(f"The rubric can't be read from file {file_id}. {error.message}") from error
        try:
            text = content.decode("utf-8-sig").replace("\x00", "")
        except UnicodeDecodeError:
            raise RubricUnreadable(f"The rubric can't be read: file {file_id} is no UTF-8 text.") from None
        if not text.strip():
            raise RubricUnreadable(f"The rubric can't be read: file {file_id} holds no text.")
        return text

    async def _download(self, file_id: Any) -> bytes:
        request = DownloadFileRequest(file_id=str(file_id), for_session=True)
        content = bytearray()
        async for part in self._files.DownloadFile(request, timeout_seconds=READ_SECONDS):
            if part.WhichOneof("part") == "start" and part.start.file.size_bytes > MAX_BYTES:
                raise RubricUnreadable(
                    f"The rubric can't be read: file {file_id} is larger than {MAX_BYTES} bytes, the most for a rubric."
                )
            content += part.chunk
        return bytes(content)
