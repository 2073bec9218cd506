"""Which hosts a session may reach.

A policy comes from an environment's `network` (or the published `networking`).
`limited` allows listed hosts, `unrestricted` any public host; anything missing
or malformed allows nothing. Whatever the policy, only public addresses are ever
connected to, and the address that was checked is the one that is used.
"""

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kit import addresses

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class HostRule:
    """`example.com`, `*.example.com` (not the name itself), either with `:port`."""

    host: str
    subdomains: bool
    port: int | None

    def allows(self, host: str, port: int) -> bool:
        """Whether this rule covers the target."""
        if self.port is not None and self.port != port:
            return False
        return host.endswith(f".{self.host}") if self.subdomains else host == self.host

    def to_text(self) -> str:
        """As it is written in an allow list."""
        host = f"*.{self.host}" if self.subdomains else self.host
        if self.port is None:
            return host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What one environment allows."""

    unrestricted: bool = False
    rules: tuple[HostRule, ...] = ()

    @property
    def allows_something(self) -> bool:
        """Whether a proxy is worth starting."""
        return self.unrestricted or bool(self.rules)

    def allows(self, host: str, port: int) -> bool:
        """Whether the named target may be reached, its address still unchecked."""
        return self.unrestricted or self.names(host, port)

    def names(self, host: str, port: int) -> bool:
        """Whether a rule covers the target, rather than leave for everything."""
        return any(rule.allows(host, port) for rule in self.rules)

    def reaches(self, wanted: HostRule) -> bool:
        """Whether something of what a rule of somebody else stands for may be reached."""
        if self.unrestricted:
            return True
        return any(
            (rule.port is None or wanted.port is None or rule.port == wanted.port) and _overlap(rule, wanted)
            for rule in self.rules
        )

    @classmethod
    def of(cls, environment: Mapping[str, Any], package_hosts: Sequence[str] = ()) -> "NetworkPolicy":
        """Read the policy of an environment in either of its spellings."""
        network = environment.get("network") or environment.get("networking")
        if not isinstance(network, Mapping):
            return cls()
        if network.get("type") == "unrestricted":
            return cls(unrestricted=True)
        if network.get("type") != "limited":
            return cls()
        hosts = network.get("allowed_hosts")
        named = [each for each in hosts if isinstance(each, str)] if isinstance(hosts, list) else []
        packages = network.get("allow_package_manager_network_access", network.get("allow_package_managers"))
        if packages is True:
            named += package_hosts
        return cls(rules=tuple(rule for each in named if (rule := parse_rule(each))))


def _overlap(one: HostRule, other: HostRule) -> bool:
    if one.subdomains and other.subdomains:
        longer, shorter = sorted((f".{one.host}", f".{other.host}"), key=len, reverse=True)
        return longer.endswith(shorter)
    if one.subdomains or other.subdomains:
        wide, exact = (one, other) if one.subdomains else (other, one)
        return exact.host.endswith(f".{wide.host}")
    return one.host == other.host


def parse_rule(text: str) -> HostRule | None:
    """Read one entry of an allow list; None for what cannot be understood, which then allows nothing."""
    name, port = split_port(text.strip())
    subdomains = name.startswith("*.")
    host = normal_host(name[2:] if subdomains else name)
    if host is None or "*" in host or port == 0:
        return None
    return HostRule(host, subdomains, port)


def split_port(target: str) -> tuple[str, int | None]:
    """Split `host[:port]`; a port that is no port comes back as 0."""
    if target.startswith("["):
        host, _, rest = target[1:].partition("]")
        if not rest:
            return host, None
        return host, _port(rest[1:]) if rest.startswith(":") else 0
    host, colon, port = target.rpartition(":")
    if not colon:
        return target, None
    if ":" in host:
        # More than one colon outside brackets: a bare IPv6 address.
        return target, None
    return host, _port(port)


def _port(text: str) -> int:
    # int() alone would take "+80", " 80" and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        return 0
    return int(text) if int(text) <= 65535 else 0


def normal_host(host: str) -> str | None:
    """Lower case, no final dot, international names in their ASCII form; None for no host."""
    host = host.strip().removesuffix(".").lower()
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        host = host.encode("idna").decode("ascii")
    except UnicodeError:
        return None
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789-._*")
    if not host or len(host) > 253 or not set(host) <= allowed:
        return None
    return host


def is_public(address: str) -> bool:
    """Whether an address is on the public Internet and not this machine's own."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and (
        (parsed.ipv4_mapped or parsed.sixtofour or parsed.teredo) is not None or parsed in _NAT64
    ):
        # Each can carry an IPv4 address that would have to be judged by itself.
        return False
    return addresses.is_public(parsed) and not _is_own(parsed)


def _is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether the host itself has this address: its services would be reachable by it."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
