"""HTTP as uvicorn reads it, but that bytes which are no HTTP get the envelope too, and that a head has an end."""

from __future__ import annotations

import sys

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kit.ids import new_id

from ..errors import InvalidRequest, describe

MAX_HEAD_BYTES = 64 * 1024
_FRAMING = (b"content-length", b"transfer-encoding")


class EnvelopeProtocol(HttpToolsProtocol):
    """One connection."""

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
