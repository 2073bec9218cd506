"""The bound on waiting: a session that nobody answers in time is ended, if the operator wants that.

The time counts from the event that parked the session; answers to some of its calls don't
begin it anew. The calls themselves stay as they are: nobody decides what they would have
brought. A session at its spending ceiling is never ended this way, since the answer that
it waits for is what settles its spending.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from services.sessions.domain import budget, turn_events
from services.sessions.domain.move import Move, Moved
from services.sessions.domain.session_state import SessionState, Status


def is_overdue(state: SessionState, bound: timedelta, now: datetime) -> bool:
    """Whether the session has waited for its answers longer than the bound allows."""
    if state.status is not Status.REQUIRES_ACTION or state.parked_at is None or state.root_id:
        return False
    return state.parked_at + bound <= now and not budget.is_reached(state)


def time_out(state: SessionState, bound: timedelta, now: datetime, new_id: Callable[[], str]) -> Moved:
    """Ends a session that waited too long; any other stays as it is."""
    if not is_overdue(state, bound, now):
        return Moved(before=state, state=state)
    move = Move(state, now, new_id)
    move.write("session.error", _error(bound))
    move.revoke_turn()
    move.state.status = Status.TIMED_OUT
    move.write("session.thread_status_terminated", turn_events.thread_fields(move.state))
    move.write_session("session.status_terminated")
    return move.finish()


def _error(bound: timedelta) -> dict[str, Any]:
    message = (
        f"The session was ended: its calls were not answered within {bound.total_seconds():.0f} seconds, the most that"
        " this workspace lets a session wait."
    )
    return {
        "error": {"type": "requires_action_timeout", "message": message, "retry_status": "not_retryable"},
        "content": [{"type": "text", "text": message}],
    }
