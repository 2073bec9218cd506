"""HTTP as uvicorn reads it, with one difference: bytes that are no HTTP get the envelope too."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kit.ids import new_id

from ..errors import InvalidRequest, describe


class EnvelopeProtocol(HttpToolsProtocol):
    """One connection."""

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
