"""Refusals of steps of the HTTP agent protocol."""

from collections.abc import Sequence

import orjson

from kit.errors import Aborted, InvalidArgument


class StepResultsMismatch(InvalidArgument):
    """The results of a step are not those of exactly the calls that wait."""

    reason = "STEP_RESULTS_MISMATCH"

    def __init__(self, told: str, pending: Sequence[str], session_id: str = "") -> None:
        waiting = ", ".join(pending) if pending else "none"
        super().__init__(
            f"tool_results {told} Waiting calls: {waiting}.",
            field="tool_results",
            details=orjson.dumps({"session_id": session_id or None, "pending_ids": list(pending)}).decode(),
        )


class StepToolsChanged(Aborted):
    """A later step brings other tools than the first one of its conversation."""

    reason = "STEP_TOOLS_CHANGED"


class StepSystemChanged(Aborted):
    """A later step brings another system prompt than the one that its conversation runs by."""

    reason = "STEP_SYSTEM_CHANGED"


class StepRequiresConfirmation(Aborted):
    """A call waits for somebody's confirmation, which a step has no way to give."""

    reason = "STEP_REQUIRES_CONFIRMATION"

    def __init__(self, session_id: str, event_ids: Sequence[str]) -> None:
        super().__init__(
            f"Session {session_id} waits for the confirmation of {', '.join(event_ids)}, which the HTTP agent protocol"
            " can't give. Send a user.tool_confirmation to the session, and then the same step again.",
            session_id=session_id,
            details=orjson.dumps({"session_id": session_id, "event_ids": list(event_ids)}).decode(),
        )
