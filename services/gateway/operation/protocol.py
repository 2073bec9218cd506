"""HTTP as uvicorn reads it, but that bytes which are no HTTP get the envelope too, and that a head has an end."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kit.ids import new_id

from ..errors import InvalidRequest, describe

MAX_HEAD_BYTES = 64 * 1024


class EnvelopeProtocol(HttpToolsProtocol):
    """One connection."""

    _in_head = True
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Give up on a head that never ends: the parser itself keeps whatever comes."""
        # Set anew by whichever head or message ends within these bytes.
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        """The head is read."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """What comes next is another head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

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
