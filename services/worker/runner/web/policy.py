"""What a URL is, and which hosts an agent's definition lets its tools reach. Pure.

A URL is taken apart once and put together again from its parts, with its host as the resolver is asked for it: what is
checked is what is requested, however it was spelled.
"""

import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from kit.addresses import AddressRefused, split_url

INTERNAL = ("localhost", "local", "internal", "localdomain", "invalid")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
# What may stand in a path or query as it is; all else is written as bytes.
_PLAIN = "/%:@!$&'()*+,;=~-._[]"


@dataclass(frozen=True, slots=True)
class Page:
    """What was found."""

    url: str
    text: str


class FetchFailed(Exception):
    """Nothing was fetched; the text says why. `was_sent` tells whether any server was asked."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class WebRefused(Exception):
    """The URL, host or answer is not taken; the text says why, for the model."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A URL of sound shape."""

    url: str
    scheme: str
    host: str
    port: int


def read_url(url: str) -> Wanted:
    """The URL to request. WebRefused where it is none that may be requested."""
    try:
        host, port, scheme = split_url(url)
        parts = urlsplit(url)
    except AddressRefused as refused:
        raise WebRefused(f"this URL can't be fetched. {refused.message}") from None
    except ValueError:
        raise WebRefused("this URL can't be read.") from None
    host = _ascii(host)
    if ":" not in host and not _NAME.fullmatch(host):
        raise WebRefused("the host's name has characters that no domain name has.")
    shown = f"[{host}]" if ":" in host else host
    if port != _DEFAULT_PORTS[scheme]:
        shown = f"{shown}:{port}"
    query = f"?{quote(parts.query, safe=_PLAIN + '?')}" if parts.query else ""
    return Wanted(f"{scheme}://{shown}{quote(parts.path, safe=_PLAIN) or '/'}{query}", scheme, host, port)


def next_url(wanted: Wanted, location: str) -> str:
    """Where a redirect leads, before it is judged."""
    try:
        return urljoin(wanted.url, location)
    except ValueError:
        raise WebRefused("the server redirects to something that is no URL.") from None


def check_internal(host: str) -> None:
    """Refuses the names of internal hosts, whatever they would resolve to."""
    labels = host.rstrip(".").split(".")
    if labels[-1] in INTERNAL:
        raise WebRefused(f"{host} is the name of an internal host, which is never reached.")


@dataclass(frozen=True, slots=True)
class DomainPolicy:
    """The domain list of one tool entry: allowed, or blocked, or none."""

    allowed: tuple[tuple[str, str], ...] = ()
    blocked: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "DomainPolicy":
        """From the entry as the agent's document holds it."""
        return cls(_entries(config.get("allowed_domains")), _entries(config.get("blocked_domains")))

    def check(self, host: str, path: str = "/") -> None:
        """Refuses a host that the list keeps out."""
        if not self.permits(host, path):
            told = "is not among the allowed domains" if self.allowed else "is among the blocked domains"
            raise WebRefused(f"{host} {told} of this agent.")

    def permits(self, host: str, path: str = "/") -> bool:
        """Whether a host, and a path where entries carry one, may be reached."""
        if self.allowed:
            return any(_covers(entry, host, path) for entry in self.allowed)
        return not any(_covers(entry, host, path) for entry in self.blocked)


def _entries(domains: Any) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for domain in domains or ():
        host, _, suffix = domain.lower().partition("/")
        found.append((host, suffix.rstrip("/")))
    return tuple(found)


def _covers(entry: tuple[str, str], host: str, path: str) -> bool:
    domain, suffix = entry
    if host != domain and not host.endswith(f".{domain}"):
        return False
    below = path.lower().strip("/")
    return not suffix or below == suffix or below.startswith(f"{suffix}/")


def _ascii(host: str) -> str:
    """The host as a resolver is asked for it."""
    if host.isascii():
        return host
    try:
        encoded = host.encode("idna").decode().lower().rstrip(".")
    except UnicodeError:
        raise WebRefused("the host's name can't be written as a domain name.") from None
    with suppress(ValueError):
        ipaddress.ip_address(encoded)
        raise WebRefused("this is no usual spelling of an address.")
    return encoded
