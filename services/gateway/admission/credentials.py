"""Authentication: one configured key, off while none is set.

A credential comes as `x-api-key` or as `Authorization: Bearer`, never as both: two
sources would let a proxy and this process disagree about who is calling. Keys are
compared as SHA-256 digests in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import AmbiguousCredential, InvalidCredential

DEFAULT_WORKSPACE = "wrkspc_default"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, and whose rows the call may see."""

    id: str
    workspace_id: str


ANONYMOUS = Principal("anonymous", DEFAULT_WORKSPACE)
CONFIGURED = Principal("key_config_env", DEFAULT_WORKSPACE)


class Authenticator:
    """Turns the headers of a request into a principal."""

    def __init__(self, api_key: str | None) -> None:
        self._digest = _digest(api_key) if api_key else None

    @property
    def enabled(self) -> bool:
        """True while a key is needed."""
        return self._digest is not None

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Name the caller, or refuse with 401."""
        if self._digest is None:
            return ANONYMOUS
        api_key, authorization = headers.get("x-api-key"), headers.get("authorization")
        if api_key is not None and authorization is not None:
            raise AmbiguousCredential("Send either x-api-key or Authorization, not both on one request.")
        presented = api_key if api_key is not None else _bearer(authorization)
        if not hmac.compare_digest(_digest(presented), self._digest):
            raise InvalidCredential("The API key is not known. Send a valid one as x-api-key or as a Bearer token.")
        return CONFIGURED


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
