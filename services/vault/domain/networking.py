"""On which hosts a secret may be used.

A policy is `{"type": "unrestricted"}` or `{"type": "limited", "allowed_hosts": [...]}`. An
entry is a host's name, an IPv4 address, or `*.name` for the names below it (not for it),
each perhaps with a port; without one every port is allowed. A lone `*` is no entry. A
policy that is missing or can't be read allows nothing, and so does an empty list.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any

import orjson

from kit.errors import InvalidArgument
from services.vault.domain import fields
from services.vault.domain.errors import InvalidField

MAX_HOSTS = 16
MAX_HOST_CHARACTERS = 253
UNRESTRICTED, LIMITED = "unrestricted", "limited"

_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_ENTRY = re.compile(r"(\*\.)?([a-z0-9._-]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Networking:
    """A sound policy."""

    unrestricted: bool
    allowed_hosts: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As it is stored and shown."""
        if self.unrestricted:
            return {"type": UNRESTRICTED}
        return {"type": LIMITED, "allowed_hosts": list(self.allowed_hosts)}

    def allows(self, host: str, port: int) -> bool:
        """Whether a request to this host and port may carry the secret; no host, only without restriction."""
        if self.unrestricted:
            return True
        name = host.lower().removesuffix(".")
        return bool(name) and any(_matches(entry, name, port) for entry in self.allowed_hosts)


def parse(value: Any, field: str) -> Networking:
    """A policy as a caller gives it; InvalidField names what is wrong."""
    kind = fields.one_of(fields.mapping(value, field).get("type"), f"{field}.type", (UNRESTRICTED, LIMITED))
    if kind == UNRESTRICTED:
        fields.known_only(value, field, ("type",))
        return Networking(unrestricted=True)
    fields.known_only(value, field, ("type", "allowed_hosts"))
    hosts = value.get("allowed_hosts")
    if not isinstance(hosts, list) or len(hosts) > MAX_HOSTS:
        raise InvalidField(
            f"{field}.allowed_hosts must be a list of at most {MAX_HOSTS} hosts.", field=f"{field}.allowed_hosts"
        )
    entries = [_entry(host, f"{field}.allowed_hosts.{number}") for number, host in enumerate(hosts)]
    return Networking(unrestricted=False, allowed_hosts=tuple(dict.fromkeys(entries)))


def stored(text: str | None) -> Networking | None:
    """A policy as it was stored; None where there is none that can be read, which allows nothing."""
    if not text:
        return None
    try:
        return parse(orjson.loads(text), "networking")
    except (ValueError, InvalidArgument):
        return None


def _entry(value: Any, field: str) -> str:
    told = (
        f"{field} must be a host such as api.example.com, *.example.com or 192.0.2.1, perhaps with a port; "
        "no URL, path or IPv6 address, and no lone *."
    )
    entry = value.lower() if isinstance(value, str) and len(value) <= MAX_HOST_CHARACTERS + 8 else ""
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise InvalidField(told, field=field)
    wildcard, name, port = found.groups()
    if not _is_host(name, below=bool(wildcard)) or (port is not None and not 1 <= int(port) <= 65535):
        raise InvalidField(told, field=field)
    return entry


def _is_host(name: str, *, below: bool) -> bool:
    if len(name) > MAX_HOST_CHARACTERS or not _NAME.fullmatch(name):
        return False
    if not _NUMBER.fullmatch(name.rpartition(".")[2]):
        return True
    # What ends in a number is an address, written as addresses usually are; nothing is below it.
    try:
        return not below and str(ipaddress.IPv4Address(name)) == name
    except ValueError:
        return False


def _matches(entry: str, name: str, port: int) -> bool:
    host, colon, wanted = entry.partition(":")
    if colon and wanted != str(port):
        return False
    if not host.startswith("*."):
        return host == name
    # An address is below no name, whatever its digits look like.
    return name.endswith(host[1:]) and len(name) > len(host) - 1 and not _NUMBER.fullmatch(name.rpartition(".")[2])
