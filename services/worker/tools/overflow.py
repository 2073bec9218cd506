"""The one contract for tool output that is too long for a model.

A text of more than `LIMIT_CHARS` characters goes whole into a spill file that
the agent can read, and the model gets a marker with the figures, the path and
the first `PREVIEW_CHARS` characters. Every tool, MCP tools included, comes
through here. A spill that cannot be written says `file: none`; it never fails
the call. `SpillBuffer` is for output that arrives in pieces: its memory is
bounded whatever the length, and it stops writing at `SPILL_CAP_BYTES`.
"""

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from services.worker.tools.outcome import ToolOutcome, storable

LIMIT_CHARS = 50_000
PREVIEW_CHARS = 2_000
SPILL_CAP_BYTES = 10 * 1024 * 1024
# No UTF-8 text of up to LIMIT_CHARS characters is longer than this.
_MEMORY_BYTES = 4 * LIMIT_CHARS
# In UTF-8 every character has exactly one byte that is not one of these; counting
# so costs a fraction of decoding, which matters when a command floods.
_CONTINUATION = bytes(range(0x80, 0xC0))
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


@dataclass(frozen=True, slots=True)
class SpillFile:
    """An open new file and the path under which the agent finds it."""

    stream: BinaryIO
    path: str


class ScrubStream(Protocol):
    """Output in pieces, on its way through."""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on by now."""
        ...

    def finish(self) -> bytes:
        """What is left."""
        ...


class Scrub(Protocol):
    """Takes out of a tool's output what must not be shown."""

    def text(self, text: str) -> str:
        """The text without it."""
        ...

    def stream(self) -> ScrubStream:
        """The same for output in pieces."""
        ...


# Makes a new spill file; raises OSError where it cannot.
OpenSpill = Callable[[], SpillFile]


def limit_text(text: str, open_spill: OpenSpill | None, *, is_error: bool = False, trailer: str = "") -> ToolOutcome:
    """Return `text` as an outcome, spilled if it is too long.

    `trailer` is short text that the model must see in either case.
    """
    text = storable(text)
    if len(text) + len(trailer) <= LIMIT_CHARS:
        return ToolOutcome(text + trailer, is_error)
    data = text.encode()
    kept = data[:SPILL_CAP_BYTES]
    path = _write_spill(open_spill, kept)
    return _overflow_outcome(
        preview=text[:PREVIEW_CHARS],
        original_chars=len(text),
        path=path,
        file_bytes=len(kept),
        dropped_bytes=len(data) - len(kept),
        is_error=is_error,
        trailer=trailer,
    )


class SpillBuffer:
    """Collects bytes of output; `finish` makes the outcome.

    Keeps the head in memory until it is certain that the text is too long, then
    moves it to a spill file and only counts from there on.
    """

    def __init__(
        self, open_spill: OpenSpill | None, *, cap_bytes: int = SPILL_CAP_BYTES, scrub: Scrub | None = None
    ) -> None:
        self._open_spill = open_spill
        self._scrub = scrub
        self._stream: ScrubStream | None = None
        self._fed = False
        self._cap_bytes = cap_bytes
        self._head = bytearray()
        self._chars = 0
        self._total_bytes = 0
        self._file_bytes = 0
        self._file: SpillFile | None = None
        self._spilling = False

    @property
    def empty(self) -> bool:
        """Whether nothing was fed."""
        return not self._fed

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        self._fed = True
        if self._scrub is not None and self._stream is None:
            # Not before: a shell that starts for this command brings what is to be taken out.
            self._stream = self._scrub.stream()
        self._take(data if self._stream is None else self._stream.feed(data))

    def _take(self, data: bytes) -> None:
        self._total_bytes += len(data)
        self._chars += len(data.translate(None, _CONTINUATION))
        if not self._spilling:
            self._head += data
            if len(self._head) > _MEMORY_BYTES:
                self._start_spilling()
            return
        self._write(data)

    def finish(self, *, is_error: bool = False, trailer: str = "") -> ToolOutcome:
        """Close the file and return the outcome."""
        if self._stream is not None:
            self._take(self._stream.finish())
        if not self._spilling:
            text = _readable(bytes(self._head))
            if len(text) <= LIMIT_CHARS:
                # Shown inline, the line ends of a command's output say nothing.
                text = text.rstrip("\n")
            return limit_text(text, self._open_spill, is_error=is_error, trailer=trailer)
        path = self._close()
        return _overflow_outcome(
            preview=_readable(bytes(self._head))[:PREVIEW_CHARS],
            original_chars=self._chars,
            path=path,
            file_bytes=self._file_bytes,
            dropped_bytes=self._total_bytes - self._file_bytes,
            is_error=is_error,
            trailer=trailer,
        )

    def discard(self) -> None:
        """Close what is open without making an outcome."""
        if self._file is not None:
            # What cannot be flushed any more is lost either way.
            with contextlib.suppress(OSError):
                self._file.stream.close()
            self._file = None

    def _start_spilling(self) -> None:
        self._spilling = True
        if self._open_spill is not None:
            try:
                self._file = self._open_spill()
            except OSError:
                self._file = None
        self._write(bytes(self._head))
        # Room for the preview even if every character of it takes four bytes.
        del self._head[4 * PREVIEW_CHARS + 4096 :]

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        room = self._cap_bytes - self._file_bytes
        if room <= 0:
            return
        try:
            self._file.stream.write(data[:room])
        except OSError:
            self.discard()
            self._file_bytes = 0
            return
        self._file_bytes += min(room, len(data))

    def _close(self) -> str | None:
        if self._file is None:
            return None
        path = self._file.path
        try:
            self._file.stream.close()
        except OSError:
            self._file_bytes = 0
            return None
        finally:
            self._file = None
        return path


def _write_spill(open_spill: OpenSpill | None, data: bytes) -> str | None:
    if open_spill is None:
        return None
    try:
        spill = open_spill()
        with spill.stream as stream:
            stream.write(data)
    except OSError:
        return None
    return spill.path


def _overflow_outcome(
    *,
    preview: str,
    original_chars: int,
    path: str | None,
    file_bytes: int,
    dropped_bytes: int,
    is_error: bool,
    trailer: str,
) -> ToolOutcome:
    lines = [
        "[tool output overflow]",
        f"original_chars: {original_chars}",
        f"preview_chars: {len(preview)}",
        f"file: {path or 'none'}",
    ]
    overflow: dict[str, Any] | None = None
    if path is None:
        lines.append("The full output could not be saved; only the preview below is left.")
    else:
        lines.append(f"file_bytes: {file_bytes}")
        lines.append("The full output is available at the path above.")
        if dropped_bytes > 0:
            lines[-1] = f"The path above holds the first {file_bytes} bytes; {dropped_bytes} more were not kept."
        overflow = {
            "path": path,
            "original_chars": original_chars,
            "preview_chars": len(preview),
            "file_bytes": file_bytes,
        }
    return ToolOutcome("\n".join(lines) + "\n\n" + preview + trailer, is_error, overflow)


def _readable(data: bytes) -> str:
    """Decode output for a model: no terminal escapes, nothing unstorable."""
    return storable(_ESCAPES.sub("", data.decode("utf-8", "replace")))


def spill_opener(folder_fd: int, folder_path: str, name: str) -> OpenSpill:
    """Return an opener of `<folder_path>/<name>` below an open folder.

    The name must be new: a link that the agent put in its place is refused.
    """

    def opener() -> SpillFile:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o644, dir_fd=folder_fd)
        return SpillFile(os.fdopen(fd, "wb", buffering=1 << 16), f"{folder_path}/{name}")

    return opener
