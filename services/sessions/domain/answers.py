"""Which parked call an answer of a client is meant for."""

from dataclasses import replace
from typing import Any

from services.sessions.domain.inbound import USER_TOOL_CONFIRMATION, ClientEvent
from services.sessions.domain.session_state import CallKind, PendingCall, SessionState
from services.sessions.domain.thread_state import waiting_ids
from services.sessions.domain.turn_errors import ToolCallNotPending


def match(state: SessionState, event: ClientEvent) -> tuple[PendingCall, dict[str, Any]]:
    """The call that an answer names, by event id or block id, and the answer's public fields.

    The stored answer names the call by its event id; its metadata has the block id, which
    is what a tool result pairs with.
    """
    confirms = event.type == USER_TOOL_CONFIRMATION
    kind = CallKind.CONFIRMATION if confirms else CallKind.CUSTOM
    field = "tool_use_id" if confirms else "custom_tool_use_id"
    named = event.fields[field]
    waiting = [call for call in state.pending if not call.answered and call.kind is not CallKind.THREAD]
    call = next((call for call in waiting if call.kind is kind and named in (call.event_id, call.block_id)), None)
    if call is None:
        raise ToolCallNotPending(field, named, waiting_ids(state))
    metadata = {field: call.block_id}
    if confirms:
        metadata["decision"] = event.fields["result"]
    return call, event.fields | {field: call.event_id, "metadata": metadata}


def answered(pending: tuple[PendingCall, ...], call: PendingCall) -> tuple[PendingCall, ...]:
    """The parked calls after one of them was answered."""
    return tuple(replace(entry, answered=True) if entry.event_id == call.event_id else entry for entry in pending)


def without_result(pending: tuple[PendingCall, ...]) -> list[PendingCall]:
    """Parked calls whose result is not in the log.

    An answered custom call has its result, as one that a thread answered has; an allowed or
    denied one would only get it from the runner that goes on with the turn.
    """
    return [call for call in pending if not (call.answered and call.kind is not CallKind.CONFIRMATION)]
