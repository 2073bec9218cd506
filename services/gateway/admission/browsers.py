"""Cookies of browsers at the session gateway: a page never holds an API key.

The server of an application has the key. It asks for a ticket, for one agent and one person, and hands it to its page;
the page exchanges it, once and within a minute, for a cookie that no script can read. Ticket and cookie are the same
claims, sealed with a key that only gateways have: which API key asked (by its digest), for which agent and route, for
whom, until when. So any gateway knows a cookie, nothing is stored of it, and it is good only for as long as the API
key is.

Only paths of that agent's gateway take a cookie, and only where no other credential is sent. A page of another origin
can't use it unless the operator allows that origin: the cookie is not sent along (`SameSite`), and a request that may
change something must come from this origin or an allowed one.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import orjson

from kit.errors import PermissionDenied, Unauthenticated
from kit.ids import new_id

COOKIE = "managed_agents_browser"
TICKET_SECONDS = 60
TICKET, BROWSER = b"ticket", b"cookie"
_NONCE_BYTES = 12
_OF_THIS_PROCESS = os.urandom(32)
_PATH = re.compile(r"/api/agents/(?P<agent>[^/]+)/(?P<preview>preview/)?eve/v1/")
_EXCHANGE = re.compile(r"/api/agents/[^/]+/(preview/)?eve/v1/cookie")


class InvalidTicket(Unauthenticated):
    """The ticket is not one of ours, too old, or for another agent."""

    reason = "INVALID_TICKET"


class OriginRefused(PermissionDenied):
    """A page of an origin that may not use the cookie."""

    reason = "ORIGIN_REFUSED"


@dataclass(frozen=True, slots=True)
class Claims:
    """What a ticket or cookie says."""

    # SHA-256 of the API key in hex; empty where none was needed.
    digest: str
    agent_id: str
    preview: bool
    user: str
    # Seconds since 1970.
    expires_at: int
    # How long the cookie is good for that a ticket is exchanged for.
    seconds: int = 0
    # Of a ticket: by which it is known as spent.
    id: str = ""

    @property
    def path(self) -> str:
        """Which requests the cookie goes along with."""
        return f"/api/agents/{self.agent_id}/{'preview/' if self.preview else ''}eve/v1/"


def is_exchange(path: str) -> bool:
    """Whether a ticket is the only credential of a path."""
    return _EXCHANGE.fullmatch(path) is not None


class Browsers:
    """Makes and reads tickets and cookies."""

    def __init__(self, secret: str | None, allowed_origins: Sequence[str] = ()) -> None:
        """`secret` is what gateways share; without one, what this process makes is known to no other."""
        material = secret.encode() if secret else _OF_THIS_PROCESS
        self._key = hashlib.sha256(b"managed-agents cookies of browsers\0" + material).digest()
        # `*` names nobody in particular, so no page may use somebody's cookie by it.
        self._allowed = frozenset(origin for origin in allowed_origins if origin != "*")

    def ticket(self, digest: str, agent_id: str, *, preview: bool, user: str, seconds: int) -> tuple[str, Claims]:
        """A ticket for one exchange."""
        expires_at = int(time.time()) + TICKET_SECONDS
        claims = Claims(digest, agent_id, preview, user, expires_at, seconds, new_id("tick"))
        return self._seal(TICKET, claims), claims

    def open_ticket(self, ticket: str, agent_id: str, *, preview: bool) -> Claims:
        """What a ticket says; InvalidTicket where it is not good here and now."""
        claims = self._open(TICKET, ticket)
        if claims is None or (claims.agent_id, claims.preview) != (agent_id, preview):
            raise InvalidTicket("This ticket is not good here, or not any more. Ask for a new one.")
        return claims

    def cookie(self, ticket: Claims, headers: Mapping[str, str]) -> tuple[str, Claims]:
        """The `Set-Cookie` header of an exchange."""
        claims = replace(ticket, expires_at=int(time.time()) + ticket.seconds, id="")
        origin = urlsplit(headers.get("origin", ""))
        parts = [
            f"{COOKIE}={self._seal(BROWSER, claims)}",
            f"Path={claims.path}",
            f"Max-Age={ticket.seconds}",
            "HttpOnly",
        ]
        if origin.hostname is None or origin.hostname == urlsplit(f"//{headers.get('host', '')}").hostname:
            # Ports make no difference to what a site is.
            parts += ["SameSite=Strict", *(("Secure",) if origin.scheme == "https" else ())]
        else:
            parts += ["SameSite=None", "Secure", "Partitioned"]
        return "; ".join(parts), claims

    def read(self, headers: Mapping[str, str], path: str, method: str) -> Claims | None:
        """What the cookie of a request says; None where there is none that counts here."""
        found = _PATH.match(path)
        if found is None or "cookie" not in headers or "authorization" in headers or "x-api-key" in headers:
            return None
        claims = self._open(BROWSER, _cookie(headers["cookie"]))
        if claims is None:
            return None
        if (claims.agent_id, claims.preview) != (found["agent"], found["preview"] is not None):
            raise PermissionDenied("The cookie of this browser is for another agent.")
        self.check_origin(headers, method)
        return claims

    def brings_cookie(self, headers: Mapping[str, str], path: str) -> bool:
        """Whether there is a cookie of ours, good or not, where one counts."""
        return _PATH.match(path) is not None and bool(_cookie(headers.get("cookie", "")))

    def check_origin(self, headers: Mapping[str, str], method: str) -> None:
        """Refuse what a page of a foreign origin asks for, and writes that don't say where they come from."""
        origin = headers.get("origin")
        if origin is None and method in ("GET", "HEAD"):
            return
        if origin is None or (urlsplit(origin).netloc != headers.get("host") and origin not in self._allowed):
            raise OriginRefused(
                "A page of this origin may not use the session gateway as somebody: send the request from the"
                " gateway's own origin, or from one that the operator allows."
            )

    def _seal(self, kind: bytes, claims: Claims) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = _cipher(self._key).encrypt(nonce, orjson.dumps(claims), kind)
        return base64.urlsafe_b64encode(nonce + sealed).rstrip(b"=").decode()

    def _open(self, kind: bytes, sealed: str) -> Claims | None:
        try:
            raw = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
            claims = Claims(**orjson.loads(_cipher(self._key).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], kind)))
        except Exception:
            # Whatever it is, it was not sealed by a gateway.
            return None
        return claims if claims.expires_at > time.time() else None


def _cipher(key: bytes):
    # Loaded with the first cookie: most gateways never see one.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _cookie(header: str) -> str:
    """Our cookie among those that others have set for this host, whatever they look like."""
    for pair in header.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            return value
    return ""
