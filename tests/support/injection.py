"""Hosts that a sandbox may talk to, over real TLS on loopback, and a vault with credentials for them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from kit.errors import Unavailable
from managed_agents.vault.v1.injections_pb2 import (
    INJECTION_TARGET_KIND_EGRESS,
    INJECTION_TARGET_KIND_PROCESS,
    DeniedInjection,
    Injection,
    ListInjectionsResponse,
    ResolveInjectionsResponse,
)
from services.worker.runner.secrets.session import Owner, SessionSecrets
from services.worker.sandbox.authority import Authority
from services.worker.sandbox.egress import parse_rule

# Public addresses by name, all of them led to the hosts here.
NAMES = {"api.example": "93.184.216.34", "other.example": "1.1.1.1", "evil.example": "8.8.8.8"}
SECRET = 'tok/en+"5=ü-0123456789'
OWNER = Owner("wrkspc_default", "sess_one", ("vlt_1",))


@dataclass
class Seen:
    """One request as a host got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Hosts:
    """A web server in the clear and one in TLS, with a certificate for every name in NAMES."""

    authority: Authority
    plain_port: int = 0
    tls_port: int = 0
    seen: list[Seen] = field(default_factory=list)
    dialled: list[tuple[str, int]] = field(default_factory=list)
    connections: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Addresses of a name."""
        if host not in NAMES:
            raise OSError("unknown host")
        return [NAMES[host]]

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the server in TLS for port 443, else to the one in the clear."""
        self.dialled.append((address, port))
        self.connections += 1
        return await asyncio.open_connection("127.0.0.1", self.tls_port if port == 443 else self.plain_port)

    def trust(self) -> ssl.SSLContext:
        """What a machine that trusts the hosts' authority verifies with."""
        context = ssl.create_default_context(cadata=self.authority.certificate_pem.decode())
        context.set_alpn_protocols(["http/1.1"])
        return context


@asynccontextmanager
async def hosts(address: str = "127.0.0.1") -> AsyncIterator[Hosts]:
    """Serves until the end of the block. Who asks for no name gets the certificate of the address."""
    found = Hosts(Authority())
    contexts = {name: found.authority.context_for(name) for name in NAMES}

    def by_name(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        if name in contexts:
            connection.context = contexts[name]

    context = found.authority.context_for(address)
    context.sni_callback = by_name
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", _Host(found).answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    plain, tls = web.TCPSite(runner, address, 0), web.TCPSite(runner, address, 0, ssl_context=context)
    for site in (plain, tls):
        await site.start()
    found.plain_port, found.tls_port = (address[1] for address in runner.addresses)
    try:
        yield found
    finally:
        await runner.cleanup()


class _Host:
    def __init__(self, found: Hosts) -> None:
        self._found = found

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("upgrade", "").lower() == "websocket":
            return await self._converse(request)
        body = await request.read()
        self._found.seen.append(Seen(request.method, request.path_qs, dict(request.headers), body))
        if request.path.startswith("/private") and "authorization" not in request.headers:
            return web.Response(status=401, headers={"www-authenticate": 'Basic realm="private"'})
        if request.path.startswith("/forbidden") and "authorization" in request.headers:
            return web.Response(status=403, text=f"not with {request.headers['authorization']}")
        match request.path:
            case "/echo":
                shown = request.headers.get("authorization", "") + "\n" + body.decode()
                return web.Response(text=shown, headers={"x-echo": request.headers.get("x-token", "")})
            case "/gzip":
                response = web.Response(body=body * 10)
                response.enable_compression(web.ContentCoding.gzip)
                return response
            case "/stream":
                return await self._stream(request, body)
            case "/events":
                return await self._events(request)
            case "/go":
                self._found.go.set()
            case "/long":
                return web.Response(body=b"x" * 3_000_000 + body + b"y" * 3_000_000)
        return web.Response(text="ok")

    async def _stream(self, request: web.Request, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for place in range(len(body)):
            await response.write(body[place : place + 1])
        return response

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        # The client asks for the next on another connection once it has the first.
        await self._found.go.wait()
        await response.write(b"data: second\n\n")
        return response

    async def _converse(self, request: web.Request) -> web.StreamResponse:
        self._found.seen.append(Seen("GET", request.path_qs, dict(request.headers), b""))
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(message.data.upper())
        return socket


def variable(name: str = "TOKEN", value: str = SECRET, *allowed: str, **more: Any) -> Injection:
    """An environment variable's credential; without hosts it is unrestricted."""
    fields = {"in_headers": True, "in_body": True, "secret_version": 1} | more
    return Injection(
        credential_id=f"vcrd_{name.lower()}",
        vault_id="vlt_1",
        type="environment_variable",
        name=name,
        value=value,
        unrestricted=not allowed,
        allowed_hosts=allowed,
        **fields,
    )


class Vault:
    """A stub of InjectionService over a list of credentials; remembers what it was asked."""

    def __init__(self, *credentials: Injection) -> None:
        self.credentials = list(credentials)
        self.asked: list[Any] = []
        self.listed = 0
        self.is_down = False

    async def ListInjections(self, request: Any, **_: Any) -> ListInjectionsResponse:
        """Everything without its value."""
        self._check()
        self.listed += 1
        hidden = []
        for credential in self.credentials:
            copy = Injection()
            copy.CopyFrom(credential)
            copy.value = ""
            hidden.append(copy)
        return ListInjectionsResponse(injections=hidden)

    async def ResolveInjections(self, request: Any, **_: Any) -> ResolveInjectionsResponse:
        """What the target may have."""
        self._check()
        self.asked.append(request)
        answer = ResolveInjectionsResponse()
        named = [each for each in self.credentials if not request.names or each.name in request.names]
        for credential in named:
            if self._may_have(credential, request):
                answer.injections.append(credential)
            else:
                answer.denied.append(
                    DeniedInjection(credential_id=credential.credential_id, vault_id=credential.vault_id)
                )
        return answer

    def _may_have(self, credential: Injection, request: Any) -> bool:
        if credential.unrestricted:
            return request.target in (INJECTION_TARGET_KIND_EGRESS, INJECTION_TARGET_KIND_PROCESS)
        rules = [parse_rule(host) for host in credential.allowed_hosts]
        is_egress = request.target == INJECTION_TARGET_KIND_EGRESS
        return is_egress and any(rule is not None and rule.allows(request.host, request.port) for rule in rules)

    def _check(self) -> None:
        if self.is_down:
            raise Unavailable("down")


def secrets_of(vault: Vault, owner: Owner = OWNER) -> SessionSecrets:
    """A session's secrets over that vault."""
    return SessionSecrets(vault, owner, "runner_test", b"key")
