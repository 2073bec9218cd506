"""Multipart bodies as they arrive: a part begins, its bytes come in pieces, it ends. Nothing is gathered.

    async for piece in read_parts(call, max_bytes=…):
        if isinstance(piece, Part): …      # the next part begins
        else: …                            # bytes of the part that began last; empty ones don't come

The body is bounded as a whole, and so are the heads of its parts. A body that stops coming is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Receive

from ..errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType
from .body import ClientGone
from .call import Call

MEDIA_TYPE = "multipart/form-data"
MAX_IDLE_SECONDS = 30.0
MAX_READ_SECONDS = 600.0
MAX_PARTS = 1_100
# Boundaries and heads, beside what the parts hold.
FRAMING_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """The head of a part. `filename` is None for a plain field."""

    name: str
    filename: str | None
    media_type: str
    # The whole header: the reader of it takes folders of one system out of `filename`.
    disposition: str = ""


def is_multipart(call: Call) -> bool:
    """Whether the body is declared as one."""
    return call.headers.get("content-type", "").partition(";")[0].strip().lower() == MEDIA_TYPE


async def read_parts(call: Call, *, max_bytes: int) -> AsyncIterator[Part | bytes]:
    """The parts of the body; `max_bytes` bounds all of it, and is told before a byte is read where that is known."""
    check_length(call, max_bytes)
    parts = _Parts(_boundary(call))
    size = 0
    async for chunk in read_chunks(call.receive):
        size += len(chunk)
        if size > max_bytes:
            raise too_large(max_bytes)
        for piece in parts.feed(chunk):
            yield piece
    parts.finish()


async def read_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it arrives. ClientGone where the caller hangs up, a refusal where nothing comes any more."""
    loop = asyncio.get_running_loop()
    until = loop.time() + MAX_READ_SECONDS
    more = True
    while more:
        try:
            async with asyncio.timeout_at(min(until, loop.time() + MAX_IDLE_SECONDS)):
                message = await receive()
        except TimeoutError:
            raise InvalidRequest("The body stopped arriving before it was complete.") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        if chunk := message.get("body", b""):
            yield chunk
        more = message.get("more_body", False)


def check_length(call: Call, max_bytes: int) -> None:
    """Refuse what the headers alone give away."""
    declared = call.headers.get("content-length")
    if declared is not None and declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large(max_bytes)
    if call.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not read; send the body as it is.")


def too_large(max_bytes: int) -> RequestTooLarge:
    """The refusal of a body that is larger than the route takes."""
    return RequestTooLarge(f"The body is larger than {max_bytes} bytes, the most that this route takes.")


class _Parts:
    """What the parser finds in each chunk, in its order."""

    def __init__(self, boundary: bytes) -> None:
        self._found: list[Part | bytes] = []
        self._field = b""
        self._head: dict[bytes, bytes] = {}
        self._count = 0
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._on_name,
                "on_header_value": self._on_value,
                "on_header_end": self._keep,
                "on_headers_finished": self._on_head,
                "on_part_data": self._on_data,
                "on_end": self._on_end,
            },
        )
        self._value = b""

    def feed(self, chunk: bytes) -> list[Part | bytes]:
        self._found = []
        try:
            self._parser.write(chunk)
        except MultipartParseError as error:
            raise InvalidRequest(f"The multipart body is malformed: {str(error)[:200]}.") from None
        return self._found

    def finish(self) -> None:
        if not self._ended:
            raise InvalidRequest("The multipart body ends before its last boundary.")

    def _begin(self) -> None:
        self._head, self._field, self._value = {}, b"", b""
        self._count += 1
        if self._count > MAX_PARTS:
            raise InvalidRequest(f"The multipart body has more than {MAX_PARTS} parts.")

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _keep(self) -> None:
        self._head[self._field.strip().lower()] = self._value.strip()
        self._field = self._value = b""

    def _on_head(self) -> None:
        kind, options = parse_options_header(self._head.get(b"content-disposition", b""))
        if kind != b"form-data" or b"name" not in options:
            raise InvalidRequest("Each part of the body must have content-disposition: form-data with a name.")
        filename = options.get(b"filename")
        self._found.append(
            Part(
                name=_text(options[b"name"]),
                filename=None if filename is None else _text(filename),
                media_type=_text(self._head.get(b"content-type", b"")),
                disposition=_text(self._head[b"content-disposition"]),
            )
        )

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if end > start:
            self._found.append(data[start:end])

    def _on_end(self) -> None:
        self._ended = True


def _boundary(call: Call) -> bytes:
    _, options = parse_options_header(call.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 256:
        raise InvalidRequest("content-type must name the boundary of the multipart body.")
    return boundary


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")
