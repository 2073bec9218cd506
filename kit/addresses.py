"""Which addresses the platform may connect to when somebody else names the host.

    for address in await checked_address("mcp.example.com", 443):     # connect to what was checked, not to the name
        …
    allowed = PrivateHosts.parse(settings.allowed_private_hosts)      # MANAGED_AGENTS_ALLOWED_PRIVATE_HOSTS
    target = await checked_url(url, allowed=allowed)                  # target.host, target.port, target.addresses

A name is resolved once and every address that it has must be public: one that is not refuses the whole name, so a name
can't mix the two. Refused are loopback, private, link-local, carrier, multicast and reserved ranges, their IPv6
equivalents, IPv4 inside IPv6 (mapped, compatible, 6to4, NAT64, Teredo), and numbers that are not written as an address
usually is (`0x7f000001`, `2130706433`, `127.1`). So are addresses that look public and serve only the machines of one
cloud, its metadata among them. A client that follows a redirect asks again for each hop.

An operator may name private hosts. Link-local ones, where clouds keep their metadata, multicast and the unspecified
address stay refused even then.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from kit.errors import InvalidArgument, Unavailable

RESOLVE_SECONDS = 5.0
LONGEST_URL = 2_048
DEFAULT_PORTS = {"http": 80, "https": 443}

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)\Z")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Global by their number, or to some releases of Python, and no part of the internet all the same.
_REFUSED_V4 = (
    # Protocol assignments; one cloud has its metadata at 192.0.0.192.
    ipaddress.IPv4Network("192.0.0.0/24"),
    # Relays of 6to4, which lead wherever the next router says.
    ipaddress.IPv4Network("192.88.99.0/24"),
    # The agent of another cloud, which hands out what machines are set up with.
    ipaddress.IPv4Network("168.63.129.16/32"),
)
_REFUSED_V6 = (
    # Documentation, a local range of segment routing.
    ipaddress.IPv6Network("3fff::/20"),
    ipaddress.IPv6Network("5f00::/16"),
    ipaddress.IPv6Network("64:ff9b:1::/48"),
    ipaddress.IPv6Network("2001::/32"),
    ipaddress.IPv6Network("fec0::/10"),
    ipaddress.IPv6Network("100::/64"),
)
_COMPATIBLE = ipaddress.IPv6Network("::/96")


class AddressRefused(InvalidArgument):
    """The platform does not connect there."""

    reason = "ADDRESS_REFUSED"


class AddressUnresolved(Unavailable):
    """The name has no address now."""

    reason = "ADDRESS_UNRESOLVED"


@dataclass(frozen=True, slots=True)
class PrivateHosts:
    """Hosts, or `host:port`, at which the operator allows private addresses."""

    entries: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> PrivateHosts:
        """From a comma-separated list; an IPv6 address with a port stands in brackets."""
        return cls(frozenset(_plain(part) for part in text.split(",") if part.strip()))

    def allows(self, host: str, port: int) -> bool:
        """Whether this very host (and port, where one is named) was allowed."""
        name = _plain(host)
        return name in self.entries or f"{name}:{port}" in self.entries or f"[{name}]:{port}" in self.entries


NO_PRIVATE_HOSTS = PrivateHosts()


@dataclass(frozen=True, slots=True)
class Target:
    """A URL's host and port, and the addresses that may be connected to for it."""

    scheme: str
    host: str
    port: int
    addresses: tuple[str, ...]


async def checked_address(host: str, port: int, *, allow_private: bool = False) -> list[str]:
    """The addresses of `host`, each of them checked, in the resolver's order.

    AddressRefused where any of them may not be connected to, AddressUnresolved where there is none.
    """
    name = _plain(host)
    if not name or any(character.isspace() or character in "/\\@?#%" for character in name):
        raise AddressRefused("A host's name must be a plain name or address.", host=host)
    if (literal := _literal(name)) is not None:
        found = [literal]
    else:
        if _NUMBER.match(name.rstrip(".").rpartition(".")[2]):
            raise AddressRefused(f"{name} is no usual spelling of an address.", host=name)
        found = await _resolve(name, port)
    for address in found:
        if not (is_public(address) or (allow_private and is_private(address))):
            raise AddressRefused(f"{name} leads to an address that may not be connected to.", host=name)
    return [str(address) for address in found]


async def checked_url(
    url: str, *, allowed: PrivateHosts = NO_PRIVATE_HOSTS, schemes: tuple[str, ...] = ("http", "https")
) -> Target:
    """Where a URL leads. AddressRefused for another scheme, a name or password in it, or a refused host."""
    host, port, scheme = split_url(url, schemes=schemes)
    addresses = await checked_address(host, port, allow_private=allowed.allows(host, port))
    return Target(scheme, host, port, tuple(addresses))


def split_url(url: str, *, schemes: tuple[str, ...] = ("http", "https")) -> tuple[str, int, str]:
    """Host, port and scheme of a URL without resolving it. AddressRefused for what is no plain URL."""
    told = f"A URL must start with {' or '.join(f'{scheme}://' for scheme in schemes)}, name a host and no user."
    if len(url) > LONGEST_URL or not url.isprintable() or any(character in " \\" for character in url):
        raise AddressRefused(told)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise AddressRefused(told) from None
    if parts.scheme not in schemes or not parts.hostname or "@" in parts.netloc or port == 0:
        raise AddressRefused(told)
    return _plain(parts.hostname), port or DEFAULT_PORTS[parts.scheme], parts.scheme


def is_public(address: _Address) -> bool:
    """Whether the address is one of the internet at large."""
    if isinstance(address, ipaddress.IPv4Address):
        if any(address in network for network in _REFUSED_V4):
            return False
        return address.is_global and not (address.is_multicast or address.is_reserved)
    if (inner := _inner(address)) is not None:
        return is_public(inner)
    if address.scope_id or address in _COMPATIBLE or any(address in network for network in _REFUSED_V6):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def is_private(address: _Address) -> bool:
    """Whether an operator may allow the address: loopback and the ranges of private and carrier networks."""
    if isinstance(address, ipaddress.IPv6Address) and (inner := _inner(address)) is not None:
        return is_private(inner)
    if address.is_multicast or address.is_unspecified or address.is_link_local:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        return address.is_loopback or address in ipaddress.IPv6Network("fc00::/7")
    carrier = ipaddress.IPv4Network("100.64.0.0/10")
    return address.is_loopback or any(address in network for network in (*_PRIVATE_V4, carrier))


_PRIVATE_V4 = tuple(ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 one leads to."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _literal(name: str) -> _Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        if ":" in name:
            raise AddressRefused(f"{name} is no address.", host=name) from None
        return None


async def _resolve(name: str, port: int) -> list[_Address]:
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            answers = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        raise AddressUnresolved(f"The name {name} does not resolve.", host=name) from None
    found = dict.fromkeys(str(answer[4][0]) for answer in answers)
    if not found:
        raise AddressUnresolved(f"The name {name} does not resolve.", host=name)
    return [ipaddress.ip_address(address) for address in found]


def _plain(host: str) -> str:
    name = host.strip().lower()
    return name[1:-1] if name.startswith("[") and name.endswith("]") else name.rstrip(".")
