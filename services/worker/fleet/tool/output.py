"""The output of a command, read with pauses so that a flood keeps nothing else waiting.

The first `STREAM_BYTES` are told. Of more than that all goes to a file as well, up to `SPILL_BYTES`.
"""

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Callable
from typing import BinaryIO

# What an answer holds of each stream; the runner shows a model far less, and keeps the rest where it can be read.
STREAM_BYTES = 5 * 1024 * 1024
SPILL_BYTES = 64 * 1024 * 1024
_READ_BYTES = 64 * 1024
_READS_PER_WAKE = 4
_PAUSE_SECONDS = 0.002
_DRAIN_SECONDS = 2.0
# Makes a file for what is too long, and says where it is; None where there can be none.
Spill = Callable[[], tuple[BinaryIO, str] | None]


class OutputStream:
    """One stream. The descriptor stays its owner's."""

    def __init__(self, fd: int, spill: Spill) -> None:
        self._fd = fd
        self._spill = spill
        self._head = bytearray()
        self._total = 0
        self._kept = 0
        self._file: BinaryIO | None = None
        self._path = ""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._paused: asyncio.TimerHandle | None = None
        self._loop.add_reader(fd, self._on_readable)

    async def close(self, *, wait: bool) -> None:
        """Read no more; with `wait` only after what is still in the pipe, whose processes are dead."""
        if wait:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    await self._ended.wait()
        self._stop()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def take_remaining(self) -> None:
        """Take exactly what lies in the pipe now."""
        if self._ended.is_set():
            return
        left = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"))[0]
        while left > 0:
            try:
                data = os.read(self._fd, min(left, _READ_BYTES))
            except OSError:
                return
            if not data:
                return
            left -= len(data)
            self._take(data)

    def text(self) -> str:
        """What is told of it."""
        shown = self._head.decode("utf-8", "replace")
        left = self._total - len(self._head)
        if left <= 0:
            return shown
        where = f"{self._path} has the first {self._kept} bytes of it" if self._path else "it could not be saved"
        return f"{shown}\n[output was cut here: {left} more bytes; {where}]"

    def _on_readable(self) -> None:
        for _ in range(_READS_PER_WAKE):
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._stop()
                return
            self._take(data)
        self._loop.remove_reader(self._fd)
        self._paused = self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._paused = None
        if not self._ended.is_set():
            self._loop.add_reader(self._fd, self._on_readable)

    def _stop(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
        if not self._ended.is_set():
            self._loop.remove_reader(self._fd)
            self._ended.set()

    def _take(self, data: bytes) -> None:
        self._total += len(data)
        room = STREAM_BYTES - len(self._head)
        if room >= len(data) and self._file is None:
            self._head += data
            return
        if self._file is None and not self._path and self._total > STREAM_BYTES >= self._total - len(data):
            self._begin_file()
        self._head += data[: max(room, 0)]
        self._write(data)

    def _begin_file(self) -> None:
        if (made := self._spill()) is not None:
            self._file, self._path = made
            self._write(bytes(self._head))

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            self._kept += self._file.write(data[: max(SPILL_BYTES - self._kept, 0)])
        except OSError:
            # The disk is full: what was told of the stream so far is what there is.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


class MarkedStream(OutputStream):
    """One stream in which the shell tells the end: NUL, a word that only it knows, the exit code, NUL."""

    def __init__(self, fd: int, spill: Spill, marker: bytes) -> None:
        super().__init__(fd, spill)
        self._needle = b"\0" + marker + b" "
        self._held = b""
        self.end: asyncio.Future[int | None] = self._loop.create_future()

    async def close(self, *, wait: bool) -> None:
        """As any; what could have been a beginning of the end was none."""
        await super().close(wait=wait)
        if not self.end.done():
            held, self._held = self._held, b""
            super()._take(held)

    def _take(self, data: bytes) -> None:
        if self.end.done():
            return
        data, self._held = self._held + data, b""
        at = data.find(self._needle)
        if at < 0:
            at = self._beginning(data)
            data, self._held = data[:at], data[at:]
            super()._take(data)
            return
        code, closed, _ = data[at + len(self._needle) :].partition(b"\0")
        if not closed:
            data, self._held = data[:at], data[at:]
            super()._take(data)
            return
        super()._take(data[:at])
        self.end.set_result(int(code) if code.isdigit() else None)

    def _beginning(self, data: bytes) -> int:
        """Where something begins that the next bytes may complete to the needle."""
        at = data.find(b"\0", max(0, len(data) - len(self._needle)))
        while at >= 0 and not self._needle.startswith(data[at:]):
            at = data.find(b"\0", at + 1)
        return at if at >= 0 else len(data)
