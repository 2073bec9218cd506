"""One request and its answer, between a client inside a sandbox and the host that it asked for.

The request goes on with real values, its body framed anew; the answer comes back with
placeholders where the host repeats a value. Nothing is kept waiting for it: bodies,
events and interim answers pass as they come, as does what follows an upgrade.
"""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from services.worker.sandbox.http1 import (
    CHUNKED,
    HEAD_BYTES,
    LAST_CHUNK,
    UNTIL_CLOSE,
    Head,
    Malformed,
    Refused,
    body_of,
    chunk,
    read_response,
    request_body,
    response_body,
    status_of,
)
from services.worker.sandbox.injecting import BodyInjection, Injection
from services.worker.sandbox.replacing import Replacer
from services.worker.sandbox.wires import Intake, Wire, pump

# A request's body of up to this many bytes is read before it is sent, so that its length can be told anew.
BUFFERED_BYTES = 4 * 1024 * 1024
_BUFFERED_ANSWER_BYTES = 1024 * 1024
_DECODED_BYTES = 256 * 1024
_OTHER_HTTP = re.compile(rb"\b(h2c?|http)\b", re.IGNORECASE)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are connected."""

    wire: Wire
    intake: Intake

    @classmethod
    def of(cls, wire: Wire) -> "Side":
        """A side with nothing read from it yet."""
        return cls(wire, Intake(wire))


class Exchange:
    """Made for one request. `buffers` bounds how many bodies are held at once."""

    def __init__(
        self,
        injection: Injection,
        echoes: Callable[[], Replacer],
        client: Side,
        server: Side,
        buffers: asyncio.Semaphore,
    ) -> None:
        self._injection = injection
        self._echoes = echoes
        self._client = client
        self._server = server
        self._buffers = buffers
        self.begun = False
        self._client_is_old = False
        self._upgrades = False

    async def run(self, head: Head) -> bool:
        """Whether both connections can be used for another request. Raises Refused before anything was answered."""
        method, _, version = head.line.split(b" ")
        self._client_is_old = version == b"HTTP/1.0"
        size = request_body(head)
        upgrade = _upgrade_of(head)
        self._upgrades = bool(upgrade)
        lasts = not self._client_is_old and b"close" not in head.tokens(b"connection")
        sent = await self._injection.into_head(_for_server(head, upgrade))
        content_type = b"".join(head.values(b"content-type")[:1])
        if 0 <= size <= BUFFERED_BYTES:
            await self._send_whole(sent, size, content_type)
            return await self._pass_answer(method, lasts=lasts)
        if size == CHUNKED:
            await self._server.wire.write(sent.having((b"Transfer-Encoding", b"chunked")).to_bytes())
            sending = self._send_body(size, self._injection.body(content_type))
        else:
            await self._server.wire.write(sent.to_bytes())
            sending = self._send_body(size, self._injection.watched_body())
        return await self._both(asyncio.create_task(sending), method, lasts=lasts)

    async def _send_whole(self, head: Head, size: int, content_type: bytes) -> None:
        if not size:
            await self._server.wire.write(head.to_bytes())
            return
        async with self._buffers:
            if head.values(b"expect"):
                # The body is read before anything is sent, so the leave to send it is ours to give.
                head = head.without(b"expect")
                await self._client.wire.write(_CONTINUE)
            body = await self._injection.into_body(await self._client.intake.exactly(size), content_type)
            head = head.without(b"content-length").having((b"Content-Length", b"%d" % len(body)))
            await self._server.wire.write(head.to_bytes() + body)

    async def _send_body(self, size: int, body: BodyInjection) -> None:
        frame = chunk if size == CHUNKED else _as_it_is
        async for data in body_of(self._client.intake, size):
            if put := frame(await body.feed(data)):
                await self._server.wire.write(put)
        rest = frame(await body.finish())
        await self._server.wire.write(rest + LAST_CHUNK if size == CHUNKED else rest)

    async def _both(self, sending: asyncio.Task[None], method: bytes, *, lasts: bool) -> bool:
        """Take the answer while the body is on its way: it may come before the end, or instead of it."""
        receiving = asyncio.create_task(self._pass_answer(method, lasts=lasts))
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            failure = sending.exception() if sending.done() else None
            # A server that takes no more of the body may have said why; anything else ends the exchange.
            if failure is not None and not isinstance(failure, OSError) and not receiving.done():
                if isinstance(failure, Refused) and self.begun:
                    raise ConnectionResetError("refused after the answer began") from failure
                raise failure
            return await receiving and sending.done() and failure is None
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _pass_answer(self, method: bytes, *, lasts: bool) -> bool:
        while True:
            try:
                head = read_response(await self._server.intake.until(b"\r\n\r\n", HEAD_BYTES))
                size = response_body(head, method)
            except (Malformed, asyncio.LimitOverrunError) as malformed:
                raise Refused("502 Bad Gateway", "The host's answer is not HTTP/1.1.") from malformed
            status = status_of(head)
            if status >= 200:
                break
            if status == 101:
                if not self._upgrades:
                    raise Refused("502 Bad Gateway", "The host's answer changes to a protocol that was not asked for.")
                await self._pass_upgrade(head)
                return False
            if not self._client_is_old:
                await self._client.wire.write(self._scrubbed(head.end_to_end()).to_bytes())
        lasts = lasts and size != UNTIL_CLOSE and b"close" not in head.tokens(b"connection")
        lasts = lasts and head.line.startswith(b"HTTP/1.1")
        closing = () if lasts else ((b"Connection", b"close"),)
        shown = self._scrubbed(head.end_to_end()).having(*closing)
        pieces = body_of(self._server.intake, size)
        if echoes := self._echoes():
            await self._pass_scrubbed(shown, head, pieces, size, echoes)
        else:
            await self._pass_body(shown, pieces, size)
        return lasts

    async def _pass_body(self, head: Head, pieces: AsyncIterator[bytes], size: int) -> None:
        """The body in its own length, or in chunks where that is not known."""
        if size < 0:
            head = head.without(b"content-length")
            if not self._client_is_old:
                head = head.having((b"Transfer-Encoding", b"chunked"))
        frame = chunk if size < 0 and not self._client_is_old else _as_it_is
        await self._begin(head.to_bytes())
        async for data in pieces:
            if put := frame(data):
                await self._client.wire.write(put)
        if frame is chunk:
            await self._client.wire.write(LAST_CHUNK)

    async def _pass_scrubbed(
        self, shown: Head, head: Head, pieces: AsyncIterator[bytes], size: int, echoes: Replacer
    ) -> None:
        if not size:
            await self._begin(shown.to_bytes())
            return
        codings = head.tokens(b"content-encoding")
        if codings and codings != [b"identity"]:
            if len(codings) > 1 or codings[0] not in _DECODERS:
                raise Refused("502 Bad Gateway", "The host's answer has an encoding that was not asked for.")
            shown = shown.without(b"content-encoding")
            pieces = _decoded(pieces, codings[0])
        scrubbed = _replaced(pieces, echoes)
        if 0 < size <= _BUFFERED_ANSWER_BYTES and not codings:
            body = b"".join([data async for data in scrubbed])
            shown = shown.without(b"content-length").having((b"Content-Length", b"%d" % len(body)))
            await self._begin(shown.to_bytes() + body)
        else:
            await self._pass_body(shown, scrubbed, UNTIL_CLOSE)

    async def _pass_upgrade(self, head: Head) -> None:
        """From here on it is no HTTP any more, and passes as it is."""
        upgrade = [(b"Upgrade", value) for value in head.values(b"upgrade")]
        shown = self._scrubbed(head.end_to_end()).having((b"Connection", b"Upgrade"), *upgrade)
        await self._begin(shown.to_bytes())
        await tunnel(self._client, self._server)

    async def _begin(self, data: bytes) -> None:
        self.begun = True
        await self._client.wire.write(data)

    def _scrubbed(self, head: Head) -> Head:
        echoes = self._echoes()
        if not echoes:
            return head
        headers = ((echoes.replace(name), echoes.replace(value)) for name, value in head.headers)
        return Head(echoes.replace(head.line), tuple(headers))


async def tunnel(client: Side, server: Side) -> None:
    """Pass on both directions; the end of what the server sends is the end."""
    up = asyncio.create_task(pump(client.intake, server.wire))
    down = asyncio.create_task(pump(server.intake, client.wire))
    try:
        await down
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


def _upgrade_of(head: Head) -> list[bytes]:
    """What the client would change to. Not another HTTP: what is asked in that could not be looked into."""
    if b"upgrade" not in head.tokens(b"connection"):
        return []
    return [value for value in head.values(b"upgrade") if not _OTHER_HTTP.search(value)]


def _for_server(head: Head, upgrade: list[bytes]) -> Head:
    """The head with what concerns the next connection, and without encodings that hide what an answer repeats."""
    gzip = (b"gzip" in value.lower() for value in head.values(b"accept-encoding"))
    sent = head.end_to_end().without(b"accept-encoding")
    sent = sent.having((b"Accept-Encoding", b"gzip" if any(gzip) else b"identity"))
    if upgrade:
        sent = sent.having((b"Connection", b"Upgrade"), *((b"Upgrade", value) for value in upgrade))
    return sent


def _as_it_is(data: bytes) -> bytes:
    return data


async def _replaced(pieces: AsyncIterator[bytes], replacer: Replacer) -> AsyncIterator[bytes]:
    stream = replacer.stream()
    async for data in pieces:
        yield stream.feed(data)
    yield stream.finish()


_DECODERS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


async def _decoded(pieces: AsyncIterator[bytes], coding: bytes) -> AsyncIterator[bytes]:
    inflate = zlib.decompressobj(_DECODERS[coding])
    try:
        async for data in pieces:
            while data:
                if inflate.eof:
                    inflate = zlib.decompressobj(_DECODERS[coding])
                for part in _inflated(inflate, data):
                    yield part
                data = inflate.unused_data
    except zlib.error as broken:
        raise ConnectionResetError("the answer's encoding is broken") from broken


def _inflated(inflate: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    # In bounded pieces: a few bytes can stand for very many.
    while data and not inflate.eof:
        yield inflate.decompress(data, _DECODED_BYTES)
        data = inflate.unconsumed_tail
