"""Shapes of the session protocol of self-hosted workers."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from .shapes import MetadataPatch, Rendered, Shape

State = Literal["queued", "starting", "active", "stopping", "stopped"]


class SessionWorkStop(Shape):
    """How to stop an item."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"force": True}]})

    # Null as left out.
    force: bool | None = None


class SessionWorkUpdate(Shape):
    """A string sets a key, null removes it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"metadata": {"ticket": "OPS-1", "owner": None}}]})

    metadata: MetadataPatch


class SessionWorkData(Rendered):
    """What an item is about."""

    type: Literal["session"]
    id: str


class SessionWork(Rendered):
    """One item: a session that something is to be done for."""

    id: str
    type: Literal["work"]
    environment_id: str
    data: SessionWorkData
    state: State
    metadata: dict[str, str]
    # Told by a poll alone: base64url of a JSON object with the sessions token.
    secret: str | None
    created_at: str
    acknowledged_at: str | None
    started_at: str | None
    latest_heartbeat_at: str | None
    stop_requested_at: str | None
    stopped_at: str | None
    attempt: int


class SessionWorkPage(Rendered):
    """Items, newest first."""

    data: list[SessionWork]
    prev_page: str | None
    next_page: str | None


class SessionWorkLease(Rendered):
    """How the lease of an item stands."""

    type: Literal["work_heartbeat"]
    last_heartbeat: str
    lease_extended: bool
    state: State
    ttl_seconds: int


class SessionWorkStats(Rendered):
    """How full a queue is."""

    type: Literal["work_queue_stats"]
    depth: int
    pending: int
    oldest_queued_at: str | None
    workers_polling: int | None
