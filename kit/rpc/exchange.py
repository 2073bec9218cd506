"""The calling half of ExchangeService: unary calls over one stream that stays open.

A unary call of gRPC costs about 0.3 ms of CPU, most of it to begin and to end a call; a message on an open stream costs
a fifth of that, and calls that come together share one. What callers see is the same: errors, deadlines, cancellation,
context. A stream that breaks fails the calls that it had not answered, and the next call opens another one.
"""

import asyncio
import contextvars
import itertools
import time
from collections.abc import Callable
from typing import Any

import grpc

from kit.errors import DeadlineExceeded, DomainError, Unavailable
from kit.rpc.status import TOO_SLOW_TEXT, rebuilt, unpack
from managed_agents.rpc.v1.exchange_pb2 import Answer, Call, ExchangeRequest

CLOSED_TEXT = "The connection to another part of the platform was closed."
# A larger request goes by itself, so that the small ones need not wait for it.
LARGEST_PAYLOAD = 256 * 1024
# A service that does not know exchanges may have been replaced by one that does after this time.
_ASK_AGAIN_SECONDS = 30.0
_UNIMPLEMENTED: int = grpc.StatusCode.UNIMPLEMENTED.value[0]


class NotServed(Exception):
    """The service does not take this call in an exchange, and has not made it."""


class Exchange:
    """The exchange with one service; opens at the first call."""

    def __init__(self, open_stream: Callable[[], Any]) -> None:
        """`open_stream` begins an rpc without requests."""
        self._open_stream = open_stream
        self._stream: _Stream | None = None
        self._not_before = 0.0

    async def call(self, method: str, context: bytes, seconds: float | None, payload: bytes) -> bytes:
        """Make one call. Raises the DomainError that it ends with, or NotServed."""
        if time.monotonic() < self._not_before:
            raise NotServed
        if self._stream is None or self._stream.ended:
            try:
                self._stream = _Stream(self._open_stream())
            except grpc.aio.UsageError:
                raise Unavailable(CLOSED_TEXT) from None
        try:
            return await self._stream.call(method, context, seconds, payload)
        except NotServed:
            if self._stream.ended:
                self._not_before = time.monotonic() + _ASK_AGAIN_SECONDS
            raise

    async def close(self) -> None:
        """Cut the stream; calls in progress fail."""
        if self._stream is not None:
            await self._stream.close()


class _Stream:
    """One rpc, from its first call to its end."""

    def __init__(self, rpc: Any) -> None:
        self.ended = False
        self._rpc = rpc
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._calls: list[Call] = []
        self._cancelled: list[int] = []
        self._writer: asyncio.Task[None] | None = None
        # Outlives the call that opened the stream, so it must not run as a part of it.
        self._reader = asyncio.create_task(self._read(), name="exchange: answers", context=contextvars.Context())

    async def call(self, method: str, context: bytes, seconds: float | None, payload: bytes) -> bytes:
        """Send a call with the next message, and await its answer."""
        loop = asyncio.get_running_loop()
        call_id, waiting = next(self._ids), loop.create_future()
        self._pending[call_id] = waiting
        self._calls.append(
            Call(id=call_id, method=method, context=context, timeout_seconds=seconds or 0.0, payload=payload)
        )
        self._write_soon()
        timer = loop.call_later(seconds, _expire, waiting) if seconds is not None else None
        try:
            answer: Answer = await waiting
        finally:
            if timer is not None:
                timer.cancel()
            if self._pending.pop(call_id, None) is not None and not self.ended:
                self._cancelled.append(call_id)
                self._write_soon()
        if answer.code:
            raise _error(answer)
        return answer.payload

    async def close(self) -> None:
        """Cut the stream."""
        self._rpc.cancel()
        for task in (self._reader, self._writer):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    def _write_soon(self) -> None:
        # Begins after everything that is ready to run now, so that calls of one moment share a message.
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="exchange: calls", context=contextvars.Context())

    async def _write(self) -> None:
        try:
            while self._calls or self._cancelled:
                request = ExchangeRequest(calls=self._calls, cancelled_ids=self._cancelled)
                self._calls, self._cancelled = [], []
                await self._rpc.write(request)
        except (asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.AioRpcError):
            # The rpc is over; the reader finds out why, and tells everyone who waits.
            self._calls, self._cancelled = [], []
        finally:
            self._writer = None

    async def _read(self) -> None:
        error: Exception = Unavailable(CLOSED_TEXT)
        try:
            async for response in self._rpc:
                for answer in response.answers:
                    waiting = self._pending.pop(answer.id, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(answer)
        except grpc.aio.AioRpcError as failed:
            error = NotServed() if failed.code() is grpc.StatusCode.UNIMPLEMENTED else unpack(failed)
        except (asyncio.CancelledError, grpc.aio.UsageError):
            # Of the channel or of this task: the stream is closed either way, and nothing follows.
            pass
        finally:
            self._end(error)

    def _end(self, error: Exception) -> None:
        self.ended = True
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            if not waiting.done():
                waiting.set_exception(error)


def _expire(waiting: "asyncio.Future[Answer]") -> None:
    if not waiting.done():
        waiting.set_exception(DeadlineExceeded(TOO_SLOW_TEXT))


def _error(answer: Answer) -> DomainError | NotServed:
    if answer.code == _UNIMPLEMENTED and not answer.status:
        return NotServed()
    return rebuilt(answer.code, answer.status, answer.message)
