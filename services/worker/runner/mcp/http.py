"""HTTP to one server: only to addresses that were checked, with the session's token, and never without bounds.

Every request is made here, so here is what must hold for each: its host is allowed by the environment and leads to a
public address (or one that the operator allows), the connection goes to the very address that was checked, a redirect
is a new request and is judged anew. A request that can't be made is answered by ourselves with 503, since the
protocol's package gives the whole connection up for an exception. `ATTEMPT` tells the caller of one request what became
of it: the package hands the caller's context on to where the request is made.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import httpx2
import orjson

from kit.addresses import PrivateHosts, checked_address
from kit.errors import DomainError

MOST_ANSWER_BYTES = 32 * 1024 * 1024
NOTICE_SECONDS = 10.0
_ADDRESS_KEPT_REQUESTS = 200
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SESSION_HEADER = "mcp-session-id"


@dataclass(slots=True)
class Attempt:
    """What became of one request."""

    # Of the newest answer; 0 before any.
    status: int = 0
    # Why it could not be made, or broke off before an answer.
    failure: str = ""
    # Whether the server may have seen it.
    reached: bool = False


ATTEMPT: ContextVar[Attempt | None] = ContextVar("mcp_attempt", default=None)


class Bearer(Protocol):
    """The token of one server, if there is one."""

    @property
    def token(self) -> str:
        """What is sent now; empty where nothing is."""
        ...

    async def renew(self, refused: str) -> bool:
        """The server refused this token; whether there is another one to try."""
        ...


class BearerAuth(httpx2.Auth):
    """Sends the token, and a renewed one once where the server refuses it."""

    def __init__(self, bearer: Bearer) -> None:
        self._bearer = bearer

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """One request, or two."""
        token = self._bearer.token
        if token:
            request.headers["authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401 and await self._bearer.renew(token):
            request.headers["authorization"] = f"Bearer {self._bearer.token}"
            yield request


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Makes the requests of one connection."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        *,
        allows: Callable[[str, int], bool],
        private: PrivateHosts,
    ) -> None:
        """`allows` is the environment's word on a host and port."""
        self._inner = inner
        self._allows = allows
        self._private = private
        self._addresses: dict[tuple[str, int], tuple[list[str], int]] = {}
        # What the server calls this connection, or empty.
        self.session_id = ""
        # Whether the server can tell us of changes by itself right now.
        self.listening = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Make a request; whatever keeps it from being made is an answer too."""
        # Listening goes on beside the requests that somebody waits for, and says nothing of them.
        attempt = (ATTEMPT.get() if request.method == "POST" else None) or Attempt()
        attempt.status, attempt.failure, attempt.reached = 0, "", False
        try:
            response = await self._send(request, attempt)
        except NotAllowed as refused:
            attempt.failure = str(refused)
        except DomainError as refused:
            attempt.failure = refused.message
        except httpx2.TransportError as failed:
            attempt.failure = _told(failed, request.url.host)
        else:
            attempt.status, attempt.reached = response.status_code, True
            return self._taken(request, response)
        return httpx2.Response(503, request=request)

    async def aclose(self) -> None:
        """Close what is open."""
        await self._inner.aclose()

    async def _send(self, request: httpx2.Request, attempt: Attempt) -> httpx2.Response:
        host, port = request.url.host, request.url.port or _DEFAULT_PORTS[request.url.scheme]
        addresses = await self._checked(host, port)
        extensions = {**request.extensions, "sni_hostname": host}
        if _is_notice(request):
            # Nobody waits for its answer, but the next message waits for it to be sent.
            extensions["timeout"] = {**extensions.get("timeout", {}), "read": NOTICE_SECONDS}
        for place, address in enumerate(addresses):
            pinned = httpx2.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions=extensions,
            )
            try:
                return await self._inner.handle_async_request(pinned)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if place == len(addresses) - 1:
                    self._addresses.pop((host, port), None)
                    raise
            except httpx2.TransportError:
                attempt.reached = True
                raise
        raise AssertionError("a checked host has an address")

    async def _checked(self, host: str, port: int) -> list[str]:
        if not self._allows(host, port):
            raise NotAllowed(
                f"The environment's network does not allow {host}:{port}. Add the host to allowed_hosts, or set"
                " allow_mcp_servers."
            )
        kept, uses = self._addresses.get((host, port), ([], _ADDRESS_KEPT_REQUESTS))
        if uses >= _ADDRESS_KEPT_REQUESTS:
            kept, uses = await checked_address(host, port, allow_private=self._private.allows(host, port)), 0
        self._addresses[host, port] = kept, uses + 1
        return kept

    def _taken(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        if session_id := response.headers.get(_SESSION_HEADER):
            self.session_id = session_id
        stream, ended = response.stream, None
        assert isinstance(stream, httpx2.AsyncByteStream)
        if request.method == "GET" and response.status_code == 200:
            self.listening, ended = True, self._no_longer_listening
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = _Bounded(stream, 0 if is_stream else MOST_ANSWER_BYTES, ended)
        if response.headers.get("content-encoding", "identity") != "identity":
            # It was asked not to: what it unpacks to could not be bounded.
            del response.headers["content-encoding"]
        return response

    def _no_longer_listening(self) -> None:
        self.listening = False


class NotAllowed(Exception):
    """The environment does not let the session reach the host."""


class _Bounded(httpx2.AsyncByteStream):
    """A body of at most so many bytes; 0 for any number. A break in it is an error of this answer alone."""

    def __init__(self, inner: httpx2.AsyncByteStream, most_bytes: int, ended: Callable[[], None] | None = None) -> None:
        self._inner = inner
        self._most = most_bytes
        self._ended = ended

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces."""
        size = 0
        try:
            async for piece in self._inner:
                size += len(piece)
                if self._most and size > self._most:
                    raise httpx2.StreamError(f"the answer is longer than {self._most} bytes")
                yield piece
        except httpx2.TransportError as broken:
            raise httpx2.StreamError(f"the answer broke off: {type(broken).__name__}") from broken

    async def aclose(self) -> None:
        """Close it."""
        if self._ended is not None:
            self._ended()
        await self._inner.aclose()


def _is_notice(request: httpx2.Request) -> bool:
    if request.method != "POST":
        return False
    try:
        return "id" not in orjson.loads(request.content)
    except (ValueError, TypeError, httpx2.RequestNotRead):
        return False


def _told(failed: httpx2.TransportError, host: str) -> str:
    if isinstance(failed, httpx2.TimeoutException):
        return f"{host} did not answer in time."
    if isinstance(failed, httpx2.ConnectError):
        return f"{host} can't be connected to: {str(failed) or type(failed).__name__}."
    return f"The connection to {host} broke off: {str(failed) or type(failed).__name__}."
