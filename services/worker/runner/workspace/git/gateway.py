"""Between git and the host of a repository: a door on loopback that leads to one repository and nowhere else.

git asks here in plain HTTP, under a path that nobody can guess. The request goes on to the address that was checked,
over TLS, with the token: git itself never sees it, so it is in no argument, variable or file. Only what reading a
repository takes is let through. Redirects are followed here, each hop judged anew; a token goes to no other host.
"""

import base64
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from urllib.parse import urljoin

import aiohttp
from aiohttp import web
from yarl import URL

from kit.errors import DomainError
from kit.pinned import Pinned
from services.worker.runner.workspace.git.errors import CLONE, RepositoryFailed, of_status

_INFO, _PACK = "info/refs", "git-upload-pack"
_QUERY = "service=git-upload-pack"
_MAX_REDIRECTS = 5
_MAX_REQUEST_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_CONNECT_SECONDS, _SILENCE_SECONDS = 15.0, 60.0
_REDIRECTS = (301, 302, 303, 307, 308)
_FORWARDED = ("accept", "accept-encoding", "content-type", "content-encoding", "git-protocol")
_RETURNED = ("content-type", "content-encoding", "cache-control")

# The addresses that a URL may be reached at; raises DomainError for one that must not be reached.
Guard = Callable[[str], Awaitable[list[str]]]


class GitGateway:
    """Serves one clone. What went wrong last is in `failure`."""

    def __init__(
        self, url: str, *, token: str, guard: Guard, max_bytes: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self._base = url.rstrip("/")
        self._home = URL(self._base, encoded=True).origin()
        self._token = token
        self._guard = guard
        self._left = max_bytes
        self._max_bytes = max_bytes
        self._tls = tls
        self._path = secrets.token_urlsafe(24)
        self._runner: web.AppRunner | None = None
        self.failure: RepositoryFailed | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """What git is told to clone."""
        return f"http://127.0.0.1:{self.port}/{self._path}/repository"

    async def __aenter__(self) -> "GitGateway":
        app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
        app.router.add_get(f"/{self._path}/repository/{_INFO}", self._info)
        app.router.add_post(f"/{self._path}/repository/{_PACK}", self._pack)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _info(self, request: web.Request) -> web.StreamResponse:
        if request.query_string != _QUERY:
            raise web.HTTPForbidden
        return await self._forward(request, f"/{_INFO}?{_QUERY}", None)

    async def _pack(self, request: web.Request) -> web.StreamResponse:
        return await self._forward(request, f"/{_PACK}", await request.read())

    async def _forward(self, request: web.Request, suffix: str, body: bytes | None) -> web.StreamResponse:
        try:
            return await self._ask(request, suffix, body)
        except RepositoryFailed as failed:
            self.failure = failed
        except DomainError as refused:
            self.failure = RepositoryFailed(CLONE, str(refused.message))
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            self.failure = RepositoryFailed(CLONE, _reason(failed), transient=True)
        if request.transport is not None:
            # Whatever was begun must not look complete.
            request.transport.close()
        raise web.HTTPBadGateway

    async def _ask(self, request: web.Request, suffix: str, body: bytes | None) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
        url = self._base + suffix
        for _ in range(_MAX_REDIRECTS + 1):
            addresses = await self._guard(url)
            address = URL(url, encoded=True)
            if self._token and address.origin() == self._home:
                given = base64.b64encode(f"x-access-token:{self._token}".encode()).decode()
                headers["authorization"] = f"Basic {given}"
            else:
                headers.pop("authorization", None)
            connector = aiohttp.TCPConnector(
                resolver=Pinned(addresses), use_dns_cache=False, force_close=True, ssl=self._tls or True
            )
            timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
            async with (
                aiohttp.ClientSession(
                    connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, timeout=timeout
                ) as session,
                session.request(request.method, address, headers=headers, data=body, allow_redirects=False) as answer,
            ):
                if answer.status in _REDIRECTS and (location := answer.headers.get("location")) and body is None:
                    url = urljoin(url, location)
                    if not url.endswith(suffix):
                        raise RepositoryFailed(CLONE, "The host of the repository redirects to something else.")
                    continue
                if answer.status != 200:
                    raise of_status(answer.status)
                # Further requests go where this one was answered.
                self._base = url.removesuffix(suffix)
                return await self._relay(request, answer)
        raise RepositoryFailed(CLONE, "The host of the repository redirects too often.")

    async def _relay(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={name: answer.headers[name] for name in _RETURNED if name in answer.headers}
        )
        await response.prepare(request)
        async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
            self._left -= len(chunk)
            if self._left < 0:
                raise RepositoryFailed(CLONE, f"The repository has more than {self._max_bytes} bytes to fetch.")
            await response.write(chunk)
        await response.write_eof()
        return response


def _reason(failed: Exception) -> str:
    if isinstance(failed, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError | ssl.SSLError):
        return "The certificate of the repository's host is not valid."
    if isinstance(failed, TimeoutError):
        return "The host of the repository did not answer in time."
    return "The connection to the host of the repository failed."
