"""HTTP as uvicorn speaks it, but for three things.

Bytes which are no HTTP get the envelope too, a head has an end, and an answer's head leaves together with its body:
one write and one packet less for every request.
"""

from __future__ import annotations

import asyncio
import sys

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kit.ids import new_id

from ..errors import InvalidRequest, describe

MAX_HEAD_BYTES = 64 * 1024
_FRAMING = (b"content-length", b"transfer-encoding")


class Outlet:
    """The transport as the answers of a connection write to it: a head waits for what comes next, for one round of
    the event loop at most."""

    __slots__ = ("_held", "_is_head_next", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None
        self._is_head_next = False

    def expect_head(self) -> None:
        """What is written next begins an answer."""
        self._is_head_next = True

    def write(self, data: bytes) -> None:
        """Send, in the order of the calls."""
        held = self._held
        if held is not None:
            self._held = None
            self._transport.writelines((held, data))
        elif self._is_head_next:
            self._is_head_next = False
            self._held = data
            self._loop.call_soon(self._send_held)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close once everything is sent."""
        self._send_held()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether nothing more is sent."""
        return self._transport.is_closing()

    def _send_held(self) -> None:
        held, self._held = self._held, None
        if held is not None and not self._transport.is_closing():
            self._transport.write(held)


class EnvelopeProtocol(HttpToolsProtocol):
    """One connection."""

    outlet: Outlet | None = None
    _in_head = True
    _head_bytes = 0
    # What the parser has at hand, and what it is to have next.
    _fed = b""
    _left = b""
    # Whether the parser is being shown the head of a request a second time.
    _is_resuming = False

    def data_received(self, data: bytes) -> None:
        """Give up on a head that never ends: the parser itself keeps whatever comes."""
        # Set anew by whichever head or message ends within these bytes.
        self._head_bytes += len(data)
        self._left = data
        while self._left:
            self._fed, self._left = self._left, b""
            super().data_received(self._fed)
        self._fed = b""
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """A request begins."""
        if not self._is_resuming:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        if not self._is_resuming:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its fields."""
        if not self._is_resuming:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is read."""
        self._in_head = False
        if self._is_resuming:
            self._is_resuming = False
            return
        super().on_headers_complete()
        if self.outlet is None:
            self.outlet = Outlet(self.transport, self.loop)
        if self.cycle is not None:
            self.outlet.expect_head()
            self.cycle.transport = self.outlet  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """What comes next is another head."""
        if self.parser.should_upgrade():
            # So says the parser of a request that offers another protocol, before its body; see below.
            return
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Go on in HTTP/1.1 where a request offered another protocol, which is no fault of anybody's.

        The parser takes what follows such a head for the other protocol. A new one is told how
        long the body is, and reads it and the requests after it.
        """
        stopped_at = sys.exception().args[0]  # type: ignore[union-attr]
        framing = [(name, value) for name, value in self.headers if name in _FRAMING]
        head = b"".join(b"%b: %b\r\n" % field for field in framing)
        self.parser = httptools.HttpRequestParser(self)
        self._is_resuming = True
        self._left = b"POST / HTTP/1.1\r\n%b\r\n" % head + self._fed[stopped_at:]

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser gave up on, and close: nothing after it can be trusted."""
        request_id = new_id("req")
        refusal = InvalidRequest("This is not an HTTP/1.1 request that can be read.")
        body = describe(refusal, published=False, request_id=request_id).body(request_id)
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\nrequest-id: {request_id}\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
