"""Refusals of the session protocol."""

from __future__ import annotations

import json

from kit.errors import Aborted, FailedPrecondition, InvalidArgument


class WorkAlreadyStopped(Aborted):
    """The item has ended."""

    reason = "WORK_ALREADY_STOPPED"


class InvalidWorkMetadata(InvalidArgument):
    """The metadata of an item breaks a limit."""

    reason = "INVALID_REQUEST"

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message, field=field, details=json.dumps({"error_code": "invalid_metadata"}))


class HeartbeatPreconditionFailed(FailedPrecondition):
    """The heartbeat is not the stored one; `details` tells how the lease stands."""

    reason = "HEARTBEAT_PRECONDITION_FAILED"

    def __init__(self, work_id: str, state: str, last_heartbeat: str | None, ttl_seconds: int) -> None:
        current = {
            "last_heartbeat": last_heartbeat,
            "lease_extended": False,
            "state": state,
            "ttl_seconds": ttl_seconds,
        }
        details = {"error_code": "heartbeat_precondition_failed", "current_state": current}
        super().__init__(
            f"The heartbeat is not the one that is stored for {work_id}: another worker may hold the item. Stop"
            " serving it, and leave it as it is.",
            work_id=work_id,
            details=json.dumps(details),
        )
