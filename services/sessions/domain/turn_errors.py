"""Refusals of the log and of turns."""

from collections.abc import Sequence

import orjson

from kit.errors import FailedPrecondition, InvalidArgument


class TurnLeaseLost(FailedPrecondition):
    """The epoch is not the session's current one, or nobody holds its turn."""

    reason = "TURN_LEASE_LOST"

    def __init__(self, session_id: str, epoch: int) -> None:
        super().__init__(
            f"Epoch {epoch} of session {session_id} no longer holds the turn; nothing was written.",
            session_id=session_id,
            epoch=epoch,
        )


class ToolCallNotPending(InvalidArgument):
    """An answer names no call that waits for such an answer."""

    reason = "TOOL_CALL_NOT_PENDING"

    def __init__(self, field: str, named: str, pending: Sequence[str]) -> None:
        waiting = ", ".join(pending) if pending else "none"
        told = "names no call that waits for this kind of answer."
        if named in pending:
            told = (
                "names a call that waits for another kind of answer: user.custom_tool_result for a tool of yours, "
                "user.tool_confirmation for any other that asks, user.tool_result for one that a worker runs."
            )
        super().__init__(
            f"{field} {named} {told} Waiting calls: {waiting}.",
            field=field,
            named=named,
            details=orjson.dumps({"pending_event_ids": list(pending)}).decode(),
        )


class MalformedTurnEvent(InvalidArgument):
    """A runner sent an event that can't be put into a log."""

    reason = "INVALID_REQUEST"
