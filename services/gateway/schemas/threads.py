"""Shapes of threads."""

from __future__ import annotations

from typing import Any, Literal

from .shapes import Page, Rendered


class SessionThread(Rendered):
    """One thread of a session. `status` has more words locally than in the published shape."""

    id: str
    type: Literal["session_thread"]
    session_id: str
    parent_thread_id: str | None
    agent: dict[str, Any]
    status: Literal["idle", "running", "rescheduling", "requires_action", "terminated", "timed_out"]
    usage: dict[str, Any]
    stats: dict[str, Any]
    last_seq: int
    created_at: str
    updated_at: str
    archived_at: str | None


class ThreadPage(Page):
    """A page of threads, the primary one first."""

    data: list[SessionThread]
