"""Which names a gateway answers to: HTTP/1.1 wants one `Host`, and a keyless gateway wants a loopback name in it.

Without a key, listening on loopback is the only guard. A web page whose name resolves to
127.0.0.1 would pass it as "same origin", so such a gateway takes loopback names only.
With a key the name does not matter: the credential decides.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address

from kit.errors import PermissionDenied

from ..errors import InvalidRequest

# A name or address with an optional port. Two fields of one name are joined by a comma before they come here.
_ONE_HOST = re.compile(r"[^\s,/?#@\\]*")


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


def require_host(http_version: str, header: str | None) -> None:
    """Refuse a request that does not say once whom it is for. Before HTTP/1.1 it may stay silent."""
    if header is None and http_version in ("1.0", "0.9"):
        return
    if header is None or not _ONE_HOST.fullmatch(header):
        raise InvalidRequest(
            "Host must be sent exactly once: a name or an address, with or without a port.", field="Host"
        )


def check_host(header: str | None) -> None:
    """Refuse a `Host` that is no loopback name; PermissionDenied tells what to do."""
    host = header or ""
    name = host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]
    if not is_loopback(name):
        raise PermissionDenied(
            "Without an API key this platform answers only to its loopback names, such as 127.0.0.1 and localhost. "
            "Set MANAGED_AGENTS_API_KEY to reach it by another name."
        )
