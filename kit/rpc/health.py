"""grpc.health.v1 for one process: `""` and every served service share one state.

A watch ends when the process stops, since an open stream would hold the orderly stop up until its time is over.
"""

import asyncio
from collections.abc import AsyncIterator

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Response = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):
    """Not serving until `serve()`, and never again after `stop()`."""

    def __init__(self) -> None:
        self._names = {""}
        self._serving = False
        self._stopped = False
        self._changed = asyncio.Event()

    def add(self, name: str) -> None:
        """A service whose health may be asked by name."""
        self._names.add(name)

    def serve(self, serving: bool = True) -> None:
        """Tell whether the process takes calls."""
        if not self._stopped:
            self._set(serving)

    def stop(self) -> None:
        """Take no more calls, for good; every watch gets the news and ends."""
        self._stopped = True
        self._set(False)

    def _set(self, serving: bool) -> None:
        self._serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def _answer(self, name: str) -> health_pb2.HealthCheckResponse:
        if name not in self._names:
            return _Response(status=_Response.SERVICE_UNKNOWN)
        return _Response(status=_Response.SERVING if self._serving else _Response.NOT_SERVING)

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "This process serves no such service.")
        return self._answer(request.service)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        while True:
            changed = self._changed
            yield self._answer(request.service)
            if self._stopped:
                return
            await changed.wait()
