"""The outermost layer: a request id for everyone, one envelope for every failure.

Order: request id, cross-origin rules, host name, authentication, rate limits, compatibility
admission, then routing. Everything raised below this layer becomes the envelope here, so no other
part of the gateway renders an error. Plain ASGI: nothing is wrapped in tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from opentelemetry.trace import Span, StatusCode
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kit import telemetry
from kit.ids import new_id

from ..admission.browsers import is_exchange
from ..admission.compatibility import Compatibility, speaks_published_contract
from ..admission.credentials import Authenticator
from ..admission.hosts import check_host, require_host
from ..admission.limits import RateLimiter, bucket_of
from ..admission.principal import ANONYMOUS
from ..errors import describe
from .body import ClientGone, will_be_discarded
from .call import GUARD_KEY, SCOPE_KEY, Admitted
from .dispatch import send_json

EXPOSED_HEADERS = (
    *("session-id", "run-id"),
    *("request-id", "retry-after", "x-should-retry", "x-ratelimit-limit", "x-ratelimit-remaining"),
)
OPEN_PATHS = frozenset({"/v1/x/health"})


class Shell:
    """Wraps the application; see the module."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        compatibility: Compatibility,
        limiter: RateLimiter,
        allowed_origins: Sequence[str] = (),
        listens_on_loopback: bool = False,
        keys_in_bodies: Collection[str] = (),
    ) -> None:
        """`keys_in_bodies`: paths whose callers may have their credential in the body."""
        self._authenticator = authenticator
        self._limiter = limiter
        self._keys_in_bodies = frozenset(keys_in_bodies)
        self._listens_on_loopback = listens_on_loopback
        self._compatibility = compatibility
        self._app = app
        self._entry: ASGIApp = self._answer
        if allowed_origins:
            self._entry = CORSMiddleware(
                self._answer,
                allow_origins=list(allowed_origins),
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=["*"],
                # A cookie of the session gateway goes along only where an origin is named.
                allow_credentials="*" not in allowed_origins,
                expose_headers=list(EXPOSED_HEADERS),
                max_age=600,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request_id = new_id("req")
        telemetry.bind_request_id(request_id)
        headers = _headers(scope)
        # Makes the router raise for a wrong method instead of answering in plain text.
        scope["app"] = self._app
        scope[SCOPE_KEY] = Admitted(request_id, ANONYMOUS, speaks_published_contract(headers), headers)
        if telemetry.tracing():
            attributes = {"http.request.method": scope["method"], "url.path": scope["path"], "request_id": request_id}
            # The dispatcher names the span after the route, once one is found.
            with telemetry.continue_trace(headers, scope["method"], **attributes) as span:
                await self._serve(scope, receive, _watching_status(send, span))
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        stamp = (b"request-id", scope[SCOPE_KEY].request_id.encode())

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), stamp]
            await send(message)

        try:
            await self._entry(scope, receive, stamped)
        except ClientGone:
            telemetry.log.info("client_gone", path=scope["path"])

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._check(scope)
            await self._app(scope, receive, watched)
        except ClientGone:
            raise
        except Exception as error:
            if started:
                # Half an answer is out; only cutting the connection tells the caller so.
                raise
            admitted: Admitted = scope[SCOPE_KEY]
            answer = describe(error, published=admitted.published, request_id=admitted.request_id)
            headers = answer.headers
            if answer.status == 413 and will_be_discarded(admitted.headers):
                headers = tuple(header for header in headers if header[0] != "connection")
            await send_json(send, answer.status, answer.body(admitted.request_id), headers)

    async def _check(self, scope: Scope) -> None:
        admitted: Admitted = scope[SCOPE_KEY]
        headers, path = admitted.headers, scope["path"]
        host = headers.get("host")
        require_host(scope.get("http_version", "1.1"), host)
        is_api = path.startswith(("/v1/", "/api/")) or path == "/v1"
        needs_credential = is_api and path not in OPEN_PATHS and not is_exchange(path)
        is_locked = await self._authenticator.settle() if needs_credential else self._authenticator.enabled
        if self._listens_on_loopback and not is_locked:
            check_host(host)
        if needs_credential:
            method = scope["method"]
            in_body = path in self._keys_in_bodies
            principal = await self._authenticator.authenticate(headers, path, method, key_in_body=in_body)
            # A worker is no client: it asks as often as there is work, and each item takes it several writes.
            if principal.role != "worker" and self._limiter.is_on(authentication=is_locked):
                self._limiter.count(bucket_of(principal, headers, scope.get("client")), scope["method"])
            scope[GUARD_KEY] = partial(self._authenticator.guard, headers, path, method)
            if principal is not ANONYMOUS:
                scope[SCOPE_KEY] = Admitted(admitted.request_id, principal, admitted.published, headers)
        if is_api:
            query = scope.get("query_string", b"").decode("latin-1")
            self._compatibility.admit(method=scope["method"], path=path, query=query, headers=headers)


def _watching_status(send: Send, span: Span) -> Send:
    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            span.set_attribute("http.response.status_code", message["status"])
            if message["status"] >= 500:
                span.set_status(StatusCode.ERROR)
        await send(message)

    return watched


def _headers(scope: Scope) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        text = value.decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers
