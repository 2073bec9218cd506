"""Who may read and change how the installation runs.

Whoever holds a key may; there is one, the configured one. Without keys it is whoever sits at
this machine, so a gateway that listens to others as well takes these requests from here only.
"""

from __future__ import annotations

from collections.abc import Sequence

from kit.errors import PermissionDenied

from .credentials import ANONYMOUS, Principal
from .hosts import is_loopback

_MAPPED = "::ffff:"


def require_admin(principal: Principal, client: Sequence[object] | None) -> None:
    """Refuse whoever may not; `client` is the peer's address and port."""
    if principal != ANONYMOUS:
        return
    address = str(client[0]) if client else ""
    if not is_loopback(address.removeprefix(_MAPPED)):
        raise PermissionDenied(
            "Without an API key, settings can be read and changed from this machine only. "
            "Set MANAGED_AGENTS_API_KEY and send it to do so from elsewhere."
        )
