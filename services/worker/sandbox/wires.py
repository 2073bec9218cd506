"""Connections as the proxy reads and writes them, in the clear or through TLS, with a buffer that can be put back.

TLS is done over a connection that is already open, from either side: what the client
said first decides whether it is TLS at all, so its first bytes are read before.
"""

import asyncio
import contextlib
import ssl
from typing import Protocol

from kit.waiting import within

CHUNK_BYTES = 64 * 1024
IDLE_SECONDS = 600.0
HANDSHAKE_SECONDS = 30.0


class Wire(Protocol):
    """Both directions of one connection."""

    async def read(self) -> bytes:
        """Some bytes; none at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Send, and wait while the other side is slow."""
        ...

    async def end(self) -> None:
        """Say that nothing more will be sent, where that can be said."""
        ...


class PlainWire:
    """A connection as asyncio gives it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._unread = b""

    async def read(self) -> bytes:
        """Some bytes, first those that were put back."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        return await within(self._reader.read(CHUNK_BYTES), IDLE_SECONDS)

    def unread(self, data: bytes) -> None:
        """Put bytes back to be read next."""
        self._unread = data + self._unread

    async def write(self, data: bytes) -> None:
        """Send."""
        self.writer.write(data)
        await self.writer.drain()

    async def end(self) -> None:
        """Close our half."""
        if self.writer.can_write_eof():
            with contextlib.suppress(OSError):
                self.writer.write_eof()


class TlsWire:
    """TLS over another wire. `handshake` comes first."""

    def __init__(self, under: PlainWire, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """The client's side with `server_name`, which is verified; else the server's."""
        self._under = under
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )

    async def handshake(self) -> None:
        """Agree on keys; raises ssl.SSLError, OSError or TimeoutError."""
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._take()
                except ssl.SSLError:
                    # The other side is told why.
                    await self._flush()
                    raise
            await self._flush()

    async def read(self) -> bytes:
        """Some bytes in the clear."""
        while True:
            try:
                return self._tls.read(CHUNK_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._take()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes) -> None:
        """Send."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        await self._flush()

    async def end(self) -> None:
        """Say goodbye as TLS has it."""
        with contextlib.suppress(ssl.SSLError, OSError):
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            await self._flush()

    async def _take(self) -> None:
        data = await self._under.read()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._under.write(self._outgoing.read())


class Intake:
    """What comes from a wire, taken in the pieces that a protocol asks for."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._buffer = b""

    async def some(self, most: int = CHUNK_BYTES) -> bytes:
        """Up to `most` bytes; none at the end."""
        if not self._buffer:
            self._buffer = await self._wire.read()
        data, self._buffer = self._buffer[:most], self._buffer[most:]
        return data

    async def until(self, separator: bytes, limit: int) -> bytes:
        """Everything up to and with a separator. IncompleteReadError at the end, LimitOverrunError beyond the limit."""
        searched = 0
        while (found := self._buffer.find(separator, searched)) < 0:
            if len(self._buffer) > limit:
                raise asyncio.LimitOverrunError("too long", limit)
            searched = max(0, len(self._buffer) - len(separator) + 1)
            data = await self._wire.read()
            if not data:
                raise asyncio.IncompleteReadError(self._buffer, None)
            self._buffer += data
        end = found + len(separator)
        data, self._buffer = self._buffer[:end], self._buffer[end:]
        return data

    async def exactly(self, size: int) -> bytes:
        """That many bytes, or IncompleteReadError."""
        parts: list[bytes] = []
        while size:
            data = await self.some(size)
            if not data:
                raise asyncio.IncompleteReadError(b"", size)
            parts.append(data)
            size -= len(data)
        return b"".join(parts)


async def pump(source: Intake, sink: Wire) -> None:
    """Pass on everything as it comes, to the end."""
    while data := await source.some():
        await sink.write(data)
    await sink.end()
