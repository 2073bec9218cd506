"""Messages of an exchange between processes of one machine: over a unix socket, each behind its length.

gRPC hands every message over between threads of its own and frames it for HTTP/2, which on one machine is most of what
a call costs. A line is read and written by the event loop itself. What goes over it is told in `rpc/v1/exchange.proto`.
"""

import asyncio
from pathlib import Path
from typing import Protocol, cast

from google.protobuf.message import DecodeError

from kit.rpc.options import MESSAGE_BYTES, socket_path

_LENGTH_BYTES = 4
# Payloads are bounded by their makers; what surrounds one of the largest size has to fit as well.
_LONGEST_BYTES = MESSAGE_BYTES + 1024 * 1024
_UNSENT_BYTES = 1024 * 1024
# How long the other side has to hang up, once it was sent everything.
_FAREWELL_SECONDS = 1.0


class End(Protocol):
    """Who speaks at one end."""

    def received(self, message: bytes) -> None:
        """A message came. A DecodeError cuts the line."""

    def has_room(self) -> None:
        """The other side has caught up, and more can be sent."""

    def lost(self) -> None:
        """The line is cut."""


def line_path(address: str) -> Path | None:
    """Where the line of a service lies that is reached at this address; None where it is not on this machine."""
    path = socket_path(address)
    return None if path is None else path.with_suffix(".line")


class Line(asyncio.Protocol):
    """A line, as one end of it."""

    def __init__(self, end: End, *, hears_while_full: bool) -> None:
        """`hears_while_full`: whether to read on while the other side reads too slowly. One of both ends must."""
        self.is_full = False
        self._end = end
        self._hears_while_full = hears_while_full
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._is_closed = False

    def send(self, message: bytes) -> None:
        """Send a message; one that meets the end of the line is lost with it."""
        if self._transport is not None and self._goes_on():
            self._transport.write(len(message).to_bytes(_LENGTH_BYTES, "big") + message)

    def close(self) -> None:
        """Cut the line once everything is sent and the other side has hung up, which it does when it has read it all.

        Nothing that it still says is heard; but were the line cut at once, its own words would meet a closed line, and
        it would read nothing any more.
        """
        if self._transport is not None and self._goes_on():
            self._is_closed = True
            self._buffer.clear()
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(_FAREWELL_SECONDS, self._end_farewell)

    def cut(self) -> None:
        """Cut the line now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The line is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """The line is gone."""
        self._end.lost()

    def data_received(self, data: bytes) -> None:
        """Take the messages out of what came."""
        if self._is_closed:
            return
        if not self._buffer and 0 <= _length(data) == len(data) - _LENGTH_BYTES:
            # As nearly always: one message.
            self._take(data[_LENGTH_BYTES:])
            return
        self._buffer += data
        start = 0
        while 0 <= (length := _length(self._buffer, start)) <= len(self._buffer) - start - _LENGTH_BYTES:
            end = start + _LENGTH_BYTES + length
            with memoryview(self._buffer) as view:
                message = bytes(view[start + _LENGTH_BYTES : end])
            start = end
            if not self._take(message):
                return
        del self._buffer[:start]
        if length > _LONGEST_BYTES:
            self.cut()

    def pause_writing(self) -> None:
        """The other side reads too slowly."""
        self.is_full = True
        if not self._hears_while_full and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        self.is_full = False
        if not self._hears_while_full and self._transport is not None:
            self._transport.resume_reading()
        self._end.has_room()

    def _take(self, message: bytes) -> bool:
        """Whether the line goes on after it."""
        try:
            self._end.received(message)
        except DecodeError:
            self.cut()
        return self._goes_on()

    def _goes_on(self) -> bool:
        return not self._is_closed and self._transport is not None and not self._transport.is_closing()

    def _end_farewell(self) -> None:
        if self._transport is None or not self._transport.get_write_buffer_size():
            self.cut()
        elif not self._transport.is_closing():
            asyncio.get_running_loop().call_later(_FAREWELL_SECONDS, self._end_farewell)


def _length(data: bytes | bytearray, start: int = 0) -> int:
    """The length of the message that begins there; -1 while that is not known."""
    if len(data) - start < _LENGTH_BYTES:
        return -1
    return int.from_bytes(data[start : start + _LENGTH_BYTES], "big")
