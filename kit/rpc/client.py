"""Calls to other services.

    channel = Channel(settings.sessions_address, token=settings.internal_token(), service="gateway")
    sessions = channel.stub(SessionsServiceStub)
    answer = await sessions.GetSession(GetSessionRequest(session_id=…), retry=True)
    async for batch in turns.ReadTurnContext(request): …
    await channel.close()

A stub's methods take `context` (default: that of the call in progress), `timeout_seconds`, and, for unary calls,
`retry`. A unary call always ends: after 15 s by default, or 50 ms before the deadline of the call in progress, so that
there is time left to say so. Streams have no limit unless one is given, and end with the call in progress.

A refusal arrives as the DomainError that the service raised (canonical class, its `reason`). A call that is marked
`retry` (it must be safe to repeat) is tried once more after UNAVAILABLE; the second try waits for the service to come
back, within the same deadline. Nothing else retries.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from kit.errors import DeadlineExceeded, Unavailable
from kit.rpc.context import CONTEXT_KEY, CallContext, context_or_none
from kit.rpc.exchange import CLOSED_TEXT, LARGEST_PAYLOAD, Exchange, NotServed
from kit.rpc.line import line_path
from kit.rpc.options import CHANNEL_OPTIONS, target
from kit.rpc.status import unpack
from kit.telemetry import register_secret, tracing
from managed_agents.rpc.v1.exchange_pb2_grpc import ExchangeServiceStub

DEFAULT_SECONDS = 15.0
# Kept back from the caller's deadline to answer in, and the least that is worth a call.
_RESERVE_SECONDS = 0.05
_LEAST_SECONDS = 0.1

Metadata = tuple[tuple[str, str | bytes], ...]


class Channel:
    """A connection to one service, kept and renewed by itself; cheap to make, connects at the first call."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout_seconds: float = DEFAULT_SECONDS,
        exchange: bool = False,
    ) -> None:
        """`exchange` has unary calls share one stream (`kit.rpc.exchange`), for a service that is asked all the time.

        Not while traces are on: each call is a span of its own then.
        """
        register_secret(token)
        interceptors: list[Any] = []
        if tracing():
            from opentelemetry.instrumentation.grpc import aio_client_interceptors

            interceptors.extend(aio_client_interceptors())
        self.raw = grpc.aio.insecure_channel(target(address), options=CHANNEL_OPTIONS, interceptors=interceptors)
        self.authorization: Metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.timeout_seconds = timeout_seconds
        self.exchange: Exchange | None = None
        if exchange and not tracing():
            rpc = ExchangeServiceStub(self.raw).Exchange
            bearer = f"Bearer {token}" if token else ""
            self.exchange = Exchange(lambda: rpc(metadata=self.authorization), line_path(address), bearer)

    def stub(self, stub: type[Any]) -> Any:
        """The generated stub's methods, with deadlines, metadata and typed errors."""
        return stub(_Wrapping(self))

    async def ready(self, timeout_seconds: float) -> bool:
        """Wait until the service can be reached."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.raw.channel_ready()
        except TimeoutError:
            return False
        return True

    async def close(self, grace_seconds: float | None = None) -> None:
        """Cut what is in progress after the grace."""
        if self.exchange is not None:
            await self.exchange.close()
        await self.raw.close(grace_seconds)


def channel(address: str, *, token: str | None = None, timeout_seconds: float = DEFAULT_SECONDS) -> Channel:
    """A channel to a service."""
    return Channel(address, token=token, timeout_seconds=timeout_seconds)


class _Wrapping:
    """Stands in for a gRPC channel when a generated stub asks for its methods, and answers with ours."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **options: Any) -> "Unary":
        method = self._channel.raw.unary_unary(path, request_serializer, response_deserializer, **options)
        exchange = self._channel.exchange
        if exchange is None:
            return Unary(self._channel, method)
        return Unary(self._channel, method, Exchanged(exchange, path[1:], request_serializer, response_deserializer))

    def unary_stream(self, *arguments: Any, **options: Any) -> "Streaming":
        return Streaming(self._channel, self._channel.raw.unary_stream(*arguments, **options))

    def stream_unary(self, *arguments: Any, **options: Any) -> "Unary":
        return Unary(self._channel, self._channel.raw.stream_unary(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> "Streaming":
        return Streaming(self._channel, self._channel.raw.stream_stream(*arguments, **options))


@dataclass(frozen=True, slots=True)
class Exchanged:
    """How one rpc is called within an exchange."""

    exchange: Exchange
    method: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    async def call(self, request: Any, context: CallContext | None, seconds: float | None) -> Any:
        """Raises the DomainError that the call ends with, or NotServed where it has to be made otherwise."""
        payload = self.encode(request)
        if len(payload) > LARGEST_PAYLOAD:
            raise NotServed
        wire = b"" if context is None else context.wire
        return self.decode(await self.exchange.call(self.method, wire, seconds, payload))


class Unary:
    """One rpc with a single answer."""

    __slots__ = ("_authorization", "_exchanged", "_method", "_timeout_seconds")

    def __init__(self, channel: Channel, method: Any, exchanged: Exchanged | None = None) -> None:
        self._method = method
        self._exchanged = exchanged
        self._authorization = channel.authorization
        self._timeout_seconds = channel.timeout_seconds

    async def __call__(
        self,
        request: Any,
        *,
        context: CallContext | None = None,
        timeout_seconds: float | None = None,
        retry: bool = False,
    ) -> Any:
        if context is None:
            context = context_or_none()
        limit = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            return await self._once(request, context, limit)
        except Unavailable:
            if not retry:
                raise
        await asyncio.sleep(random.uniform(0.02, 0.1))
        return await self._direct(request, context, limit, wait_for_ready=True)

    async def _once(self, request: Any, context: CallContext | None, limit: float | None) -> Any:
        if self._exchanged is not None:
            try:
                return await self._exchanged.call(request, context, time_for(context, limit))
            except NotServed:
                pass
        return await self._direct(request, context, limit, wait_for_ready=False)

    async def _direct(
        self, request: Any, context: CallContext | None, limit: float | None, *, wait_for_ready: bool
    ) -> Any:
        seconds, metadata = time_for(context, limit), outgoing(context, self._authorization)
        try:
            return await self._method(request, timeout=seconds, metadata=metadata, wait_for_ready=wait_for_ready)
        except (asyncio.CancelledError, grpc.aio.UsageError) as cut:
            raise _cut_off(cut) from None
        except grpc.aio.AioRpcError as failed:
            raise unpack(failed) from None


class Streaming:
    """One rpc with a stream of answers."""

    __slots__ = ("_authorization", "_method")

    def __init__(self, channel: Channel, method: Any) -> None:
        self._method = method
        self._authorization = channel.authorization

    def __call__(
        self, request: Any = None, *, context: CallContext | None = None, timeout_seconds: float | None = None
    ) -> "Answers":
        """`request` is the message, or the async iterator of messages."""
        if context is None:
            context = context_or_none()
        limit = timeout_seconds
        if limit is not None or (context is not None and context.deadline is not None):
            limit = time_for(context, limit)
        metadata = outgoing(context, self._authorization)
        try:
            return Answers(self._method(request, timeout=limit, metadata=metadata))
        except grpc.aio.UsageError as cut:
            raise _cut_off(cut) from None


class Answers:
    """The answers of a streaming call. `cancel()` ends it, and with it the loop over them, without an error."""

    __slots__ = ("_cancelled", "call")

    def __init__(self, call: Any) -> None:
        self.call = call
        self._cancelled = False

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            async for answer in self.call:
                yield answer
        except (asyncio.CancelledError, grpc.aio.UsageError) as cut:
            if not self._cancelled or _is_being_cancelled():
                raise _cut_off(cut) from None
        except grpc.aio.AioRpcError as failed:
            raise unpack(failed) from None
        finally:
            self.call.cancel()

    async def write(self, request: Any) -> None:
        """Send one more message on a stream that was opened without an iterator."""
        try:
            await self.call.write(request)
        except (asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.UsageError) as cut:
            raise _cut_off(cut) from None
        except grpc.aio.AioRpcError as failed:
            raise unpack(failed) from None

    def cancel(self) -> None:
        """End the call now."""
        self._cancelled = True
        self.call.cancel()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _cut_off(cut: BaseException) -> BaseException:
    """What a cancelled call means: the task's own end, or a channel that was closed under it.

    gRPC tells both by CancelledError, and a task that took the second for the first would end without a word.
    """
    if isinstance(cut, asyncio.CancelledError) and _is_being_cancelled():
        return cut
    return Unavailable(CLOSED_TEXT)


def outgoing(context: CallContext | None, authorization: Metadata = ()) -> Metadata:
    """The metadata of a call."""
    if context is None:
        return authorization
    return ((CONTEXT_KEY, context.wire), *authorization)


def time_for(context: CallContext | None, limit_seconds: float | None) -> float | None:
    """Seconds that a call may take: its own limit, but less than what is left for the call in progress."""
    if context is None or context.deadline is None:
        return limit_seconds
    remaining = context.remaining_seconds() or 0.0
    if remaining < _LEAST_SECONDS:
        raise DeadlineExceeded("The time of this request is over before all of it was done.")
    allowed = remaining - _RESERVE_SECONDS
    return allowed if limit_seconds is None else min(allowed, limit_seconds)
