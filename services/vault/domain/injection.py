"""Which credentials a target may get, decided before any of them is opened.

Vaults are asked in the order in which the session names them, and of two credentials with
the same key the first one counts, also where it is refused. A process that names no host
gets what is unrestricted and nothing else; an MCP server gets what is kept for exactly its
URL; a request to a host gets what its policy allows there. A policy that is missing or
can't be read refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.vault.domain.credential import BEARER, OAUTH, VARIABLE, Credential

NO_POLICY = "its policy is missing or can't be read"
NO_HOST = "it is limited to hosts, and the process names none"
OTHER_HOST = "its policy does not allow this host"


@dataclass(frozen=True, slots=True)
class Denied:
    """A credential that has the name, and may not be used."""

    credential: Credential
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What may be opened, and what was refused."""

    granted: tuple[Credential, ...] = ()
    denied: tuple[Denied, ...] = ()


def for_listing(credentials: Iterable[Credential]) -> tuple[Credential, ...]:
    """The variables that some target may get."""
    return tuple(
        credential for credential in _first_of_each(credentials, (VARIABLE,)) if credential.policy() is not None
    )


def for_process(credentials: Iterable[Credential]) -> Decision:
    """Variables of a process that names no host."""
    return _judge(_first_of_each(credentials, (VARIABLE,)), "", 0, NO_HOST)


def for_egress(credentials: Iterable[Credential], host: str, port: int) -> Decision:
    """Variables of a request to a host. A host that isn't named is none that a policy could allow."""
    return _judge(_first_of_each(credentials, (VARIABLE,)), host, port, OTHER_HOST if host else NO_HOST)


def for_server(credentials: Iterable[Credential], url: str) -> Decision:
    """The token of an MCP server, compared to the last character."""
    found = (credential for credential in _first_of_each(credentials, (BEARER, OAUTH)) if credential.key == url)
    return Decision(granted=tuple(found))


def _first_of_each(credentials: Iterable[Credential], kinds: tuple[str, ...]) -> Iterable[Credential]:
    first: dict[str, Credential] = {}
    for credential in credentials:
        if credential.type in kinds and credential.archived_at is None:
            first.setdefault(credential.key, credential)
    return first.values()


def _judge(credentials: Iterable[Credential], host: str, port: int, otherwise: str) -> Decision:
    granted: list[Credential] = []
    denied: list[Denied] = []
    for credential in credentials:
        policy = credential.policy()
        if policy is None:
            denied.append(Denied(credential, NO_POLICY))
        elif policy.allows(host, port):
            granted.append(credential)
        else:
            denied.append(Denied(credential, otherwise))
    return Decision(tuple(granted), tuple(denied))
