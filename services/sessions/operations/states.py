"""Where sessions stood when this replica last moved them: guesses that the write checks.

A guess saves the read before a write. The write names the version that it was made for
and touches nothing where another replica was faster, so a wrong guess costs time and
never truth.
"""

from collections import OrderedDict

from services.sessions.domain.session_state import SessionState

MAX_KEPT = 5_000


class States:
    """The newest known states, the least used ones dropped first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, SessionState] = OrderedDict()

    def guess(self, workspace_id: str, session_id: str) -> SessionState | None:
        """The state to expect, if there is a guess."""
        state = self._kept.get(session_id)
        if state is None or state.workspace_id != workspace_id:
            return None
        self._kept.move_to_end(session_id)
        return state

    def keep(self, state: SessionState) -> None:
        """Notes a state that was committed."""
        if state.deleted_at is not None:
            self.drop(state.id)
            return
        self._kept[state.id] = state
        self._kept.move_to_end(state.id)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def drop(self, session_id: str) -> None:
        """Forgets a state that proved wrong, or may be."""
        self._kept.pop(session_id, None)
