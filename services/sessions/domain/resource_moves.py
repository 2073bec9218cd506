"""How a session moves when its resources change. Pure."""

from collections.abc import Callable
from datetime import datetime

from services.sessions.domain.move import Move, Moved
from services.sessions.domain.session_errors import SessionEnded
from services.sessions.domain.session_state import Phase, SessionState, phase_of


def change_resources(state: SessionState, now: datetime, new_id: Callable[[], str]) -> Moved:
    """Notes that what is attached to a session changed; its log does not tell of that."""
    if phase_of(state) is Phase.ENDED:
        raise SessionEnded(f"Session {state.id} has ended and can't be changed.", session_id=state.id)
    move = Move(state, now, new_id)
    move.state.revision += 1
    return move.finish()
