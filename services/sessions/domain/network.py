"""What a sandbox may reach: one policy, two spellings.

The published spelling says `allow_mcp_servers` and `allow_package_managers`, the flat one
says `allow_mcp_server_network_access` and `allow_package_manager_network_access`. Only the
published one is stored. A limited policy allows nothing that it doesn't name.
"""

import re
from typing import Any

from services.sessions.domain import shape
from services.sessions.domain.session_errors import InvalidRequest

KINDS = ("limited", "unrestricted")
MAX_HOSTS = 256
MAX_HOST_CHARACTERS = 255

UNRESTRICTED = {"type": "unrestricted"}
# What is reported and enforced where the stored policy can't be read.
CLOSED = {"type": "limited", "allow_mcp_servers": False, "allow_package_managers": False, "allowed_hosts": []}

_FLAT_NAMES = {
    "allow_mcp_servers": "allow_mcp_server_network_access",
    "allow_package_managers": "allow_package_manager_network_access",
}
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")

Network = dict[str, Any]


def read_network(value: Any, field: str, *, flat: bool) -> Network:
    """A policy in either spelling, as the published one, holding only what was given."""
    names = _FLAT_NAMES if flat else {name: name for name in _FLAT_NAMES}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object.", field=field)
    if shape.one_of(value.get("type"), f"{field}.type", KINDS) == "unrestricted":
        shape.known_only(value, field, ("type",))
        return dict(UNRESTRICTED)
    shape.known_only(value, field, ("type", *names.values(), "allowed_hosts"))
    network: Network = {"type": "limited"}
    for name, spelling in names.items():
        if value.get(spelling) is not None:
            network[name] = shape.flag(value[spelling], f"{field}.{spelling}")
    if value.get("allowed_hosts") is not None:
        network["allowed_hosts"] = _hosts(value["allowed_hosts"], f"{field}.allowed_hosts")
    return network


def completed(network: Network | None, stored: Network | None = None) -> Network:
    """The whole policy: what was given over what is stored, if both are limited, over the closed defaults."""
    if network is None:
        return stored or dict(UNRESTRICTED)
    if network["type"] == "unrestricted":
        return dict(UNRESTRICTED)
    base = stored if stored and stored["type"] == "limited" else CLOSED
    return CLOSED | base | network


def flat_form(network: Network) -> Network:
    """The policy in the flat spelling."""
    return {_FLAT_NAMES.get(name, name): value for name, value in network.items()}


def _hosts(value: Any, field: str) -> list[str]:
    hosts = shape.entries(value, field, maximum=MAX_HOSTS)
    for index, host in enumerate(hosts):
        path = f"{field}.{index}"
        if not isinstance(host, str) or len(host) > MAX_HOST_CHARACTERS or not _HOST.fullmatch(host):
            raise InvalidRequest(
                f"{path} must be a hostname or an address, optionally with *. in front or a port behind, and no scheme"
                " or path.",
                field=path,
            )
    return hosts
