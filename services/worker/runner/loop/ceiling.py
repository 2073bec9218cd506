"""Whether a session may spend more: what the runner knows of its budget.

The service prices what a turn spent and says with each answer whether the budget is reached. A request in flight ends
and is charged; the question comes before the next one. It costs nothing for a session without a budget, since none can
be added later, and one append more where a request's usage has not been told yet.
"""

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop.journal import Journal

_WITHOUT = (b"", b"null")


class Ceiling:
    """The budget of one turn's session."""

    def __init__(self, grant: TurnGrant) -> None:
        self._is_set = grant.session.budget_json not in _WITHOUT
        self._at_grant = grant.budget_reached

    async def is_reached(self, journal: Journal) -> bool:
        """Whether no further model request may begin, with everything charged that was spent so far."""
        if not self._is_set:
            return False
        if journal.has_uncharged_usage:
            await journal.flush()
        return self._at_grant if journal.budget_reached is None else journal.budget_reached
