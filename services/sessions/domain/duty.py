"""What workers of a self-hosted environment have to do with a session. Pure.

Where workers serve whole sessions (worker protocol `session`) the platform runs none of the tools that need a machine:
the turn waits for the worker's `user.tool_result`, as it waits for a client's. A session needs a worker while a turn of
it runs, since a call may come any moment, and while calls wait for a worker.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from services.sessions.domain.inbound import USER_TOOL_RESULT, ClientEvent
from services.sessions.domain.move import RETRIES_EXHAUSTED, Move, Moved
from services.sessions.domain.session_state import CallKind, Phase, SessionState, TurnState, phase_of
from services.sessions.domain.thread_state import any_running, posted_calls

UNKNOWN_TEXT = (
    "work_outcome_unknown: the worker that had this call was lost before it told a result, so whether it took effect"
    " is not known. It was not run again. Check the state of things before you repeat it."
)
NOT_SERVED_TEXT = "This call was not run: no worker of the environment could serve the session."


@dataclass(frozen=True, slots=True)
class DutyChange:
    """What the queue has to hear of a move."""

    has_work: bool
    ended: bool


def has_work(state: SessionState) -> bool:
    """Whether a worker is needed now."""
    if phase_of(state) is Phase.ENDED:
        return False
    return state.turn_state is not TurnState.NONE or any_running(state) or next(waiting_calls(state), "") != ""


def waiting_calls(state: SessionState) -> Iterator[str]:
    """Ids, in the session's log, of the calls that wait for a worker; those of threads after its own."""
    for call in state.pending:
        if call.kind is CallKind.WORKER and not call.answered:
            yield call.event_id
    for _, call in posted_calls(state):
        if call.kind is CallKind.WORKER:
            yield call.posted_id


def change(moved: Moved) -> DutyChange | None:
    """What a move changes for workers. A thread's moves change nothing until its session hears of them."""
    before, state = moved.before, moved.state
    if not state.on_worker or state.root_id or not moved.events:
        return None
    needed, ended = has_work(state), phase_of(state) is Phase.ENDED
    if needed == has_work(before) and ended == (phase_of(before) is Phase.ENDED):
        return None
    return DutyChange(needed, ended)


def not_served_error(message: str, stores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a session says whose workers could not serve it; most often a memory store could not be mounted."""
    named = [str(store["memory_store_id"]) for store in stores]
    text = f"{message} Memory stores of the session: {', '.join(named)}." if named else message
    error: dict[str, Any] = {"type": "worker_failed_error", "message": text, "retry_status": "not_retryable"}
    return {
        "error": error | ({"memory_store_ids": named} if named else {}),
        "content": [{"type": "text", "text": text}],
    }


def tell_failure(state: SessionState, error: dict[str, Any], now: datetime, new_id: Callable[[], str]) -> Moved:
    """Writes that no worker could serve the session, and gives up its turn where that waits for one.

    Calls of threads, and those of a turn that runs, get their results as answers do: see `results`.
    """
    move = Move(state, now, new_id)
    move.write("session.error", error)
    if phase_of(state) is Phase.PARKED and not any_running(state) and not next(posted_calls(state), None):
        move.give_up_calls()
        # What waits is context of the next turn, and starts none: it would fail as this one did.
        move.mark_read(move.state.last_seq)
        move.close_turn(RETRIES_EXHAUSTED)
    return move.finish()


def results(state: SessionState, text: str) -> list[ClientEvent]:
    """Results that the platform writes for all calls that wait for a worker, in the worker's place."""
    content = [{"type": "text", "text": text}]
    return [
        ClientEvent(USER_TOOL_RESULT, {"tool_use_id": call_id, "content": content, "is_error": True})
        for call_id in waiting_calls(state)
    ]
