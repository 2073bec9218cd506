"""The part of the egress proxy that looks into requests, for sessions that have credentials.

Plain HTTP is always looked into. TLS is opened only for hosts that a credential allows;
towards the client with a certificate of the session's own authority, towards the host as
any careful client: its name and chain are verified against this machine's trust store,
before a single byte of a request is sent. Whatever is neither HTTP nor TLS, and every
other host, passes as it is.
"""

import asyncio
import contextlib
import logging
import re
import ssl
from functools import lru_cache

from services.worker.sandbox.egress import normal_host, split_port
from services.worker.sandbox.exchange import Exchange, Side, tunnel
from services.worker.sandbox.http1 import HEAD_BYTES, Head, Malformed, Refused, read_request
from services.worker.sandbox.injecting import Injection
from services.worker.sandbox.placeholders import SandboxSecrets, SecretsUnavailable
from services.worker.sandbox.wires import PlainWire, TlsWire, Wire

log = logging.getLogger(__name__)

_TLS_HANDSHAKE = b"\x16"
# The first word of a request, as far as it has come; a greeting of another protocol goes on otherwise.
_METHOD = re.compile(rb"[A-Z]{1,20}(?: |$)")
_BUFFERS = 4


@lru_cache(maxsize=1)
def trust_store() -> ssl.SSLContext:
    """Verifies hosts against the certificates that this machine trusts."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Inspector:
    """Looks into the requests of one session's proxy."""

    def __init__(self, secrets: SandboxSecrets) -> None:
        self._secrets = secrets
        self._buffers = asyncio.Semaphore(_BUFFERS)

    async def wants(self, host: str, port: int, *, is_tunnel: bool) -> bool:
        """Whether a request to this host is to be looked into. Raises Refused where that cannot be known."""
        try:
            placeholders = await self._secrets.placeholders()
        except SecretsUnavailable as unavailable:
            raise Refused("503 Service Unavailable", str(unavailable)) from unavailable
        if not is_tunnel:
            return bool(placeholders)
        return any(each.allows(host, port) for each in placeholders)

    async def pass_request(self, head: bytes, client: PlainWire, server: PlainWire, host: str, port: int) -> None:
        """One request of plain HTTP, its head written anew already."""
        await self._serve(client, server, host, port, first=read_request(head))

    async def pass_tunnel(self, client: PlainWire, server: PlainWire, host: str, port: int) -> None:
        """What a client does with a tunnel: requests in TLS or in the clear, or something else."""
        first = await _first_of(client, server)
        if first.startswith(_TLS_HANDSHAKE):
            await self._open_tls(client, server, host, port)
        elif _METHOD.match(first):
            await self._serve(client, server, host, port, default_port=80)
        else:
            await tunnel(Side.of(client), Side.of(server))

    async def _open_tls(self, client: PlainWire, server: PlainWire, host: str, port: int) -> None:
        upstream = TlsWire(server, trust_store(), server_name=host)
        refusal: Refused | None = None
        try:
            await upstream.handshake()
        except ssl.SSLCertVerificationError as untrusted:
            log.info("egress: the certificate of %s is not trusted: %s", host, untrusted.verify_message)
            refusal = Refused("502 Bad Gateway", f"The certificate of {host}: {untrusted.verify_message}.")
        except (ssl.SSLError, OSError, TimeoutError):
            refusal = Refused("502 Bad Gateway", f"{host} does not speak TLS as was expected.")
        inside = TlsWire(client, self._secrets.authority.context_for(host))
        try:
            await inside.handshake()
        except ssl.SSLError:
            # A client that trusts only what it brought itself goes away.
            return
        if refusal is None:
            await self._serve(inside, upstream, host, port, default_port=443)
        else:
            await inside.write(refusal.to_bytes())
        await inside.end()

    async def _serve(
        self, client: Wire, server: Wire, host: str, port: int, *, default_port: int = 80, first: Head | None = None
    ) -> None:
        """Requests one after another; `first` is the only one where it is given."""
        sides = Side.of(client), Side.of(server)
        answered = 0
        while True:
            exchange: Exchange | None = None
            try:
                head = first or await _next_request(sides[0], host, port, default_port)
                if head is None:
                    return
                injection = Injection(self._secrets, await self._secrets.placeholders(), host, port)
                exchange = Exchange(injection, lambda: self._secrets.echoes, *sides, self._buffers)
                again = await exchange.run(head)
            except (Refused, Malformed) as failure:
                if exchange is not None and exchange.begun:
                    raise ConnectionResetError("cut off in the middle of an answer") from failure
                refused = failure if isinstance(failure, Refused) else Refused("400 Bad Request", str(failure))
                await client.write(refused.to_bytes())
                return
            except (asyncio.IncompleteReadError, OSError):
                # Of a connection that was used before, clients know that it may end, and ask again on a new one.
                if answered or exchange is None or exchange.begun:
                    raise
                await client.write(Refused("502 Bad Gateway", f"{host} ended the connection.").to_bytes())
                return
            answered += 1
            if not again or first is not None:
                return


async def _next_request(client: Side, host: str, port: int, default_port: int) -> Head | None:
    """The next request, for this very host and no other; None where there is none."""
    try:
        head = read_request(await client.intake.until(b"\r\n\r\n", HEAD_BYTES))
    except asyncio.IncompleteReadError:
        return None
    target, named = head.line.split(b" ")[1], head.values(b"host")
    if not target.startswith(b"/") and target != b"*":
        raise Malformed("The target of a request must be a path.")
    if len(named) != 1:
        raise Malformed("A request names its host once.")
    name, named_port = split_port(named[0].decode("latin-1"))
    if normal_host(name) != host or (named_port if named_port is not None else default_port) != port:
        raise Malformed("The Host header names another host than the connection.")
    return head


async def _first_of(client: PlainWire, server: PlainWire) -> bytes:
    """What the client says first; nothing where the server speaks first."""
    asking, answering = asyncio.create_task(client.read()), asyncio.create_task(server.read())
    try:
        await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (asking, answering):
            task.cancel()
        await asyncio.gather(asking, answering, return_exceptions=True)
    first = b""
    for task, wire in ((asking, client), (answering, server)):
        if not task.cancelled():
            data = task.result()
            wire.unread(data)
            if wire is client:
                first = data
    return first


def host_roots() -> bytes:
    """The certificates that this machine trusts, as one file of PEM."""
    named = ssl.get_default_verify_paths().cafile
    for path in (named, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"):
        if path:
            with contextlib.suppress(OSError), open(path, "rb") as stream:
                return stream.read()
    return b""
