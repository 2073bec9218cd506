"""The gRPC server of a process.

    server = Server(settings.listen_address(), service="sessions", internal_token=settings.internal_token())
    server.add(add_AgentsServiceServicer_to_server, AgentsHandlers(database))
    service.add("rpc", server.start, server.stop)

Around every handler, outermost first: telemetry (only while traces are on), errors, context, auth. They are joined to
one wrapper per method when the handler is added, so a call pays for no chain. A handler reads `current_context()`,
raises DomainError subclasses, and needs to know no more of gRPC.

`stop` turns health off, sets `stopping` (long-lived streams of ours watch it and end by themselves), and lets calls in
progress finish within the grace.

Unary rpcs are served a second time, inside `managed_agents.rpc.v1.ExchangeService`, for callers that ask all the time;
at the address of a unix socket that comes over a line beside it too (`kit.rpc.line`).
Handlers can't tell the difference; those of unary rpcs get no context object of gRPC that they could rely on.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import grpc
from grpc_health.v1 import health_pb2_grpc

from kit.errors import Unauthenticated
from kit.rpc.context import CONTEXT_KEY, CallContext, current_context, parse_context, set_context
from kit.rpc.exchange_server import ExchangeHandler, Lines, Methods
from kit.rpc.health import Health
from kit.rpc.options import SERVER_OPTIONS, bind
from kit.rpc.status import DETAILS_KEY, report
from kit.telemetry import register_secret, tracing
from managed_agents.rpc.v1.exchange_pb2_grpc import add_ExchangeServiceServicer_to_server

__all__ = ["CallContext", "Server", "current_context"]

# How long a refused stream of requests may go on, and how long it may be quiet. The quiet is counted in steps, since a
# process that stood still for a while finds one time limit over before it has looked at what came.
_HEARD_OUT_SECONDS = 10.0
_QUIET_SECONDS = 0.25
_QUIET_STEPS = 4

S = TypeVar("S")
Metadata = Mapping[str, Any]
Step = Callable[[Metadata, grpc.aio.ServicerContext], None]


class Server:
    """One listening server with its services, and their health."""

    def __init__(
        self, listen: str, *, service: str, internal_token: str | None = None, grace_seconds: float = 10.0
    ) -> None:
        register_secret(internal_token)
        self._listen = listen
        self._service = service
        self._grace_seconds = grace_seconds
        self._expected = f"Bearer {internal_token}".encode() if internal_token else None
        # What happens before a handler, in this order. Errors surround them; telemetry surrounds the errors.
        self._steps: tuple[Step, ...] = (self._bind_context, *((self._authenticate,) if self._expected else ()))
        self._registrations: list[Callable[[grpc.aio.Server], None]] = []
        self._server: grpc.aio.Server | None = None
        self.health = Health()
        self.stopping = asyncio.Event()
        self.port = 0
        self._methods = Methods(service)
        self._lines = Lines(listen, self._methods, self._expected)
        self.add(add_ExchangeServiceServicer_to_server, ExchangeHandler(self._methods, self.stopping))

    def add(self, register: Callable[[S, Any], None], servicer: S) -> None:
        """Serve a generated service; `register` is its `add_…Servicer_to_server`."""
        register(servicer, _Recorder(self))

    async def start(self, *, serving: bool = True) -> None:
        """Listen. Health says SERVING at once, unless a later step has to say so by `health.serve()`."""
        interceptors: list[Any] = []
        if tracing():
            from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters

            interceptors.append(aio_server_interceptor(filter_=filters.negate(filters.health_check())))
        self._server = grpc.aio.server(interceptors=interceptors, options=SERVER_OPTIONS)
        for registration in self._registrations:
            registration(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.port = bind(self._server, self._listen)
        # Before the rpcs, so that whoever reaches those finds lines too.
        await self._lines.start()
        await self._server.start()
        self.health.serve(serving)

    async def stop(self) -> None:
        """Refuse new calls, finish those in progress within the grace, then cut. Safe to repeat."""
        self.health.stop()
        self.stopping.set()
        if self._server is not None:
            await asyncio.gather(self._lines.stop(self._grace_seconds), self._server.stop(self._grace_seconds))

    def register(self, service_name: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        """Take over the handlers of one generated service, wrapped."""
        wrapped = {name: self._wrap(f"{service_name}/{name}", handler) for name, handler in handlers.items()}
        for name, handler in handlers.items():
            if handler.unary_unary is not None:
                self._methods.add(f"{service_name}/{name}", handler)

        def registration(server: grpc.aio.Server) -> None:
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, wrapped),))
            server.add_registered_method_handlers(service_name, wrapped)  # type: ignore[attr-defined]

        self.health.add(service_name)
        self._registrations.append(registration)

    def _wrap(self, method: str, handler: Any) -> grpc.RpcMethodHandler:
        if handler.response_streaming:
            behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
            wrapped = self._streaming(method, behaviour)
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
        else:
            behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
            wrapped = self._single(method, behaviour if not handler.request_streaming else _heard_out(behaviour))
            make = (
                grpc.stream_unary_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_unary_rpc_method_handler
            )
        return make(wrapped, handler.request_deserializer, handler.response_serializer)

    def _single(self, method: str, behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        steps = self._steps

        async def call(request: Any, rpc: grpc.aio.ServicerContext) -> Any:
            try:
                metadata = dict(rpc.invocation_metadata() or ())
                for step in steps:
                    step(metadata, rpc)
                return await behaviour(request, rpc)
            except Exception as error:
                await self._fail(method, rpc, error)

        return call

    def _streaming(
        self, method: str, behaviour: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., AsyncIterator[Any]]:
        steps = self._steps

        async def call(request: Any, rpc: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            try:
                metadata = dict(rpc.invocation_metadata() or ())
                for step in steps:
                    step(metadata, rpc)
                async for response in behaviour(request, rpc):
                    yield response
            except Exception as error:
                await self._fail(method, rpc, error)

        return call

    def _bind_context(self, metadata: Metadata, rpc: grpc.aio.ServicerContext) -> None:
        set_context(parse_context(metadata.get(CONTEXT_KEY), rpc.time_remaining()))

    def _authenticate(self, metadata: Metadata, _rpc: grpc.aio.ServicerContext) -> None:
        given = metadata.get("authorization", "")
        given = given.encode() if isinstance(given, str) else given
        if not hmac.compare_digest(given, self._expected or b""):
            raise Unauthenticated("The call carries no valid internal token.")

    async def _fail(self, method: str, rpc: grpc.aio.ServicerContext, error: Exception) -> NoReturn:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        code, message, encoded = report(error, method, self._service)
        trailing = ((DETAILS_KEY, encoded),) if encoded else ()
        await rpc.abort(code, message, trailing)
        raise AssertionError("abort returned")


def _heard_out(behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A handler of a stream of requests whose refusal waits until nothing more comes, or nothing for a moment.

    A caller whose message meets the end of its call is told by its own gRPC of an internal error, in place of what
    the handler said.
    """

    async def call(requests: AsyncIterator[Any], rpc: grpc.aio.ServicerContext) -> Any:
        try:
            return await behaviour(requests, rpc)
        except Exception:
            with suppress(Exception):
                async with asyncio.timeout(_HEARD_OUT_SECONDS):
                    left = aiter(requests)
                    while await _comes(left):
                        pass
            raise

    return call


async def _comes(requests: AsyncIterator[Any]) -> bool:
    """Whether one more message came before it was quiet for a moment. Raises StopAsyncIteration at the end."""
    reading = asyncio.ensure_future(anext(requests))
    try:
        for _ in range(_QUIET_STEPS):
            await asyncio.wait((reading,), timeout=_QUIET_SECONDS)
            if reading.done():
                await reading
                return True
        return False
    finally:
        reading.cancel()


class _Recorder:
    """Stands in for a server when generated code adds a servicer, and hands the handlers over."""

    def __init__(self, server: Server) -> None:
        self._owner = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """The same handlers come again, by name, in the next call."""

    def add_registered_method_handlers(self, service_name: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        self._owner.register(service_name, handlers)
