"""Asking a process whether it is ready: gRPC health for services, the readiness route for the gateway."""

import asyncio
import functools
import ipaddress
import os
from collections.abc import Awaitable, Callable
from typing import Any

from cli.catalog import Process

_RETRY_SECONDS = 0.03
_REQUEST_SECONDS = 5.0


async def until_ready(process: Process, *, host: str, port: int, token: str) -> None:
    """Return once the process says that it serves."""
    if process.listen:
        await _until_grpc_ready(process.listen, token)
    else:
        await until(functools.partial(http_ready, host, port))


async def _until_grpc_ready(listen: str, token: str) -> None:
    await until(functools.partial(_exists, listen.removeprefix("unix:")))
    # Imported late: it costs a tenth of a second that the services can use to start.
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    metadata = (("authorization", f"Bearer {token}"),)
    options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
    async with grpc.aio.insecure_channel(listen, options=options) as channel:
        # The generated stub's methods are set at run time, out of a type checker's sight.
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                watch = stub.Watch(health_pb2.HealthCheckRequest(), metadata=metadata, wait_for_ready=True)
                async for answer in watch:
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        watch.cancel()
                        return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(_RETRY_SECONDS)


async def until(condition: Callable[[], Awaitable[bool]], *, every_seconds: float = _RETRY_SECONDS) -> None:
    """Return once the condition holds."""
    while True:
        if await condition():
            return
        await asyncio.sleep(every_seconds)


async def _exists(path: str) -> bool:
    return os.access(path, os.F_OK)


def reachable_host(host: str) -> str:
    """The address under which a listener on `host` answers from this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def url(host: str, port: int) -> str:
    reachable = reachable_host(host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


async def http_ready(host: str, port: int) -> bool:
    """Whether the gateway at this address says that it is ready."""
    status, _ = await http_get(host, port, "/v1/x/health?ready=true")
    return status == 200


async def http_get(host: str, port: int, path: str, api_key: str | None = None) -> tuple[int, bytes]:
    """Status and body of a plain GET; status 0 where nothing speaks HTTP there."""
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            reader, writer = await asyncio.open_connection(reachable_host(host), port)
            try:
                key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
                head = f"GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\n{key}connection: close\r\n\r\n"
                writer.write(head.encode())
                answer = await reader.read()
            finally:
                writer.close()
        started, _, body = answer.partition(b"\r\n\r\n")
        return int(started.split(b" ", 2)[1]), body
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0, b""
