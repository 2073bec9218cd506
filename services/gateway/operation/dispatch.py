"""Runs an operation: query, body, handler, answer; and builds the served routes.

Routes are plain ASGI endpoints on Starlette routes inside the FastAPI app: a request
costs a few path matches and no dependency machinery.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry import trace
from pydantic import ValidationError
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from kit.telemetry import tracing

from ..admission.holders import Holding
from ..admission.roles import require_role
from ..clients import Clients
from ..errors import InvalidRequest, MethodNotAllowed, RouteNotFound
from . import body as request_body
from . import query as request_query
from .call import SCOPE_KEY, Admitted, Answer, Call
from .declaration import Operation
from .tries import FirstTries
from .validation import refusal

MAX_PATH_PARAMETER_LENGTH = 256
JSON_HEADER = (b"content-type", b"application/json")


class PathEndpoint:
    """Every operation of one path."""

    def __init__(
        self, operations: Iterable[Operation], clients: Clients, first_tries: FirstTries, holding: Holding
    ) -> None:
        self._by_method = {operation.method: operation for operation in operations}
        self._path = next(iter(self._by_method.values())).path
        self._clients = clients
        self._first_tries = first_tries
        allowed = set(self._by_method)
        readable = self._by_method.get("GET")
        if readable is not None and not readable.stream:
            self._by_method["HEAD"] = readable
            allowed.add("HEAD")
        self._allow = ", ".join(sorted(allowed))
        self._any_workers = any(operation.workers or operation.holders for operation in self._by_method.values())
        self._holding = holding

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._by_method.get(scope["method"])
        principal = scope[SCOPE_KEY].principal
        if operation is None:
            require_role(principal, "read_only", workers=self._any_workers, path={}, client=None)
            raise MethodNotAllowed(
                f"{scope['method'][:16]} is not served on this path. Served here: {self._allow}.", allow=self._allow
            )
        if tracing():
            trace.get_current_span().update_name(f"{operation.method} {self._path}")
        path = scope.get("path_params", {})
        require_role(
            principal,
            operation.role,
            workers=operation.workers,
            path=path,
            client=scope.get("client"),
            holders=operation.holders,
            workers_only=operation.workers_only,
        )
        if operation.holders is not None and principal.role == "worker":
            await self._holding.require(scope[SCOPE_KEY], operation.holders, operation.method, path)
        call = await prepare(operation, self._clients, self._first_tries, scope, receive)
        result = await operation.handler(call)
        if isinstance(result, bytes):
            await send_json(send, operation.status, result)
        elif isinstance(result, Answer):
            await send_json(send, result.status, result.body, result.headers)
        else:
            await result(scope, receive, send)


async def prepare(
    operation: Operation, clients: Clients, first_tries: FirstTries, scope: Scope, receive: Receive
) -> Call:
    """Check everything that the declaration says about a request."""
    admitted: Admitted = scope[SCOPE_KEY]
    call = Call(admitted, clients, scope, receive, _path_parameters(scope), first_tries)
    if operation.query is not None:
        call.query = request_query.parse(scope.get("query_string", b""), operation.query)
    if operation.body is not None:
        request_body.check_headers(admitted.headers, operation.max_body_bytes)
        call.raw_body = await request_body.read(receive, operation.max_body_bytes)
        if operation.optional_body and not call.raw_body.strip():
            call.raw_body = b"{}"
        parsed = request_body.parse(call.raw_body, nul=operation.nul_in_body)
        try:
            call.body = operation.body.model_validate(parsed)
        except ValidationError as error:
            raise refusal(operation.body, error) from None
    return call


def _path_parameters(scope: Scope) -> dict[str, str]:
    parameters: dict[str, str] = scope.get("path_params", {})
    for name, value in parameters.items():
        if len(value) > MAX_PATH_PARAMETER_LENGTH or "\x00" in value:
            raise InvalidRequest(
                f"{name} must be at most {MAX_PATH_PARAMETER_LENGTH} characters long, without NUL characters.",
                field=name,
            )
    return parameters


async def send_json(send: Send, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
    """Send a rendered JSON body."""
    raw_headers: list[tuple[bytes, bytes]] = [JSON_HEADER, (b"content-length", str(len(body)).encode())]
    raw_headers.extend((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)
    await send({"type": "http.response.start", "status": status, "headers": raw_headers})
    await send({"type": "http.response.body", "body": body})


class Families(BaseRoute):
    """Many routes as one. A path's first two folders, which no route leaves open, tell the few that may match."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_family: dict[tuple[str, ...], list[Route]] = {}
        for route in routes:
            family = _family(route.path)
            if any("{" in folder for folder in family):
                raise ValueError(f"{route.path} leaves open what family it belongs to")
            self._by_family.setdefault(family, []).append(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """The first route of the family that fits, in the order of the table."""
        for route in self._by_family.get(_family(scope["path"]), ()):
            match, found = route.matches(scope)
            if match is Match.FULL:
                return match, found
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what matched."""
        await scope["endpoint"](scope, receive, send)


def _family(path: str) -> tuple[str, ...]:
    return tuple(path.split("/", 3)[1:3])


def build_routes(operations: Iterable[Operation], clients: Clients) -> Families:
    """One Starlette route per path, in the order of the table."""
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        siblings = by_path.setdefault(operation.path, [])
        if any(sibling.method == operation.method for sibling in siblings):
            raise ValueError(f"{operation.method} {operation.path} is declared twice")
        siblings.append(operation)
    first_tries, holding = FirstTries(), Holding(clients.session_work, clients.duties)
    return Families(
        Route(path, PathEndpoint(siblings, clients, first_tries, holding), name=path, include_in_schema=False)
        for path, siblings in by_path.items()
    )


async def no_route(scope: Scope, receive: Receive, send: Send) -> Any:
    """What an unmatched path is answered with."""
    raise RouteNotFound("No route matches this request")
