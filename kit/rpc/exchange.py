"""The calling half of ExchangeService: unary calls over one stream that stays open.

A unary call of gRPC costs about 0.3 ms of CPU, most of it to begin and to end a call; a message on an open stream costs
a fifth of that, and calls that come together share one. Where the service is on this machine, the stream is a line
(`kit.rpc.line`), which costs half of that. What callers see is the same: errors, deadlines, cancellation, context. A
stream that breaks fails the calls that it had not answered, and the next call opens another one.
"""

import asyncio
import contextvars
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import grpc

from kit.errors import DeadlineExceeded, DomainError, Unavailable
from kit.rpc.line import Line
from kit.rpc.status import TOO_SLOW_TEXT, rebuilt, unpack
from managed_agents.rpc.v1.exchange_pb2 import Answer, Call, ExchangeRequest, ExchangeResponse, Hello

CLOSED_TEXT = "The connection to another part of the platform was closed."
# A larger request goes by itself, so that the small ones need not wait for it.
LARGEST_PAYLOAD = 256 * 1024
# Calls that wait for each other's company go on in a further message beyond this.
_MOST_CALLS = 64
# A service that does not know exchanges may have been replaced by one that does after this time.
_ASK_AGAIN_SECONDS = 30.0
_UNIMPLEMENTED: int = grpc.StatusCode.UNIMPLEMENTED.value[0]


class NotServed(Exception):
    """The service does not take this call in an exchange, and has not made it."""


class Exchange:
    """The exchange with one service; opens at the first call."""

    def __init__(self, open_rpc: Callable[[], Any], line: Path | None, authorization: str) -> None:
        """`open_rpc` begins an rpc without requests, for where there is no line."""
        self._open_rpc = open_rpc
        self._line = line
        self._authorization = authorization
        self._stream: _Stream | None = None
        self._opening: asyncio.Task[_Stream] | None = None
        self._not_before = 0.0
        self._closed = False

    async def call(self, method: str, context: bytes, seconds: float | None, payload: bytes) -> bytes:
        """Make one call. Raises the DomainError that it ends with, or NotServed."""
        stream = self._stream
        if stream is None or stream.ended:
            if time.monotonic() < self._not_before:
                raise NotServed
            stream = await self._opened()
        try:
            return await stream.call(method, context, seconds, payload)
        except NotServed:
            if stream.ended:
                self._not_before = time.monotonic() + _ASK_AGAIN_SECONDS
            raise

    async def close(self) -> None:
        """Cut the stream; calls in progress fail."""
        self._closed = True
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self._stream is not None:
            await self._stream.close()

    async def _opened(self) -> "_Stream":
        if self._closed:
            raise Unavailable(CLOSED_TEXT)
        if self._opening is None:
            # All who come meanwhile wait for the same one, and outlive the caller that came first.
            self._opening = asyncio.create_task(self._open(), name="exchange: open", context=contextvars.Context())
        return await asyncio.shield(self._opening)

    async def _open(self) -> "_Stream":
        try:
            stream = _Stream()
            if self._line is None or not await _Wire.opened(stream, self._line, self._authorization):
                _Rpc.opened(stream, self._open_rpc)
            # Not before something carries it: a call that came meanwhile would be sent by nobody.
            self._stream = stream
            return stream
        finally:
            self._opening = None


class _Carrier(Protocol):
    """What carries the messages of a stream."""

    def wake(self) -> None:
        """There is something to send."""

    async def close(self) -> None:
        """Cut it."""


class _Stream:
    """The calls of one stream, from the first to its end."""

    def __init__(self) -> None:
        # What whoever comes now is told; None while it goes on.
        self._ended: Exception | None = None
        self.carrier: _Carrier | None = None
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        # Those that are still to be sent.
        self._calls: dict[int, Call] = {}
        self._cancelled: list[int] = []
        self._loop = asyncio.get_running_loop()

    @property
    def ended(self) -> bool:
        """Whether it takes no more calls."""
        return self._ended is not None

    async def call(self, method: str, context: bytes, seconds: float | None, payload: bytes) -> bytes:
        """Send a call with the next message, and await its answer."""
        call_id, waiting = next(self._ids), self._loop.create_future()
        self._pending[call_id] = waiting
        self._calls[call_id] = Call(
            id=call_id, method=method, context=context, timeout_seconds=seconds or 0.0, payload=payload
        )
        self._wake()
        timer = self._loop.call_later(seconds, _expire, waiting) if seconds is not None else None
        try:
            answer: Answer = await waiting
        finally:
            if timer is not None:
                timer.cancel()
            is_left = self._pending.pop(call_id, None) is not None and not self.ended
            # While a service stands still nothing is sent: what nobody waits for must not pile up here.
            if is_left and self._calls.pop(call_id, None) is None:
                self._cancelled.append(call_id)
                self._wake()
        if answer.code:
            raise _error(answer)
        return answer.payload

    def take(self) -> ExchangeRequest | None:
        """What has to be sent, for the carrier."""
        if not self._calls and not self._cancelled:
            return None
        call_ids = list(itertools.islice(self._calls, _MOST_CALLS))
        request = ExchangeRequest(calls=map(self._calls.pop, call_ids), cancelled_ids=self._cancelled)
        self._cancelled.clear()
        return request

    def answered(self, response: ExchangeResponse) -> None:
        """Answers came."""
        for answer in response.answers:
            waiting = self._pending.pop(answer.id, None)
            if waiting is not None:
                if not waiting.done():
                    waiting.set_result(answer)
            elif not answer.id:
                self.end(_error(answer))

    def end(self, error: Exception) -> None:
        """Nothing more will come: whoever waits is told why. The first reason holds: a line is cut after a refusal."""
        self._ended = error = self._ended or error
        self._calls.clear()
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            if not waiting.done():
                waiting.set_exception(error)

    async def close(self) -> None:
        """Cut the stream."""
        if self.carrier is not None:
            await self.carrier.close()

    def _wake(self) -> None:
        if self._ended is not None:
            # A call that came to a stream in the moment of its end.
            self.end(self._ended)
        elif self.carrier is not None:
            self.carrier.wake()


class _Wire:
    """Carries a stream over a line."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._line = Line(self, hears_while_full=True)
        self._is_awake = False
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def opened(cls, stream: _Stream, path: Path, authorization: str) -> bool:
        """Whether there is a line, which carries the stream now."""
        wire = cls(stream)
        try:
            await wire._loop.create_unix_connection(lambda: wire._line, str(path))
        except OSError:
            return False
        wire._line.send(Hello(authorization=authorization).SerializeToString())
        stream.carrier = wire
        return True

    def wake(self) -> None:
        """Send after everything that is ready to run now, so that calls of one moment share a message."""
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self.has_room)

    def received(self, message: bytes) -> None:
        """Answers came."""
        self._stream.answered(ExchangeResponse.FromString(message))

    def has_room(self) -> None:
        """Send what there is."""
        self._is_awake = False
        while not self._line.is_full and (request := self._stream.take()) is not None:
            self._line.send(request.SerializeToString())

    def lost(self) -> None:
        """The service went, or the line was cut here."""
        self._stream.end(Unavailable(CLOSED_TEXT))
        self._gone.set()

    async def close(self) -> None:
        """Cut the line."""
        self._line.cut()
        await self._gone.wait()


class _Rpc:
    """Carries a stream over an rpc."""

    def __init__(self, stream: _Stream, rpc: Any) -> None:
        self._stream = stream
        self._rpc = rpc
        self._writer: asyncio.Task[None] | None = None
        # Outlives the call that opened the stream, so it must not run as a part of it.
        self._reader = asyncio.create_task(self._read(), name="exchange: answers", context=contextvars.Context())

    @classmethod
    def opened(cls, stream: _Stream, open_rpc: Callable[[], Any]) -> None:
        """Begin the rpc."""
        try:
            stream.carrier = cls(stream, open_rpc())
        except grpc.aio.UsageError:
            stream.end(Unavailable(CLOSED_TEXT))

    def wake(self) -> None:
        """Send after everything that is ready to run now, so that calls of one moment share a message."""
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="exchange: calls", context=contextvars.Context())

    async def close(self) -> None:
        """End the rpc."""
        self._rpc.cancel()
        for task in (self._reader, self._writer):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    async def _write(self) -> None:
        try:
            while (request := self._stream.take()) is not None:
                await self._rpc.write(request)
        except (asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.AioRpcError):
            # The rpc is over; the reader finds out why, and tells everyone who waits.
            pass
        finally:
            self._writer = None

    async def _read(self) -> None:
        error: Exception = Unavailable(CLOSED_TEXT)
        try:
            async for response in self._rpc:
                self._stream.answered(response)
        except grpc.aio.AioRpcError as failed:
            error = NotServed() if failed.code() is grpc.StatusCode.UNIMPLEMENTED else unpack(failed)
        except (asyncio.CancelledError, grpc.aio.UsageError):
            # Of the channel or of this task: the stream is closed either way, and nothing follows.
            pass
        finally:
            self._stream.end(error)


def _expire(waiting: "asyncio.Future[Answer]") -> None:
    if not waiting.done():
        waiting.set_exception(DeadlineExceeded(TOO_SLOW_TEXT))


def _error(answer: Answer) -> DomainError | NotServed:
    if answer.code == _UNIMPLEMENTED and not answer.status:
        return NotServed()
    return rebuilt(answer.code, answer.status, answer.message)
