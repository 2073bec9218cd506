"""Refusals that a caller must be able to tell apart.

    class AgentNotFound(NotFound):
        reason = "AGENT_NOT_FOUND"

    raise AgentNotFound(f"There is no agent {agent_id}.", agent_id=agent_id)

DomainError
├── InvalidArgument · OutOfRange · FailedPrecondition      the request is wrong, now or at all
├── Unauthenticated · PermissionDenied                      the caller may not
├── NotFound · AlreadyExists · Aborted                      the state of things stands against it
├── ResourceExhausted · Unavailable · DeadlineExceeded      later, perhaps
└── Unimplemented · Internal                                ours

Each class knows its canonical code; a service's subclass adds the reason, which is a name of the ErrorReason enum
without its prefix. The error crosses rpc whole (`kit.rpc`): reason, message, metadata, field, retry delay. A caller in
another process gets the canonical class back, with the same `reason`.
"""

from typing import Any, ClassVar


class DomainError(Exception):
    """A refusal with a reason. `metadata["details"]` may hold JSON for the body of a REST answer."""

    code: ClassVar[str] = "INTERNAL"
    reason: str = ""

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        retry_after_seconds: float | None = None,
        **metadata: object,
    ) -> None:
        """`field` is the path of the faulty input, such as `tools[2].name`; it goes to the caller with the message."""
        if not self.reason:
            raise TypeError(f"{type(self).__name__} has no reason of its own; raise a subclass that names one")
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_seconds = retry_after_seconds
        self.metadata: dict[str, str] = {key: str(value) for key, value in metadata.items() if value is not None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason}: {self.message})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), self.message, self.__dict__)


def _unpickle(kind: type[DomainError], message: str, state: dict[str, Any]) -> DomainError:
    error = kind.__new__(kind, message)
    error.__dict__.update(state)
    return error


class InvalidArgument(DomainError):
    """The request is wrong whatever the state."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class OutOfRange(DomainError):
    """The request goes past what exists."""

    code = "OUT_OF_RANGE"
    reason = "INVALID_REQUEST"


class FailedPrecondition(DomainError):
    """The state must change before this request can succeed; repeating it won't help."""

    code = "FAILED_PRECONDITION"


class Unauthenticated(DomainError):
    """Nobody knows who calls."""

    code = "UNAUTHENTICATED"
    reason = "INVALID_CREDENTIAL"


class PermissionDenied(DomainError):
    """The caller is known and may not do this."""

    code = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class NotFound(DomainError):
    """What the request names does not exist for this caller."""

    code = "NOT_FOUND"


class AlreadyExists(DomainError):
    """What the request would create exists."""

    code = "ALREADY_EXISTS"


class Aborted(DomainError):
    """The request lost against another; a new attempt from the start may succeed."""

    code = "ABORTED"


class ResourceExhausted(DomainError):
    """A limit is reached."""

    code = "RESOURCE_EXHAUSTED"
    reason = "RESOURCE_EXHAUSTED"


class Unavailable(DomainError):
    """A part of the platform can't be reached now; the same call may succeed after `retry_after_seconds`."""

    code = "UNAVAILABLE"
    reason = "UNAVAILABLE"

    def __init__(
        self, message: str, *, field: str | None = None, retry_after_seconds: float = 1.0, **metadata: object
    ) -> None:
        super().__init__(message, field=field, retry_after_seconds=retry_after_seconds, **metadata)


class DeadlineExceeded(DomainError):
    """The time that the caller gave is over."""

    code = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class Unimplemented(DomainError):
    """This build can't do that."""

    code = "UNIMPLEMENTED"
    reason = "UNSUPPORTED_CAPABILITY"


class Internal(DomainError):
    """A fault of ours. Only the log tells more than the message."""

    code = "INTERNAL"
    reason = "INTERNAL"


class WriteConflict(Aborted):
    """Two transactions met and this one lost."""

    reason = "WRITE_CONFLICT"


CANONICAL: dict[str, type[DomainError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        OutOfRange,
        FailedPrecondition,
        Unauthenticated,
        PermissionDenied,
        NotFound,
        AlreadyExists,
        Aborted,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Unimplemented,
        Internal,
    )
}


def rebuild(
    code: str,
    *,
    reason: str,
    message: str,
    metadata: dict[str, str] | None = None,
    field: str | None = None,
    retry_after_seconds: float | None = None,
) -> DomainError:
    """The error that another process raised, as its canonical class with the reason that it had."""
    kind = CANONICAL.get(code, Internal)
    error = kind.__new__(kind, message)
    error.reason = reason
    error.message = message
    error.field = field
    error.retry_after_seconds = retry_after_seconds
    error.metadata = dict(metadata or {})
    return error


def reasons_in_use() -> dict[str, str]:
    """Every reason that an imported class carries, with the class's name: to be compared with the enum."""
    found: dict[str, str] = {}
    waiting: list[type[DomainError]] = [DomainError]
    while waiting:
        kind = waiting.pop()
        waiting.extend(kind.__subclasses__())
        if kind.reason:
            found.setdefault(kind.reason, f"{kind.__module__}.{kind.__qualname__}")
    return found
