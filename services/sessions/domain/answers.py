"""Which parked call an answer of a client is meant for."""

from dataclasses import replace
from typing import Any

from services.sessions.domain.inbound import (
    USER_CUSTOM_TOOL_RESULT,
    USER_TOOL_CONFIRMATION,
    USER_TOOL_RESULT,
    ClientEvent,
)
from services.sessions.domain.session_state import CallKind, PendingCall, SessionState
from services.sessions.domain.thread_state import waiting_ids
from services.sessions.domain.turn_errors import ToolCallNotPending

# What an answer calls the call that it is for, and what that call waits for.
ANSWER_FIELDS = {
    USER_TOOL_CONFIRMATION: "tool_use_id",
    USER_CUSTOM_TOOL_RESULT: "custom_tool_use_id",
    USER_TOOL_RESULT: "tool_use_id",
}
ANSWER_KINDS = {
    USER_TOOL_CONFIRMATION: CallKind.CONFIRMATION,
    USER_CUSTOM_TOOL_RESULT: CallKind.CUSTOM,
    USER_TOOL_RESULT: CallKind.WORKER,
}


def match(state: SessionState, event: ClientEvent) -> tuple[PendingCall, dict[str, Any]]:
    """The call that an answer names, by event id or block id, and the answer's public fields.

    The stored answer names the call by its event id; its metadata has the block id, which
    is what a tool result pairs with.
    """
    kind, field = ANSWER_KINDS[event.type], ANSWER_FIELDS[event.type]
    named = event.fields[field]
    waiting = [call for call in state.pending if not call.answered and call.kind is not CallKind.THREAD]
    call = next((call for call in waiting if call.kind is kind and named in (call.event_id, call.block_id)), None)
    if call is None:
        raise ToolCallNotPending(field, named, waiting_ids(state))
    metadata = {field: call.block_id}
    if kind is CallKind.CONFIRMATION:
        metadata["decision"] = event.fields["result"]
    return call, event.fields | {field: call.event_id, "metadata": metadata}


def answered(pending: tuple[PendingCall, ...], call: PendingCall) -> tuple[PendingCall, ...]:
    """The parked calls after one of them was answered."""
    return tuple(replace(entry, answered=True) if entry.event_id == call.event_id else entry for entry in pending)


def lets_worker_run(call_kind: CallKind, by_worker: bool, event: ClientEvent) -> bool:
    """Whether an answer is the leave of a call that a worker then runs."""
    return call_kind is CallKind.CONFIRMATION and by_worker and event.fields["result"] == "allow"


def allowed(pending: tuple[PendingCall, ...], call: PendingCall) -> tuple[PendingCall, ...]:
    """The parked calls once a worker may run one of them."""
    return tuple(
        replace(entry, kind=CallKind.WORKER) if entry.event_id == call.event_id else entry for entry in pending
    )


def without_result(pending: tuple[PendingCall, ...]) -> list[PendingCall]:
    """Parked calls whose result is not in the log.

    An answered custom call has its result, as one that a thread answered has; an allowed or
    denied one would only get it from the runner that goes on with the turn.
    """
    return [call for call in pending if not (call.answered and call.kind is not CallKind.CONFIRMATION)]
