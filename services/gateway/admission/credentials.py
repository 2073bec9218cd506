"""Authentication: who comes in, by one credential, while at least one API key exists.

A credential comes as `x-api-key` or as `Authorization: Bearer`, never as both: two
sources would let a proxy and this process disagree about who is calling. Keys are
compared as SHA-256 digests in constant time. There is one configured key at most; all
others are the vault's, and `keyring.py` knows how long its answers hold. The configured one
is let in whether or not the vault can be asked.

A credential that says itself that it is a worker's (`mawk_…`) is judged also while no
API key exists: it narrows what a request may do, and a revoked one must do nothing. The
same holds for the sessions token of a work item (`mast_…`), which the queue knows.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import replace

from kit.errors import Unauthenticated, Unavailable

from ..errors import AmbiguousCredential, InvalidCredential, WorkspaceMismatch
from .browsers import Browsers, Claims
from .holders import TOKEN_PREFIX, SessionsTokens
from .keyring import KeyRing
from .principal import ANONYMOUS, CONFIGURED, UNPROVEN, Principal

WORKER_PREFIX = "mawk_"
WORKSPACE_HEADERS = ("anthropic-workspace-id", "workspace_id")


class Authenticator:
    """Turns the headers of a request into a principal."""

    def __init__(
        self,
        api_key: str | None,
        ring: KeyRing | None = None,
        browsers: Browsers | None = None,
        tokens: SessionsTokens | None = None,
    ) -> None:
        self._tokens = tokens
        self._digest = _digest(api_key) if api_key else None
        self._ring = ring
        self._browsers = browsers

    @property
    def enabled(self) -> bool:
        """Whether a key is needed, as far as is known without asking."""
        return self._digest is not None or (self._ring is not None and self._ring.any_api_key)

    async def settle(self) -> bool:
        """Whether a key is needed, known recently enough to decide by. Unavailable where nobody can tell."""
        if self._ring is not None and self._digest is None:
            await self._ring.settle()
        return self.enabled

    async def authenticate(
        self, headers: Mapping[str, str], path: str = "", method: str = "GET", *, key_in_body: bool = False
    ) -> Principal:
        """Name the caller, or refuse with 401; to be called once it is settled.

        `key_in_body`: who sends no credential is not refused yet, since the route looks for one in the body.
        """
        if key_in_body and self.enabled and "x-api-key" not in headers and "authorization" not in headers:
            return UNPROVEN
        return _in_its_workspace(await self._principal(headers, path, method), headers)

    async def authenticate_worker(self, key: str, headers: Mapping[str, str]) -> Principal:
        """Name the worker whose key stands in a body, or refuse with 401."""
        found = await self._holder(_digest(key)) if key.startswith(WORKER_PREFIX) else None
        if found is None or found.role != "worker":
            raise InvalidCredential("environment_key is not a key of a worker that may be used.")
        return _in_its_workspace(found, headers)

    def guard_worker(self, key: str, end: Callable[[], None]) -> Callable[[], None]:
        """As `guard`, for a key that stands in a body."""
        return self.guard({"authorization": f"Bearer {key}"}, "", "POST", end)

    def guard(self, headers: Mapping[str, str], path: str, method: str, end: Callable[[], None]) -> Callable[[], None]:
        """Have `end` called once these headers let nobody in any more; call what this gives when it is over."""
        if self._tokens is not None and (token := presented(headers)).startswith(TOKEN_PREFIX):
            return self._tokens.guard(_digest(token), end)
        if self._ring is None:
            return _nothing

        async def is_let_in() -> bool:
            try:
                await self._principal(headers, path, method)
            except Unauthenticated:
                return False
            except Unavailable:
                return True
            return True

        return self._ring.guard(is_let_in, end)

    async def _principal(self, headers: Mapping[str, str], path: str, method: str) -> Principal:
        api_key, authorization = headers.get("x-api-key"), headers.get("authorization")
        if not self.enabled and not _is_workers(api_key, authorization):
            return ANONYMOUS
        claims = self._browsers.read(headers, path, method) if self._browsers is not None else None
        if claims is not None:
            return await self._browser(claims)
        if api_key is None and authorization is None and self._browsers and self._browsers.brings_cookie(headers, path):
            raise InvalidCredential("The cookie of this browser is not good, or not any more. Sign in again.")
        if api_key is not None and authorization is not None:
            raise AmbiguousCredential("Send either x-api-key or Authorization, not both on one request.")
        secret = api_key if api_key is not None else _bearer(authorization)
        if self._tokens is not None and secret.startswith(TOKEN_PREFIX):
            found = await self._tokens.find(_digest(secret))
        else:
            found = await self._holder(_digest(secret))
        if found is None:
            raise InvalidCredential("The API key is not known. Send a valid one as x-api-key or as a Bearer token.")
        return found

    async def _browser(self, claims: Claims) -> Principal:
        """Whoever a cookie is for, for as long as the key is good by which it was asked for."""
        found = await self._holder(bytes.fromhex(claims.digest))
        if found is None:
            raise InvalidCredential("The key behind this browser's cookie is not known any more. Sign in again.")
        owner = f"{found.id}/{claims.user}" if claims.user else found.id
        return replace(found, id=owner, is_browser=True, expires_at=float(claims.expires_at))

    async def _holder(self, digest: bytes) -> Principal | None:
        """Who comes in with the key of this digest."""
        if self._digest is not None and hmac.compare_digest(digest, self._digest):
            # Needs nobody to ask.
            return CONFIGURED
        if self._ring is None:
            return None
        await self._ring.settle()
        return await self._ring.find(digest)


def presented(headers: Mapping[str, str]) -> str:
    """The key that a request was let in with; empty where it came without, or with what is none."""
    api_key, authorization = headers.get("x-api-key"), headers.get("authorization")
    if api_key is not None:
        return api_key
    try:
        return _bearer(authorization)
    except InvalidCredential:
        # Nobody needs one, or it would not have come so far.
        return ""


def _in_its_workspace(principal: Principal, headers: Mapping[str, str]) -> Principal:
    for name in WORKSPACE_HEADERS:
        wanted = headers.get(name)
        if wanted is not None and wanted != principal.workspace_id:
            raise WorkspaceMismatch(
                f"The {name} header names another workspace than the one of this caller, "
                f"{principal.workspace_id}. Send that one, or leave the header out.",
                field=name,
            )
    return principal


def _nothing() -> None:
    """There is nothing to take off."""


def _is_workers(api_key: str | None, authorization: str | None) -> bool:
    """Whether a worker's key is presented, by the one header that is there."""
    if (api_key is None) == (authorization is None):
        return False
    secret = (authorization or "").partition(" ")[2].strip() if api_key is None else api_key
    return secret.startswith((WORKER_PREFIX, TOKEN_PREFIX))


def _bearer(authorization: str | None) -> str:
    if authorization is None:
        raise InvalidCredential(
            "An API key is needed. Send it as Authorization: Bearer <key>, or as x-api-key with anthropic-version."
        )
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise InvalidCredential("The Authorization header must be of the form: Bearer <key>.")
    return token.strip()


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
