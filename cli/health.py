"""Asking the gateway over HTTP whether it is ready."""

import asyncio
import functools
import ipaddress
from collections.abc import Awaitable, Callable

from cli.catalog import Process

_RETRY_SECONDS = 0.03
_REQUEST_SECONDS = 5.0


async def until_answering(process: Process, *, host: str, port: int) -> None:
    """Return once the gateway finds every service; any other process serves when it says so."""
    if not process.listen:
        await until(functools.partial(http_ready, host, port))


async def until(condition: Callable[[], Awaitable[bool]], *, every_seconds: float = _RETRY_SECONDS) -> None:
    """Return once the condition holds."""
    while True:
        if await condition():
            return
        await asyncio.sleep(every_seconds)


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
