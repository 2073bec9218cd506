"""The only place that knows both error vocabularies: canonical codes and HTTP.

Inside the platform a refusal is a `DomainError` with a reason; out here it is a
status, a body and a few headers. Both spellings of `error.type` are rendered from
one table: the local one for plain callers, the published one for callers of the
published contract. `error.code` is the same for both.

A fault that is nobody's refusal leaves as a fixed sentence; its cause is logged
whole under the request id that the caller was given.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import orjson
from starlette.exceptions import HTTPException

from kit.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    DomainError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from kit.telemetry import log

MASKED_MESSAGE = "The platform failed to answer this request. The cause is in its log under the request id."


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How one canonical code looks over HTTP."""

    status: int
    local_type: str
    published_type: str


INVALID = ErrorShape(400, "invalid_request_error", "invalid_request_error")
FAULT = ErrorShape(500, "internal_error", "api_error")

SHAPES: dict[type[DomainError], ErrorShape] = {
    InvalidArgument: INVALID,
    FailedPrecondition: INVALID,
    OutOfRange: INVALID,
    Unauthenticated: ErrorShape(401, "authentication_error", "authentication_error"),
    PermissionDenied: ErrorShape(403, "permission_error", "permission_error"),
    NotFound: ErrorShape(404, "not_found", "not_found_error"),
    AlreadyExists: ErrorShape(409, "conflict", "invalid_request_error"),
    Aborted: ErrorShape(409, "conflict", "invalid_request_error"),
    ResourceExhausted: ErrorShape(429, "rate_limit_error", "rate_limit_error"),
    Unimplemented: ErrorShape(501, "not_available", "api_error"),
    Unavailable: ErrorShape(503, "not_available", "overloaded_error"),
    DeadlineExceeded: ErrorShape(504, "timeout_error", "timeout_error"),
    Internal: FAULT,
}

# Refusals that HTTP has its own status for, but no canonical code.
SHAPES_BY_REASON: dict[str, ErrorShape] = {
    "METHOD_NOT_ALLOWED": ErrorShape(405, "invalid_request_error", "invalid_request_error"),
    "REQUEST_TOO_LARGE": ErrorShape(413, "request_too_large", "request_too_large"),
    "FILE_TOO_LARGE": ErrorShape(413, "request_too_large", "request_too_large"),
    "FILE_RANGE_NOT_SATISFIABLE": ErrorShape(416, "invalid_request_error", "invalid_request_error"),
    "UNSUPPORTED_MEDIA_TYPE": ErrorShape(415, "invalid_request_error", "invalid_request_error"),
    "MEMORY_PATH_CONFLICT": ErrorShape(409, "conflict", "memory_path_conflict_error"),
    "STEP_TURN_FAILED": ErrorShape(502, "internal_error", "api_error"),
    "HEARTBEAT_PRECONDITION_FAILED": ErrorShape(412, "invalid_request_error", "invalid_request_error"),
    "PRECONDITION_FAILED": ErrorShape(409, "conflict", "memory_precondition_failed_error"),
}

# Refusals whose published shape has its details beside the message.
DETAILS_BESIDE = frozenset({"memory_path_conflict", "precondition_failed"})
# The same request may succeed later, so the published client may try again.
RETRYABLE_CONFLICTS = frozenset({"WRITE_CONFLICT"})

# Conflicts that have no code: what another worker holds is alive, and its holder goes on.
CODELESS = frozenset({"WORK_ITEM_HELD"})


class InvalidRequest(InvalidArgument):
    """A field, a header or a parameter has a wrong type, form, size or value."""

    reason = "INVALID_REQUEST"


class InvalidJson(InvalidArgument):
    """The body is not the JSON that this platform reads."""

    reason = "INVALID_JSON"


class UnknownField(InvalidArgument):
    """A body field that the route does not know."""

    reason = "UNKNOWN_FIELD"


class UnknownQueryParameter(InvalidArgument):
    """A query parameter that the route does not implement."""

    reason = "UNKNOWN_QUERY_PARAMETER"


class InvalidAgentRef(InvalidArgument):
    """The agent reference has a form that the route does not take."""

    reason = "INVALID_AGENT_REF"


class RequestTooLarge(InvalidArgument):
    """The body is larger than the route takes."""

    reason = "REQUEST_TOO_LARGE"


class InvalidFile(InvalidArgument):
    """The content of an upload is not what it is declared to be."""

    reason = "INVALID_FILE"


class InvalidSkillPackage(InvalidArgument):
    """The upload of a skill breaks a rule that only its form shows."""

    reason = "INVALID_SKILL_PACKAGE"


class UnsupportedMediaType(InvalidArgument):
    """The body is not declared as JSON."""

    reason = "UNSUPPORTED_MEDIA_TYPE"


class RouteNotFound(NotFound):
    """No route matches the path."""

    reason = "ROUTE_NOT_FOUND"


class MethodNotAllowed(Unimplemented):
    """The path exists, but not with this method; `allow` names those that do."""

    reason = "METHOD_NOT_ALLOWED"


class InvalidCredential(Unauthenticated):
    """No credential, or one that is not known."""

    reason = "INVALID_CREDENTIAL"


class WorkspaceMismatch(PermissionDenied):
    """The workspace header names another workspace than the key's."""

    reason = "WORKSPACE_MISMATCH"


class InboundRateLimited(ResourceExhausted):
    """The credential has spent what it may send in this minute; `limit` is its budget."""

    reason = "INBOUND_RATE_LIMITED"


class AmbiguousCredential(Unauthenticated):
    """Both credential headers came on one request."""

    reason = "AMBIGUOUS_CREDENTIAL"


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """What the caller gets to see of a failure."""

    status: int
    type: str
    # Empty where the refusal has none.
    code: str
    message: str
    details: object | None
    headers: tuple[tuple[str, str], ...]

    def body(self, request_id: str) -> bytes:
        """Render the one envelope that every failure has."""
        error: dict[str, object] = {"type": self.type, "message": self.message}
        if self.code:
            error["code"] = self.code
        if self.details is not None:
            error["details"] = self.details
            if self.code in DETAILS_BESIDE and isinstance(self.details, dict):
                error.update(self.details)
        return orjson.dumps({"type": "error", "error": error, "request_id": request_id})


def shape_of(error: DomainError) -> ErrorShape:
    """The HTTP form of a refusal: by its reason where that has one, else by its class."""
    by_reason = SHAPES_BY_REASON.get(error.reason)
    if by_reason is not None:
        return by_reason
    for base in type(error).__mro__:
        shape = SHAPES.get(base)
        if shape is not None:
            return shape
    return FAULT


def describe(error: BaseException, *, published: bool, request_id: str) -> ErrorAnswer:
    """Translate whatever went wrong; log it whole if it is our fault."""
    if isinstance(error, HTTPException):
        error = _from_router(error)
    shape = shape_of(error) if isinstance(error, DomainError) else FAULT
    type_name = shape.published_type if published else shape.local_type
    if shape is FAULT or not isinstance(error, DomainError):
        log.error(
            "request_failed",
            request_id=request_id,
            exc_info=(type(error), error, error.__traceback__),
            cause=str(error),
            **(error.metadata if isinstance(error, DomainError) else {}),
        )
        return ErrorAnswer(FAULT.status, type_name, "internal", MASKED_MESSAGE, None, ())
    return ErrorAnswer(
        status=shape.status,
        type=type_name,
        code="" if error.reason in CODELESS else error.reason.lower(),
        message=str(error.message),
        details=_details(error),
        headers=_headers(shape, error),
    )


def _from_router(error: HTTPException) -> BaseException:
    if error.status_code == 404:
        return RouteNotFound("No route matches this request")
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"This method is not served on this path. Served here: {allow}.", allow=allow)
    return error


def _details(error: DomainError) -> object | None:
    text = error.metadata.get("details")
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return {"text": text}


def _headers(shape: ErrorShape, error: DomainError) -> tuple[tuple[str, str], ...]:
    match shape.status:
        case 405:
            return (("allow", error.metadata.get("allow", "")),)
        case 401:
            return (("www-authenticate", "Bearer"),)
        case 409 if error.reason not in RETRYABLE_CONFLICTS:
            return (("x-should-retry", "false"),)
        case 502:
            # The same request would be told of the same failure.
            return (("x-should-retry", "false"),)
        case 413:
            # The rest of the body is still on its way; nobody is going to read it.
            return (("connection", "close"),)
        case 416:
            return (("content-range", f"bytes */{error.metadata.get('size', '*')}"),)
        case 429 | 503:
            wait = ("retry-after", str(max(1, math.ceil(error.retry_after_seconds or 1))))
            limit = error.metadata.get("limit", "")
            if error.reason != InboundRateLimited.reason or not limit:
                return (wait,)
            return (wait, ("x-ratelimit-limit", limit), ("x-ratelimit-remaining", "0"))
    return ()
