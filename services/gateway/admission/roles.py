"""What each role may do: read, work with resources, or run the installation.

`read_only` reads, `member` also makes and changes things, `admin` also manages keys. What
holds for the whole installation is for its operator: an `admin` of the default workspace. A
`worker` is none of these: it reaches the work of one environment, on the routes that say so,
and nothing else. Without keys everyone is the operator, but what administers the
installation is taken from this machine only, since a gateway that listens to others would be
theirs to take over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from kit.errors import PermissionDenied

from ..errors import InvalidCredential
from .hosts import is_loopback
from .principal import ANONYMOUS, DEFAULT_WORKSPACE, Principal

Needs = Literal["read_only", "member", "admin", "operator"]
# What the path of a route names, for whoever holds a work item: the item itself, its session, a memory store that is
# attached to that, or a skill of its agents.
Holders = Literal["item", "session", "store", "skill"]

_RANKS = {"worker": 0, "read_only": 1, "member": 2, "admin": 3, "operator": 3}
_MAPPED = "::ffff:"


def require_role(
    principal: Principal,
    needs: Needs,
    *,
    workers: bool,
    path: Mapping[str, str],
    client: Sequence[object] | None,
    holders: Holders | None = None,
    workers_only: bool = False,
) -> None:
    """Refuse whoever may not. `client` is the peer's address.

    `workers` tells whether the route also takes the keys of workers, `holders` what it lets who holds a work item
    reach (`admission/holders.py` decides whether it is theirs).
    """
    if principal.role == "worker":
        if principal.has_lost and holders != "item":
            raise InvalidCredential("This sessions token was made for an attempt that is over.")
        if holders is not None and (principal.work_id or holders in ("item", "session")):
            workers = True
        elif principal.work_id:
            workers = False
        if not workers:
            raise PermissionDenied("This is not among what a worker may do or see. Send an API key here.")
        if path.get("environment_id", principal.environment_id) != principal.environment_id:
            raise PermissionDenied("This worker key belongs to another environment.")
        return
    if workers_only and principal is not ANONYMOUS:
        raise PermissionDenied("This is for workers: send a worker key of the environment. API keys manage it.")
    if _RANKS[principal.role] < _RANKS[needs]:
        raise PermissionDenied(
            f"This needs a key of role {'admin' if needs == 'operator' else needs}; the one that was sent has the "
            f"role {principal.role}."
        )
    if needs == "operator" and principal.workspace_id != DEFAULT_WORKSPACE:
        raise PermissionDenied(f"This needs a key of role admin in the default workspace, {DEFAULT_WORKSPACE}.")
    if needs in ("admin", "operator") and principal is ANONYMOUS:
        _require_this_machine(client)


def _require_this_machine(client: Sequence[object] | None) -> None:
    address = str(client[0]) if client else ""
    if not is_loopback(address.removeprefix(_MAPPED)):
        raise PermissionDenied(
            "Without an API key, settings and keys can be read and changed from this machine only. Make a key with "
            "`managed-agents keys create`, or set MANAGED_AGENTS_API_KEY, and send it to do so from elsewhere."
        )
