"""The serving half of ExchangeService: unary calls that come over a stream, run by the same handlers.

Each call is a task of its own with its own context, as it would be under gRPC. A call whose caller gave up, or whose
stream broke, is cancelled. A server that stops takes no more calls, answers those in progress and ends the stream.
Streams come as an rpc and, at the address of a unix socket, over a line beside it.
"""

import asyncio
import hmac
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from kit.errors import Unauthenticated
from kit.rpc.context import parse_context, set_context
from kit.rpc.line import Line, line_path
from kit.rpc.options import MESSAGE_BYTES
from kit.rpc.status import pack, report
from kit.telemetry import log
from managed_agents.rpc.v1.exchange_pb2 import Answer, Call, ExchangeRequest, ExchangeResponse, Hello
from managed_agents.rpc.v1.exchange_pb2_grpc import ExchangeServiceServicer

# Answers that wait for each other's company go on in a further message beyond this.
_MESSAGE_BYTES = 4 * 1024 * 1024
_BACKLOG = 128
_UNIMPLEMENTED: int = grpc.StatusCode.UNIMPLEMENTED.value[0]
_UNAVAILABLE: int = grpc.StatusCode.UNAVAILABLE.value[0]


@dataclass(frozen=True, slots=True)
class Method:
    """One unary rpc."""

    behaviour: Callable[[Any, Any], Awaitable[Any]]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


class Methods:
    """Every unary rpc of a process, by its full name."""

    def __init__(self, service: str) -> None:
        self.service = service
        self._methods: dict[str, Method] = {}

    def add(self, name: str, handler: Any) -> None:
        """Serve a unary handler, as generated code hands it over, under its full name."""
        self._methods[name] = Method(handler.unary_unary, handler.request_deserializer, handler.response_serializer)

    def get(self, name: str) -> Method | None:
        """The rpc of this name, if it is served."""
        return self._methods.get(name)


class ExchangeHandler(ExchangeServiceServicer):
    """Serves streams that come as an rpc."""

    def __init__(self, methods: Methods, stopping: asyncio.Event) -> None:
        self._methods = methods
        self._stopping = stopping

    async def Exchange(
        self, request_iterator: AsyncIterator[ExchangeRequest], context: object
    ) -> AsyncIterator[ExchangeResponse]:
        """One caller's stream."""
        news = asyncio.Event()
        stream = _Stream(self._methods, news.set)
        tasks = (
            asyncio.create_task(_read(stream, request_iterator), name="exchange: read"),
            asyncio.create_task(self._end(stream), name="exchange: end"),
        )
        try:
            while not stream.is_over:
                while (response := stream.take()) is not None:
                    yield response
                news.clear()
                if not stream.is_over:
                    await news.wait()
        finally:
            for task in tasks:
                task.cancel()
            stream.cancel()

    async def _end(self, stream: "_Stream") -> None:
        await self._stopping.wait()
        stream.end()


async def _read(stream: "_Stream", requests: AsyncIterator[ExchangeRequest]) -> None:
    """Take what comes, until the caller leaves."""
    try:
        async for request in requests:
            stream.received(request)
    finally:
        stream.end()


class Lines:
    """Serves streams that come over lines, at an address that is a unix socket; nothing at any other."""

    def __init__(self, address: str, methods: Methods, expected: bytes | None) -> None:
        """`expected` is the authorization without which nobody is served; None for everybody."""
        self._path = line_path(address)
        self._methods = methods
        self._expected = expected
        self._server: asyncio.Server | None = None
        self._open: set[_Wire] = set()
        self._none_left = asyncio.Event()

    async def start(self) -> None:
        """Listen. Only one process may serve the address; whoever calls this has made sure of it."""
        if self._path is None:
            return
        try:
            listener = _listener(self._path)
        except OSError as error:
            # A path that is too long, for one. Callers find no line, and open rpcs.
            log.warning("no line is served", path=str(self._path), error=error.strerror or str(error))
            return
        self._server = await asyncio.get_running_loop().create_unix_server(self._accepted, sock=listener)

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls, answer those in progress within the grace, then cut."""
        if self._server is None or self._path is None:
            return
        self._server.close()
        # Once only: later on another process may listen there.
        self._server = None
        self._path.unlink(missing_ok=True)
        for wire in tuple(self._open):
            wire.end()
        try:
            async with asyncio.timeout(grace_seconds):
                while self._open:
                    self._none_left.clear()
                    await self._none_left.wait()
        except TimeoutError:
            for wire in tuple(self._open):
                wire.cut()

    def _accepted(self) -> Line:
        wire = _Wire(self._methods, self._expected, self._left)
        self._open.add(wire)
        return wire.line

    def _left(self, wire: "_Wire") -> None:
        self._open.discard(wire)
        if not self._open:
            self._none_left.set()


class _Wire:
    """One caller's line."""

    def __init__(self, methods: Methods, expected: bytes | None, left: Callable[["_Wire"], None]) -> None:
        self.line = Line(self, hears_while_full=False)
        self._expected = expected
        self._left = left
        self._is_greeted = False
        self._is_awake = False
        self._loop = asyncio.get_running_loop()
        self._stream = _Stream(methods, self._wake)

    def received(self, message: bytes) -> None:
        """The greeting, then calls."""
        if self._is_greeted:
            self._stream.received(ExchangeRequest.FromString(message))
            return
        given = Hello.FromString(message).authorization.encode()
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            refusal = Unauthenticated("The line was opened without a valid internal token.")
            code, text, encoded = pack(refusal, self._stream.service)
            answer = Answer(id=0, code=code.value[0], message=text, status=encoded)
            self.line.send(ExchangeResponse(answers=[answer]).SerializeToString())
            self.line.close()
            return
        self._is_greeted = True

    def has_room(self) -> None:
        """Send what there is."""
        self._is_awake = False
        while not self.line.is_full and (response := self._stream.take()) is not None:
            self.line.send(response.SerializeToString())
        if self._stream.is_over:
            self.line.close()

    def lost(self) -> None:
        """The caller went, or the line was cut here."""
        self._stream.cancel()
        self._left(self)

    def end(self) -> None:
        """Begin no more calls, and cut the line once those in progress are answered."""
        self._stream.end()

    def cut(self) -> None:
        """Cut the line now."""
        self.line.cut()

    def _wake(self) -> None:
        # After everything that is ready to run now, so that answers of one moment share a message.
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self.has_room)


def _listener(path: Path) -> socket.socket:
    """A socket for this user alone, in the place of what a former process left."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


class _Stream:
    """The calls of one stream."""

    def __init__(self, methods: Methods, wake: Callable[[], None]) -> None:
        """`wake` is called when there is something to take, or nothing more will be."""
        self.service = methods.service
        self._methods = methods
        self._wake = wake
        self._running: dict[int, asyncio.Task[None]] = {}
        self._answers: list[Answer] = []
        self._ended = False

    @property
    def is_over(self) -> bool:
        """Whether everything is answered and taken, and no more calls are begun."""
        return self._ended and not self._running and not self._answers

    def received(self, request: ExchangeRequest) -> None:
        """Begin calls, and end those whose callers are gone."""
        for call in request.calls:
            self._begin(call)
        for call_id in request.cancelled_ids:
            if (task := self._running.get(call_id)) is not None:
                task.cancel()
                # One that was not begun yet is never going to say itself that it is over.
                task.add_done_callback(partial(self._left, call_id))

    def take(self) -> ExchangeResponse | None:
        """What was answered since; None where nothing was."""
        if not self._answers:
            return None
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
        self._wake()

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
            answer = Answer(id=call.id, payload=_fitting(method.encode(response)))
        except Exception as error:
            code, message, encoded = report(error, call.method, self.service)
            answer = Answer(id=call.id, code=code.value[0], message=message, status=encoded)
        finally:
            self._running.pop(call.id, None)
            # Also for a call that was cancelled: an ended stream waits for its last one.
            self._wake()
        self._tell(answer)

    def _left(self, call_id: int, _task: asyncio.Task[None]) -> None:
        if self._running.pop(call_id, None) is not None:
            self._wake()

    def _tell(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._wake()


def _fitting(payload: bytes) -> bytes:
    if len(payload) > MESSAGE_BYTES:
        # Would take everybody's stream down.
        raise ValueError(f"an answer of {len(payload)} bytes is larger than the {MESSAGE_BYTES} that are sent")
    return payload
