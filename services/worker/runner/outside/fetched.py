"""Contents that came from elsewhere, as the tools that work on files take them.

`read` and `edit` are written for a view of a file system. Here they are given one that holds a single file in memory,
so a file on a worker's machine is read and edited by the very rules that hold for one in a sandbox.
"""

import base64
import binascii
import io
import os
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from services.worker.tools import FileView, ToolFailed
from services.worker.tools.overflow import OpenSpill, SpillFile
from services.worker.tools.resolve import Opened


@dataclass(slots=True)
class _OneFile:
    data: bytes
    written: bytes | None = None

    def open_file(self, path: str) -> tuple[Opened, os.stat_result]:
        """The file, whatever it is called."""
        fd = os.memfd_create("fetched", os.MFD_CLOEXEC)
        try:
            with open(fd, "wb", closefd=False) as stream:
                stream.write(self.data)
            os.lseek(fd, 0, os.SEEK_SET)
            return Opened(fd, path), os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise

    def write_file(self, path: str, data: bytes) -> str:
        """Keep what is to be written."""
        self.written = data
        return path


class FetchedFile:
    """One file of a worker's machine, as the worker sent it."""

    def __init__(self, path: str, answer: Any) -> None:
        """Raises ToolFailed for an answer that holds no content."""
        self._file = _OneFile(_decoded(path, answer))

    @property
    def view(self) -> FileView:
        """A view that has just this file."""
        return cast(FileView, self._file)

    @property
    def written(self) -> bytes | None:
        """What a tool wrote in its place."""
        return self._file.written


def encoded(data: bytes) -> dict[str, str]:
    """`content` and `encoding` of a payload."""
    try:
        return {"content": data.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"content": base64.b64encode(data).decode(), "encoding": "base64"}


def _decoded(path: str, answer: Any) -> bytes:
    content = answer.get("content") if isinstance(answer, dict) else None
    if not isinstance(content, str):
        raise ToolFailed(f"{path}: the worker answered without the file's content")
    if answer.get("encoding") != "base64":
        return content.encode()
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise ToolFailed(f"{path}: the worker's answer can't be decoded") from None


class _Kept(io.BytesIO):
    """Can be read when it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.content = b""

    def close(self) -> None:
        """Keep what was written."""
        if not self.closed:
            self.content = self.getvalue()
        super().close()


class CapturedSpill:
    """A spill file that is kept in memory until a worker has it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stream: _Kept | None = None

    @property
    def content(self) -> bytes | None:
        """What was spilled; None where nothing was."""
        return self._stream.content if self._stream is not None else None

    @property
    def opener(self) -> OpenSpill:
        """Opens it."""
        return self._open

    def _open(self) -> SpillFile:
        self._stream = _Kept()
        return SpillFile(cast(BinaryIO, self._stream), self.path)
