"""Requests to servers that a workspace names: authorization servers and MCP servers.

Every address is checked before a connection goes to it, and the connection goes to the
address that was checked. Redirects are answers like any other. An answer is read up to a
bound, and whatever is told of it has no secret in it.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus

from kit.addresses import AddressRefused, AddressUnresolved, PrivateHosts, checked_url
from kit.redaction import MASK, mask_text

MAX_BYTES = 256 * 1024
SHOWN_CHARACTERS = 2_000
MAX_TYPE_CHARACTERS = 128
REQUEST_SECONDS = 8.0
_HEADERS = {"user-agent": "managed-agents"}


class Unreachable(Exception):
    """No answer came: the address is refused, the name is unknown, or the connection failed."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    status: int
    content_type: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)

    @property
    def is_success(self) -> bool:
        """Whether it is a 2xx."""
        return 200 <= self.status < 300


class Outward:
    """Asks foreign servers. `allowed` are the private hosts that the operator lets them be."""

    def __init__(self, allowed: PrivateHosts, seconds: float = REQUEST_SECONDS) -> None:
        self._allowed = allowed
        self._seconds = seconds

    async def post(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        form: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Reply:
        """The answer, whatever its status. Unreachable where none came in time."""
        # Loaded with the first request: an HTTP client is more than the rest of this process, and may not be needed.
        from services.vault.operations import http

        try:
            async with asyncio.timeout(self._seconds):
                target = await checked_url(url, allowed=self._allowed)
                data = form if form is not None else content
                status, found, body = await http.post(url, target, {**_HEADERS, **headers}, data, MAX_BYTES)
        except (AddressRefused, AddressUnresolved) as refused:
            raise Unreachable(refused.message) from None
        except TimeoutError:
            raise Unreachable(f"It did not answer within {self._seconds:g} seconds.") from None
        except (*http.FAILURES, OSError, ValueError) as failed:
            # The driver's own words may repeat what was sent.
            raise Unreachable(f"The connection failed ({type(failed).__name__}).") from None
        return Reply(status, found.get("content-type", "")[:MAX_TYPE_CHARACTERS], body, found)


def shown(body: bytes, secrets: Iterable[str]) -> tuple[str, bool]:
    """The beginning of a body as people may see it, and whether there was more."""
    text = body.decode("utf-8", "replace").replace("\x00", "")
    for secret in secrets:
        for form in _forms(secret):
            text = text.replace(form, MASK)
    text = mask_text(text)
    return text[:SHOWN_CHARACTERS], len(text) > SHOWN_CHARACTERS


def _forms(secret: str) -> list[str]:
    """A secret as it may come back: plain, base64 in any alignment, hexadecimal, URL-encoded, inside JSON."""
    encoded = secret.encode()
    found = {secret, quote(secret, safe=""), quote_plus(secret), secret.replace("/", "\\/"), encoded.hex()}
    for offset in range(3):
        # What stands before it shifts its letters; those at its edges depend on its neighbours.
        core = b64encode(b"\0" * offset + encoded).decode().rstrip("=")
        inner = core[(0, 2, 3)[offset] : -1]
        if len(inner) >= 8:
            found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return sorted((form for form in found if form), key=len, reverse=True)
