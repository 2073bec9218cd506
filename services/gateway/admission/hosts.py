"""Which names a keyless gateway answers to.

Without a key, listening on loopback is the only guard. A web page whose name resolves to
127.0.0.1 would pass it as "same origin", so such a gateway takes loopback names only.
With a key the name does not matter: the credential decides.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

from kit.errors import PermissionDenied


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether a name or address without a port means this machine and no other."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def check_host(header: str | None) -> None:
    """Refuse a `Host` that is no loopback name; PermissionDenied tells what to do."""
    host = header or ""
    name = host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]
    if not is_loopback(name):
        raise PermissionDenied(
            "Without an API key this platform answers only to its loopback names, such as 127.0.0.1 and localhost. "
            "Set MANAGED_AGENTS_API_KEY to reach it by another name."
        )
