"""HTTP/1.1 messages as the proxy needs them: heads taken apart, bodies by their framing.

Requests are read strictly, since a line that we and the target read differently could
hide a second host or request. Hop-by-hop headers are left out on both ways: how the two
sides frame their messages is no business of each other.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from services.worker.sandbox.wires import CHUNK_BYTES, Intake

HEAD_BYTES = 64 * 1024
CHUNKED = -1
UNTIL_CLOSE = -2
_HOP = frozenset(
    {
        b"connection",
        b"proxy-connection",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"keep-alive",
        b"te",
        b"trailer",
        b"upgrade",
        b"transfer-encoding",
    }
)
_END_TO_END = frozenset({b"host", b"content-length", b"content-encoding", b"content-type"})
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_ANSWERED_HEADER = re.compile(rb"([^:\s\x00]+)[ \t]*:([^\x00\r\n]*)")
_REQUEST = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]+) HTTP/1\.([01])")
_STATUS = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})(?: [^\r\n]*)?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_CHUNK_LINE = 4096
_MAX_TRAILERS = 100

Headers = tuple[tuple[bytes, bytes], ...]


class Malformed(Exception):
    """Not the message that was expected; the text says why."""


class Refused(Exception):
    """A request that is not sent on; whoever sent it gets this status and text."""

    def __init__(self, status: str, reason: str) -> None:
        self.status = status
        super().__init__(reason)

    def to_bytes(self) -> bytes:
        """The whole answer, after which the connection ends."""
        text = f"{self}\n".encode()
        head = f"HTTP/1.1 {self.status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        return f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text


@dataclass(frozen=True, slots=True)
class Head:
    """The first line and the headers of a message."""

    line: bytes
    headers: Headers

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header, its name in lower case."""
        return [value for key, value in self.headers if key.lower() == name]

    def tokens(self, name: bytes) -> list[bytes]:
        """The elements of a header that is a list, in lower case."""
        return [token.strip().lower() for value in self.values(name) for token in value.split(b",") if token.strip()]

    def without(self, *names: bytes) -> "Head":
        """The same without some headers."""
        return replace(self, headers=tuple(each for each in self.headers if each[0].lower() not in names))

    def end_to_end(self) -> "Head":
        """The same without what concerns this connection only.

        Whom a message is for and where it ends is never that, whatever `Connection` says.
        """
        named = (token for token in self.tokens(b"connection") if token not in _END_TO_END)
        return self.without(*_HOP, *named)

    def having(self, *headers: tuple[bytes, bytes]) -> "Head":
        """The same with more headers."""
        return replace(self, headers=(*self.headers, *headers))

    def to_bytes(self) -> bytes:
        """As it is sent."""
        lines = [self.line, *(name + b": " + value for name, value in self.headers)]
        return b"\r\n".join((*lines, b"", b""))


def read_request(data: bytes) -> Head:
    """The head of a request."""
    line, _, rest = data.partition(b"\r\n")
    if not _REQUEST.fullmatch(line):
        raise Malformed("Not an HTTP/1.1 request.")
    return Head(line, _headers(rest, _HEADER))


def read_response(data: bytes) -> Head:
    """The head of a response."""
    line, _, rest = data.partition(b"\r\n")
    if not _STATUS.fullmatch(line):
        raise Malformed("Not an HTTP/1.1 response.")
    return Head(line, _headers(rest, _ANSWERED_HEADER))


def status_of(head: Head) -> int:
    """The status of a response."""
    return int(head.line.split(b" ")[1])


def _headers(lines: bytes, pattern: re.Pattern[bytes]) -> Headers:
    headers: list[tuple[bytes, bytes]] = []
    for line in filter(None, lines.removesuffix(b"\r\n\r\n").split(b"\r\n")):
        found = pattern.fullmatch(line)
        if found is None:
            raise Malformed("A header is malformed.")
        headers.append((found[1], found[2].strip()))
    return tuple(headers)


def request_body(head: Head) -> int:
    """Bytes of a request's body, or CHUNKED."""
    size = _framed(head)
    return 0 if size is None else size


def response_body(head: Head, method: bytes) -> int:
    """Bytes of a response's body, CHUNKED, or UNTIL_CLOSE."""
    status = status_of(head)
    if method == b"HEAD" or status < 200 or status in (204, 304):
        return 0
    size = _framed(head)
    return UNTIL_CLOSE if size is None else size


def _framed(head: Head) -> int | None:
    codings, lengths = head.tokens(b"transfer-encoding"), set(head.values(b"content-length"))
    if codings:
        if codings != [b"chunked"] or lengths:
            raise Malformed("The size of the body is ambiguous.")
        return CHUNKED
    if not lengths:
        return None
    length = lengths.pop()
    if lengths or not length.isdigit() or len(length) > 18:
        raise Malformed("The Content-Length is malformed.")
    return int(length)


async def body_of(intake: Intake, size: int) -> AsyncIterator[bytes]:
    """The pieces of a body; IncompleteReadError where it is cut short, Malformed for chunks that are none."""
    if size == CHUNKED:
        async for data in _chunks(intake):
            yield data
    elif size == UNTIL_CLOSE:
        while data := await intake.some():
            yield data
    else:
        async for data in _counted(intake, size):
            yield data


async def _counted(intake: Intake, size: int) -> AsyncIterator[bytes]:
    while size:
        data = await intake.some(min(size, CHUNK_BYTES))
        if not data:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(data)
        yield data


async def _chunks(intake: Intake) -> AsyncIterator[bytes]:
    """The data of chunks; what may stand beside it (extensions, trailers) stays behind."""
    while True:
        line = _CHUNK.fullmatch(await intake.until(b"\r\n", _CHUNK_LINE))
        if line is None:
            raise Malformed("A chunk is malformed.")
        size = int(line[1], 16)
        if not size:
            break
        async for data in _counted(intake, size):
            yield data
        if await intake.exactly(2) != b"\r\n":
            raise Malformed("The end of a chunk is malformed.")
    for _ in range(_MAX_TRAILERS):
        if await intake.until(b"\r\n", _CHUNK_LINE) == b"\r\n":
            return
    raise Malformed("There are too many trailers.")


def chunk(data: bytes) -> bytes:
    """One chunk; none for no data, since that would be the last."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


LAST_CHUNK = b"0\r\n\r\n"
