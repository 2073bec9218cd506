"""Refusals of the queue."""

from __future__ import annotations

from kit.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound


class WorkItemNotFound(NotFound):
    """No item of this id that the caller may see."""

    reason = "WORK_ITEM_NOT_FOUND"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"Work item not found: {item_id}", item_id=item_id)


class WorkLeaseLost(Aborted):
    """The work must not be begun, or not go on; for who waits: it was stopped."""

    reason = "WORK_LEASE_LOST"


class WorkItemHeld(Aborted):
    """The caller is not who holds the item."""

    reason = "WORK_ITEM_HELD"


class WorkQueueTimeout(Aborted):
    """No worker took the item, and none will."""

    reason = "WORK_QUEUE_TIMEOUT"


class WorkOutcomeUnknown(Aborted):
    """A worker took the item and told no result."""

    reason = "WORK_OUTCOME_UNKNOWN"


class WorkEnvironmentRefused(FailedPrecondition):
    """The environment is not the caller's."""

    reason = "WORK_ENVIRONMENT_REFUSED"


class MalformedItem(InvalidArgument):
    """A request to the queue that makes no sense."""

    reason = "INVALID_REQUEST"
