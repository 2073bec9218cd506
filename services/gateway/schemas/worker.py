"""Shapes of the tool protocol of self-hosted workers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .shapes import Page, Rendered, Shape

Name = Annotated[str, Field(min_length=1, max_length=256)]
Key = Annotated[str, Field(min_length=1, max_length=512)]
Attempt = Annotated[int, Field(ge=1, le=1_000_000)]


class WorkClaim(Shape):
    """Who asks for which work, and how long the answer may take."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"worker_id": "worker_1", "wait_ms": 30000}]})

    worker_id: Name
    environment_id: Name | None = None
    environment_key: Key | None = None
    session_id: Name | None = None
    wait_ms: Annotated[int, Field(ge=0, le=30_000)] = 0


class WorkMark(Shape):
    """An item that the worker holds. `attempt` of the claim tells apart two holders of one name."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "work_1", "worker_id": "worker_1"}]})

    id: Name
    worker_id: Name
    environment_key: Key | None = None
    attempt: Attempt | None = None


class WorkReport(WorkMark):
    """What came of an item that the worker holds."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"id": "work_1", "worker_id": "worker_1", "result": {"stdout": "", "exitCode": 0}}]
        }
    )

    result: Any = None
    failed: bool = False


class WorkItem(Rendered):
    """One execution on a worker."""

    id: str
    type: Literal["work_item"]
    session_id: str
    environment_id: str
    kind: Literal["exec", "read", "write", "list"]
    payload: dict[str, Any]
    status: Literal["pending", "claimed", "completed", "failed", "stopped"]
    claimed_by: str | None
    claimed_at: str | None
    lease_expires_at: str | None
    attempt: int
    created_at: str
    accepted_at: str | None
    stopped_at: str | None
    ended_at: str | None
    end_code: Literal["work_queue_timeout", "work_outcome_unknown", "work_lease_lost"] | None


class WorkLease(Rendered):
    """A lease that holds."""

    ok: bool
    lease_expires_at: str


class WorkTaken(Rendered):
    """A report that was taken."""

    ok: bool


class WorkItemPage(Page):
    """A page of items, and how many there are of each status."""

    data: list[WorkItem]
    status_counts: dict[str, int]
