"""Who may open what is sealed."""

from __future__ import annotations

from kit.rpc.server import current_context
from services.vault.domain.errors import OperatorsOnly, RunnersOnly

RUNNER_PREFIX = "runner_"
OPERATOR = "operator"


def require_runner() -> str:
    """The runner that calls."""
    principal = current_context().principal_id
    if not principal.startswith(RUNNER_PREFIX):
        raise RunnersOnly("Only a runner may open what is sealed.")
    return principal


def require_operator() -> None:
    """Refuses whoever is not the operator's command line."""
    if current_context().principal_id != OPERATOR:
        raise OperatorsOnly("Only the operator may look after the master key.")
