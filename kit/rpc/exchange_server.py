"""The serving half of ExchangeService: unary calls that come over a stream, run by the same handlers.

Each call is a task of its own with its own context, as it would be under gRPC. A call whose caller gave up, or whose
stream broke, is cancelled. A server that stops takes no more calls, answers those in progress and ends the stream.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from kit.rpc.context import parse_context, set_context
from kit.rpc.status import report
from managed_agents.rpc.v1.exchange_pb2 import Answer, Call, ExchangeRequest, ExchangeResponse
from managed_agents.rpc.v1.exchange_pb2_grpc import ExchangeServiceServicer

# Answers that wait for each other's company go on in a further message beyond this.
_MESSAGE_BYTES = 4 * 1024 * 1024
_UNIMPLEMENTED: int = grpc.StatusCode.UNIMPLEMENTED.value[0]
_UNAVAILABLE: int = grpc.StatusCode.UNAVAILABLE.value[0]


@dataclass(frozen=True, slots=True)
class Method:
    """One unary rpc."""

    behaviour: Callable[[Any, Any], Awaitable[Any]]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


class ExchangeHandler(ExchangeServiceServicer):
    """Serves every unary rpc of its process that was added."""

    def __init__(self, service: str, stopping: asyncio.Event) -> None:
        self._service = service
        self._stopping = stopping
        self._methods: dict[str, Method] = {}

    def add(self, name: str, handler: Any) -> None:
        """Serve a unary handler, as generated code hands it over, under its full name."""
        self._methods[name] = Method(handler.unary_unary, handler.request_deserializer, handler.response_serializer)

    async def Exchange(
        self, request_iterator: AsyncIterator[ExchangeRequest], context: object
    ) -> AsyncIterator[ExchangeResponse]:
        """One caller's stream."""
        stream = _Stream(self._service, self._methods)
        tasks = (
            asyncio.create_task(stream.read(request_iterator), name="exchange: read"),
            asyncio.create_task(self._end(stream), name="exchange: end"),
        )
        try:
            while (response := await stream.next()) is not None:
                yield response
        finally:
            for task in tasks:
                task.cancel()
            stream.cancel()

    async def _end(self, stream: "_Stream") -> None:
        await self._stopping.wait()
        stream.end()


class _Stream:
    """The calls of one stream."""

    def __init__(self, service: str, methods: dict[str, Method]) -> None:
        self._service = service
        self._methods = methods
        self._running: dict[int, asyncio.Task[None]] = {}
        self._answers: list[Answer] = []
        self._ended = False
        self._news = asyncio.Event()

    async def read(self, requests: AsyncIterator[ExchangeRequest]) -> None:
        """Take what comes, until the caller leaves."""
        try:
            async for request in requests:
                for call in request.calls:
                    self._begin(call)
                for call_id in request.cancelled_ids:
                    if (task := self._running.get(call_id)) is not None:
                        task.cancel()
        finally:
            self.end()

    async def next(self) -> ExchangeResponse | None:
        """What was answered since; None once nothing more will be."""
        while not self._answers:
            if self._ended and not self._running:
                return None
            self._news.clear()
            await self._news.wait()
        size = count = 0
        for answer in self._answers:
            size += len(answer.payload)
            if size > _MESSAGE_BYTES and count:
                break
            count += 1
        response = ExchangeResponse(answers=self._answers[:count])
        del self._answers[:count]
        return response

    def end(self) -> None:
        """Begin no more calls."""
        self._ended = True
        self._news.set()

    def cancel(self) -> None:
        """Nobody hears the answers any more."""
        self._ended = True
        for task in self._running.values():
            task.cancel()

    def _begin(self, call: Call) -> None:
        if self._ended:
            self._tell(Answer(id=call.id, code=_UNAVAILABLE, message="The service is stopping."))
            return
        method = self._methods.get(call.method)
        if method is None:
            self._tell(Answer(id=call.id, code=_UNIMPLEMENTED, message=f"{call.method} is not served here."))
            return
        self._running[call.id] = asyncio.create_task(self._run(call, method), name=call.method)

    async def _run(self, call: Call, method: Method) -> None:
        try:
            set_context(parse_context(call.context or None, call.timeout_seconds or None))
            response = await method.behaviour(method.decode(call.payload), None)
            answer = Answer(id=call.id, payload=method.encode(response))
        except Exception as error:
            code, message, encoded = report(error, call.method, self._service)
            answer = Answer(id=call.id, code=code.value[0], message=message, status=encoded)
        finally:
            del self._running[call.id]
            # Also for a call that was cancelled: an ended stream waits for its last one.
            self._news.set()
        self._tell(answer)

    def _tell(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._news.set()
