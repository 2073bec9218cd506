"""JSON bodies with one long string in them, read as they arrive.

    async with JsonUpload(call, long="content", …) as upload:
        await upload.read()
        upload.small          # the document, with "" in place of the long string
        upload.spool          # the long string, decoded, as UTF-8 bytes in a file of its own

Only what lies outside the long string is gathered, and that is bounded. The string goes piece by piece into a file that
leaves the memory once it is large, so that a body of many megabytes takes as much memory as a small one.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from types import TracebackType
from typing import Any, Self

import orjson

from ..errors import InvalidJson
from . import body as request_body
from .call import Call
from .multipart import read_chunks, too_large

IN_MEMORY_BYTES = 1024 * 1024
MAX_SMALL_BYTES = 64 * 1024
# Every character of the string may be written as six.
WIDEST = 6
_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_HIGH_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_OUTSIDE = re.compile(rb'["{}\[\],:]')
# The longest escape that must not be cut in two: a pair of halves, each \uXXXX.
_LONGEST_ESCAPE = 12


class JsonUpload:
    """One body on its way; a context that lets its file go."""

    def __init__(self, call: Call, *, long: str, max_bytes: int) -> None:
        """`max_bytes` bounds the long string, in bytes of UTF-8."""
        self._call = call
        self._long = long
        self._max_bytes = max_bytes
        self.small = bytearray()
        self.size = 0
        self.spool: Any = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115 -- closed by the context
        self.found = False
        self._pending = b""
        self._in_long = False
        self._in_string = False
        self._depth = 0
        self._is_key = False
        self._key = b""
        self._token = bytearray()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.spool.close()

    async def read(self) -> Any:
        """Read the whole body; the document, with an empty string in place of the long one."""
        most = self._max_bytes * WIDEST + MAX_SMALL_BYTES
        request_body.check_headers(self._call.headers, most)
        async for chunk in read_chunks(self._call.receive):
            self._pending += chunk
            while self._pending and (await self._long_piece() if self._in_long else self._small_piece()):
                pass
        if self._in_long or self._in_string:
            raise InvalidJson("The body is not valid JSON: a string does not end.")
        self._keep(self._pending)
        await asyncio.to_thread(self.spool.seek, 0)
        return request_body.parse(bytes(self.small))

    async def _long_piece(self) -> bool:
        """Move what there is of the long string into its file; False where more has to come first."""
        found = _STRING.match(self._pending)
        assert found is not None
        end = found.end()
        ends_here = end < len(self._pending) and self._pending[end : end + 1] == b'"'
        cut = end if ends_here else _safe_cut(self._pending, end)
        if cut:
            try:
                text = orjson.loads(b'"%b"' % self._pending[:cut]).encode()
            except ValueError:
                raise InvalidJson(f"The body is not valid JSON: {self._long} is no sound string.") from None
            self.size += len(text)
            if self.size > self._max_bytes:
                raise too_large(self._max_bytes)
            await self._write(text)
        self._pending = self._pending[cut + 1 :] if ends_here else self._pending[cut:]
        if ends_here:
            self._in_long = False
            self._keep(b'"')
        return ends_here

    async def _write(self, text: bytes) -> None:
        if self.size <= IN_MEMORY_BYTES:
            self.spool.write(text)
        else:
            await asyncio.to_thread(self.spool.write, text)

    def _small_piece(self) -> bool:
        """Go on to the next sign that matters outside of the long string; False where more has to come first."""
        if self._in_string:
            return self._string_piece()
        found = _OUTSIDE.search(self._pending)
        if found is None:
            self._keep(self._pending)
            self._pending = b""
            return False
        self._keep(self._pending[: found.end()])
        self._pending = self._pending[found.end() :]
        match found.group():
            case b"{" | b"[":
                self._depth += 1
                self._is_key = found.group() == b"{"
            case b"}" | b"]":
                self._depth -= 1
            case b",":
                self._is_key = True
            case b":":
                self._is_key = False
            case _:
                self._begin_string()
        return True

    def _begin_string(self) -> None:
        if self._depth == 1 and not self._is_key and self._key == self._long.encode():
            if self.found:
                raise InvalidJson(f"The body holds {self._long} twice.")
            self.found = self._in_long = True
        else:
            self._in_string = True
            self._token.clear()

    def _string_piece(self) -> bool:
        found = _STRING.match(self._pending)
        assert found is not None
        end = found.end()
        if end == len(self._pending) or self._pending[end : end + 1] != b'"':
            self._token += self._pending[:end]
            self._keep(self._pending[:end])
            self._pending = self._pending[end:]
            return False
        self._token += self._pending[:end]
        self._keep(self._pending[: end + 1])
        self._pending = self._pending[end + 1 :]
        self._in_string = False
        if self._depth == 1 and self._is_key:
            self._key = _decoded(bytes(self._token))
        return True

    def _keep(self, piece: bytes) -> None:
        self.small += piece
        if len(self.small) > MAX_SMALL_BYTES:
            raise too_large(MAX_SMALL_BYTES)


def _decoded(token: bytes) -> bytes:
    try:
        return orjson.loads(b'"%b"' % token).encode()
    except ValueError:
        # The whole document is judged at its end.
        return token


def _safe_cut(text: bytes, end: int) -> int:
    """Where the string can be cut so that neither an escape, nor a pair of them, nor a character falls apart."""
    cut = end
    near = text.find(b"\\", max(0, end - _LONGEST_ESCAPE), end)
    if near >= 0:
        cut = near if _begins_escape(text, near) else near - 1
    if _HIGH_HALF.fullmatch(text, max(0, cut - 6), cut) and _begins_escape(text, cut - 6):
        cut -= 6
    for back in range(1, min(4, cut) + 1):
        lead = text[cut - back]
        if lead & 0xC0 != 0x80:
            return cut - back if lead >= 0xC0 else cut
    return cut


def _begins_escape(text: bytes, at: int) -> bool:
    """Whether the backslash there begins an escape: after an odd number of others it ends one."""
    start = at
    while start > 0 and text[start - 1] == 0x5C:
        start -= 1
    return (at - start) % 2 == 0
