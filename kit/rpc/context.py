"""What a call carries besides its request: tenant, request id, caller, deadline.

    context = current_context()                    # inside a handler
    with use_context(CallContext(workspace_id=…)):  # where calls begin: the gateway, a turn
        await sessions.GetSession(request)

Calls made inside a handler take its context and what is left of its time along without being told.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from kit.errors import InvalidArgument
from kit.ids import new_id
from kit.telemetry import request_id as logged_request_id
from managed_agents.context.v1.context_pb2 import CallContext as WireContext

CONTEXT_KEY = "call-context-bin"


@dataclass(frozen=True, slots=True)
class CallContext:
    """Who calls, for which tenant, and until when (`deadline` in `time.monotonic()` seconds; None is open)."""

    workspace_id: str = ""
    request_id: str = ""
    principal_id: str = ""
    published_contract: bool = False
    deadline: float | None = None
    # What the caller may do; empty for processes of the platform.
    role: str = ""
    # Of a `worker`, which reaches nothing else.
    environment_id: str = ""
    # Of a `worker` that came with the sessions token of a work item: the session, the item, and the token's digest.
    session_id: str = ""
    work_id: str = ""
    sessions_token_sha256: bytes = field(default=b"", repr=False)
    wire: bytes = field(default=b"", repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.wire:
            encoded = WireContext(
                workspace_id=self.workspace_id,
                request_id=self.request_id,
                principal_id=self.principal_id,
                published_contract=self.published_contract,
                role=self.role,
                environment_id=self.environment_id,
                session_id=self.session_id,
                work_id=self.work_id,
                sessions_token_sha256=self.sessions_token_sha256,
            ).SerializeToString()
            object.__setattr__(self, "wire", encoded)

    def for_workspace(self, workspace_id: str) -> "CallContext":
        """The same caller in another workspace: for platform processes that learnt whose work they do."""
        return replace(self, workspace_id=workspace_id, wire=b"")

    def remaining_seconds(self) -> float | None:
        """What is left until the deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()


_current: ContextVar[CallContext | None] = ContextVar("call_context", default=None)


def current_context() -> CallContext:
    """The context of the call that is being answered."""
    context = _current.get()
    if context is None:
        raise LookupError("no call is in progress here")
    return context


def context_or_none() -> CallContext | None:
    """The context of the call in progress, if there is one."""
    return _current.get()


def set_context(context: CallContext) -> None:
    """Make this the context of the current task, and its request id that of the log lines."""
    _current.set(context)
    logged_request_id.set(context.request_id)


@contextmanager
def use_context(context: CallContext) -> Iterator[CallContext]:
    """Run a block inside a context."""
    current, logged = _current.set(context), logged_request_id.set(context.request_id)
    try:
        yield context
    finally:
        _current.reset(current)
        logged_request_id.reset(logged)


def parse_context(encoded: bytes | None, remaining_seconds: float | None) -> CallContext:
    """The context that came with a call; a call without one is a platform call and gets a request id of its own."""
    deadline = None if remaining_seconds is None else time.monotonic() + remaining_seconds
    if encoded is None:
        return CallContext(request_id=new_id("req"), deadline=deadline)
    try:
        wire = WireContext.FromString(encoded)
    except DecodeError:
        raise InvalidArgument(f"The metadata {CONTEXT_KEY} does not hold a CallContext.") from None
    if not wire.request_id:
        wire.request_id = new_id("req")
        encoded = wire.SerializeToString()
    return CallContext(
        wire.workspace_id,
        wire.request_id,
        wire.principal_id,
        wire.published_contract,
        deadline,
        wire.role,
        wire.environment_id,
        wire.session_id,
        wire.work_id,
        wire.sessions_token_sha256,
        encoded,
    )
