"""What a handler gets, and what it may answer with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Scope

from kit.errors import DeadlineExceeded, Unavailable
from kit.ids import new_id
from managed_agents.sessions.v1.common_pb2 import Idempotency

from ..admission.principal import Principal
from ..clients import CallContext, Clients
from ..errors import InvalidRequest
from .tries import FirstTries

MAX_KEY_LENGTH = 255
KEY_KEEP_SECONDS = 86_400
RETRY_KEEP_SECONDS = 120
PATIENCE_SECONDS = 3.0
KEY_HEADER = "idempotency-key"
RETRY_HEADER = "x-stainless-retry-count"
SCOPE_KEY = "managed_agents.admitted"
# How an answer that goes on hears that its caller is let in no longer.
GUARD_KEY = "managed_agents.guard"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that passed authentication and admission."""

    request_id: str
    principal: Principal
    published: bool
    headers: Mapping[str, str]

    def context(self) -> CallContext:
        """What every rpc of this request carries."""
        return CallContext(
            workspace_id=self.principal.workspace_id,
            request_id=self.request_id,
            principal_id=self.principal.id,
            published_contract=self.published,
            role=self.principal.role,
            environment_id=self.principal.environment_id,
            session_id=self.principal.session_id,
            work_id=self.principal.work_id,
            sessions_token_sha256=self.principal.token_sha256,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose status or headers differ from the operation's own."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Call:
    """One request on its way through a handler."""

    admitted: Admitted
    clients: Clients
    scope: Scope
    receive: Receive
    path: Mapping[str, str]
    first_tries: FirstTries
    query: Mapping[str, Any] = field(default_factory=dict)
    raw_body: bytes = b""
    body: Any = None
    _context: CallContext | None = None

    @property
    def published(self) -> bool:
        """True where the caller reads the published projection."""
        return self.admitted.published

    @property
    def headers(self) -> Mapping[str, str]:
        """Request headers by lower-case name."""
        return self.admitted.headers

    @property
    def request_id(self) -> str:
        """The id under which both sides log the request."""
        return self.admitted.request_id

    @property
    def context(self) -> CallContext:
        """What every rpc of this call carries."""
        if self._context is None:
            self._context = self.admitted.context()
        return self._context

    async def ask(self, rpc: Any, request: Any, *, seconds: float | None = None) -> Any:
        """Call a service under this request's context; its refusal is raised as it is.

        A read waits a moment for a service that is just coming back. One that stays
        away is told as unavailable, not as slow.
        """
        try:
            return await rpc(request, context=self.context, timeout_seconds=seconds)
        except Unavailable as away:
            if self.scope["method"] not in ("GET", "HEAD"):
                raise
            patience = PATIENCE_SECONDS if seconds is None else min(seconds, PATIENCE_SECONDS)
            try:
                return await rpc(request, context=self.context, timeout_seconds=patience, retry=True)
            except DeadlineExceeded:
                raise away from None

    def follow(self, rpc: Any, request: Any) -> Any:
        """Open a server stream under this request's context; iterate it, and cancel it when leaving early."""
        return rpc(request, context=self.context)

    def guard(self, end: Callable[[], None]) -> Callable[[], None]:
        """Have `end` called once the caller is let in no longer; call what this gives when the answer is over."""
        guard = self.scope.get(GUARD_KEY)
        return guard(end) if guard is not None else lambda: None

    def idempotency(self) -> Idempotency:
        """How a repeat of this write is recognised.

        With a key, the key decides for a day. Without one, the published client's
        retries are recognised by their content for two minutes: the first try takes
        the place of a former answer, a later one is answered by it; see `tries.py`.
        """
        key = self.headers.get(KEY_HEADER)
        retries = self.headers.get(RETRY_HEADER, "")
        if key is None and not (retries.isdecimal() and len(retries) <= 4):
            return Idempotency()
        method, path = self.scope["method"], self.scope["path"]
        principal = self.admitted.principal.id
        fingerprint = hashlib.sha256("\n".join((method, path, "")).encode("utf-8", "replace") + self.raw_body).digest()
        if key is None:
            scoped = hashlib.sha256(f"{principal}\n".encode() + fingerprint).hexdigest()
            is_first = int(retries) == 0
            return Idempotency(
                key=f"retry:{scoped}",
                fingerprint=fingerprint,
                keep_seconds=RETRY_KEEP_SECONDS,
                first_try=is_first,
                try_id=self.first_tries.begin(scoped) if is_first else new_id("try"),
                not_before="" if is_first else self.first_tries.newest(scoped),
            )
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise InvalidRequest(f"Idempotency-Key must be 1 to {MAX_KEY_LENGTH} characters long.")
        scoped = hashlib.sha256("\n".join((principal, method, path, key)).encode("utf-8", "replace")).hexdigest()
        return Idempotency(key=f"key:{scoped}", fingerprint=fingerprint, keep_seconds=KEY_KEEP_SECONDS)
