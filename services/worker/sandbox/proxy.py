"""The HTTP proxy through which a sandbox reaches the network.

Serves a socket that listens inside the sandbox's own network. Takes CONNECT and
plain HTTP in absolute form, asks the policy, resolves the name here, refuses
every address that is not public, and connects to the very address it checked.
Of plain HTTP exactly one request goes on for each connection, written anew with
the host that was checked: neither its headers nor its body can ask for another.
Connections are bounded in number and end when idle or when the proxy closes.
"""

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from kit.addresses import NO_PRIVATE_HOSTS, PrivateHosts, is_private
from kit.waiting import within
from services.worker.sandbox.egress import NetworkPolicy, is_public, normal_host, split_port
from services.worker.sandbox.http1 import Refused
from services.worker.sandbox.inspecting import Inspector
from services.worker.sandbox.placeholders import SandboxSecrets
from services.worker.sandbox.wires import PlainWire

log = logging.getLogger(__name__)

_HEAD_BYTES = 32 * 1024
_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 15.0
_IDLE_SECONDS = 600.0
_CHUNK_BYTES = 64 * 1024
_MAX_CONNECTIONS = 64
_HOP_HEADERS = frozenset(
    {b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"te", b"trailer", b"upgrade"}
)
# Strict, since a line that we and the target read differently could hide a second host or request.
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_CHUNKED = -1
_METHOD = re.compile(rb"[A-Z]{1,20}")

# Addresses of a host, as text.
Resolve = Callable[[str, int], Awaitable[list[str]]]
Connect = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@dataclass(frozen=True, slots=True)
class _Request:
    host: str
    port: int
    # What is sent to the target first; None for a tunnel.
    head: bytes | None
    # Bytes of the body that follows, or `_CHUNKED`.
    body: int = 0


async def resolve_host(host: str, port: int) -> list[str]:
    """Ask the host's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class EgressProxy:
    """One sandbox's proxy."""

    def __init__(
        self,
        policy: NetworkPolicy,
        *,
        resolve: Resolve = resolve_host,
        connect: Connect = asyncio.open_connection,
        private_hosts: PrivateHosts = NO_PRIVATE_HOSTS,
        secrets: SandboxSecrets | None = None,
    ) -> None:
        """Without `secrets` nothing is looked into; `private_hosts` may be reached where the policy names them."""
        self._policy = policy
        self._private_hosts = private_hosts
        self._inspector = None if secrets is None else Inspector(secrets)
        self._resolve = resolve
        self._connect = connect
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Begin to accept on a listening socket, which is ours from here on."""
        listener.setblocking(False)
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_HEAD_BYTES)

    async def close(self) -> None:
        """Stop, and cut what is open."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The other side went away or talked nonsense; there is nobody to tell.
            pass
        except asyncio.CancelledError:
            # Only `close` cancels; a cancelled handler would be logged as a failure.
            pass
        finally:
            self._open.discard(task)
            await _close(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._open) > _MAX_CONNECTIONS:
                raise Refused("503 Service Unavailable", "Too many connections at once.")
            head = await within(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
            request = _parse(head)
            inspected = await self._is_inspected(request)
            upstream_reader, upstream = await self._dial(request)
        except Refused as refusal:
            writer.write(refusal.to_bytes())
            await writer.drain()
            return
        try:
            if request.head is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            elif not inspected:
                upstream.write(request.head)
            if inspected:
                await self._inspect(request, PlainWire(reader, writer), PlainWire(upstream_reader, upstream))
                return
            up = _pump(reader, upstream) if request.head is None else _send_body(request.body, reader, upstream)
            await _relay(up, upstream_reader, writer)
        finally:
            await _close(upstream)

    async def _is_inspected(self, request: _Request) -> bool:
        if self._inspector is None or not self._policy.allows(request.host, request.port):
            return False
        return await self._inspector.wants(request.host, request.port, is_tunnel=request.head is None)

    async def _inspect(self, request: _Request, client: PlainWire, server: PlainWire) -> None:
        assert self._inspector is not None
        if request.head is None:
            await self._inspector.pass_tunnel(client, server, request.host, request.port)
        else:
            await self._inspector.pass_request(request.head, client, server, request.host, request.port)

    async def _dial(self, request: _Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._policy.allows(request.host, request.port):
            log.info("egress refused by policy: %s:%d", request.host, request.port)
            raise Refused("403 Forbidden", f"The environment's network policy does not allow {request.host}.")
        try:
            addresses = await within(self._resolve(request.host, request.port), _CONNECT_SECONDS)
        except (OSError, TimeoutError, UnicodeError):
            raise Refused("502 Bad Gateway", f"{request.host} cannot be resolved.") from None
        public = [address for address in addresses if self._may_reach(request, address)]
        if not public:
            log.info("egress refused by address: %s:%d", request.host, request.port)
            raise Refused("403 Forbidden", f"{request.host} has no public address.")
        for address in public[:4]:
            try:
                return await within(self._connect(address, request.port), _CONNECT_SECONDS)
            except (OSError, TimeoutError):
                continue
        raise Refused("502 Bad Gateway", f"{request.host} cannot be reached.")

    def _may_reach(self, request: _Request, address: str) -> bool:
        if is_public(address):
            return True
        # Leave for any host is no leave for the operator's own network: the policy has to name the host.
        named = self._private_hosts.allows(request.host, request.port) and self._policy.names(
            request.host, request.port
        )
        return named and is_private(ipaddress.ip_address(address))


def _parse(head: bytes) -> _Request:
    line, _, rest = head.partition(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or not _METHOD.fullmatch(parts[0]) or not parts[2].startswith(b"HTTP/1."):
        raise Refused("400 Bad Request", "Not an HTTP request.")
    method, target, version = parts
    if method == b"CONNECT":
        name, port = split_port(target.decode("latin-1"))
        return _Request(_host(name), _valid_port(port), None)
    try:
        url = urlsplit(target.decode("ascii"))
        port = url.port
    except ValueError:
        raise Refused("400 Bad Request", "The URL is malformed.") from None
    if url.scheme != "http" or not url.hostname:
        raise Refused("400 Bad Request", "Send an absolute http:// URL, or CONNECT.")
    host, port = _host(url.hostname), _valid_port(port or 80)
    headers, body = _read_headers(rest, host, port)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    shown = f"[{host}]" if ":" in host else host
    first = b" ".join((method, path.encode(), version))
    own = (f"Host: {shown}" if port == 80 else f"Host: {shown}:{port}").encode()
    return _Request(host, port, b"\r\n".join((first, own, *headers, b"Connection: close", b"", b"")), body)


def _read_headers(lines: bytes, host: str, port: int) -> tuple[list[bytes], int]:
    """Headers to send on, without Host and those between us and the client, and the size of the body."""
    kept: list[bytes] = []
    lengths: set[bytes] = set()
    codings: list[bytes] = []
    for line in filter(None, lines.removesuffix(b"\r\n\r\n").split(b"\r\n")):
        header = _HEADER.fullmatch(line)
        if header is None:
            raise Refused("400 Bad Request", "A header is malformed.")
        name, value = header[1].lower(), header[2].strip()
        if name == b"host":
            _check_host(value, host, port)
        elif name not in _HOP_HEADERS:
            kept.append(line)
            if name == b"content-length":
                lengths.add(value)
            elif name == b"transfer-encoding":
                codings.append(value.lower())
    return kept, _body_size(lengths, codings)


def _check_host(value: bytes, host: str, port: int) -> None:
    name, named_port = split_port(value.decode("latin-1"))
    if normal_host(name) != host or (named_port if named_port is not None else 80) != port:
        raise Refused("400 Bad Request", "The Host header names another host than the URL.")


def _body_size(lengths: set[bytes], codings: list[bytes]) -> int:
    if codings:
        if codings != [b"chunked"] or lengths:
            raise Refused("400 Bad Request", "The size of the body is ambiguous.")
        return _CHUNKED
    if not lengths:
        return 0
    length = lengths.pop()
    if lengths or not length.isdigit() or len(length) > 18:
        raise Refused("400 Bad Request", "The Content-Length is malformed.")
    return int(length)


def _host(name: str) -> str:
    host = normal_host(name)
    if host is None or "*" in host:
        raise Refused("400 Bad Request", "The host name is malformed.")
    return host


def _valid_port(port: int | None) -> int:
    if not port:
        raise Refused("400 Bad Request", "The port is missing or malformed.")
    return port


async def _relay(
    sending: Coroutine[Any, Any, None], upstream_reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    up = asyncio.create_task(sending)
    down = asyncio.create_task(_pump(upstream_reader, writer))
    try:
        # The answer's end is the end; the request's end only closes that half.
        await down
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def _send_body(size: int, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
    """Send on one body and nothing that may follow it; a body that is cut short cuts the request."""
    try:
        if size == _CHUNKED:
            await _send_chunks(reader, upstream)
        else:
            await _send_exactly(size, reader, upstream)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        upstream.close()


async def _send_chunks(reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
    """Send on chunks until the last; what may stand beside them (extensions, trailers) stays behind."""
    while True:
        line = _CHUNK.fullmatch(await within(reader.readline(), _IDLE_SECONDS))
        if line is None:
            raise ValueError("malformed chunk")
        size = int(line[1], 16)
        if not size:
            break
        upstream.write(b"%x\r\n" % size)
        await _send_exactly(size, reader, upstream)
        if await within(reader.readexactly(2), _IDLE_SECONDS) != b"\r\n":
            raise ValueError("malformed end of a chunk")
        upstream.write(b"\r\n")
    upstream.write(b"0\r\n\r\n")
    await upstream.drain()


async def _send_exactly(size: int, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
    while size > 0:
        data = await within(reader.read(min(size, _CHUNK_BYTES)), _IDLE_SECONDS)
        if not data:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(data)
        upstream.write(data)
        await upstream.drain()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        while data := await within(source.read(_CHUNK_BYTES), _IDLE_SECONDS):
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await writer.wait_closed()
