"""The wire under a stream: writing to a client without waking a task for it.

A batch for five hundred streams of one session is five hundred writes of the same bytes. Through ASGI each would be a
wake-up, a message and a framing of its own; a line takes the framed bytes as they are. It refuses while the client
reads too slowly, and the stream then falls back to ASGI, which waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..operation.protocol import EnvelopeProtocol

_KEY = "managed_agents.line"


def framed(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class StreamProtocol(EnvelopeProtocol):
    """A connection that lets an open stream write to it, and tells it when the client has gone."""

    lost: Callable[[], None] | None = None

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        # The request's task begins after this; it finds its connection here.
        self.scope[_KEY] = (self, self.cycle)  # type: ignore[typeddict-unknown-key]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.lost is not None:
            self.lost()


class Line:
    """What one answer may do with its connection, from its first piece of body to its end."""

    __slots__ = ("_cycle", "_flow", "_protocol", "_transport")

    def __init__(self, protocol: Any, cycle: Any) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._flow = protocol.flow
        self._transport = cycle.transport

    @classmethod
    def of(cls, scope: Any) -> Line | None:
        """The line of a request; None where something else than our protocol serves it."""
        found = scope.get(_KEY)
        return cls(*found) if found else None

    def write(self, chunk: bytes) -> bool:
        """Send a framed piece now; False where it has to wait."""
        if self._flow.write_paused or self._cycle.disconnected or self._cycle.response_complete:
            return False
        self._transport.write(chunk)
        return True

    def watch(self, lost: Callable[[], None]) -> None:
        """Call this when the client goes, or at once if it has gone."""
        self._protocol.lost = lost
        if self._cycle.disconnected:
            lost()

    def release(self) -> None:
        """The answer is over; another request may use the connection."""
        self._protocol.lost = None
