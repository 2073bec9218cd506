"""Waits for the end of the turn that a session began with."""

from __future__ import annotations

from typing import Any

from .frames import ENDING_TYPES, Frame
from .log_wait import LogWait, body_of

TURN_ENDS = ENDING_TYPES | {"session.status_idle"}


# How an idle session tells that it waits for workers alone: the turn goes on by itself.
_AWAITS_WORKERS = b'"client_event_ids":[]'


def ends_turn(frame: Frame) -> bool:
    """Whether nothing of the turn comes after this event, unless somebody answers."""
    return frame.type in TURN_ENDS and _AWAITS_WORKERS not in frame.local


class TurnWait(LogWait):
    """What the turn brought, collected in the order of the log."""

    def __init__(self, session_id: str, seconds: float, *, after_seq: int = 0) -> None:
        super().__init__(session_id, seconds, after_seq=after_seq)
        self.output: list[Any] = []
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        # The event that ended the turn.
        self.last: dict[str, Any] | None = None

    def see(self, frame: Frame) -> bool:
        """Collect what a run answers with."""
        if frame.type == "agent.message":
            self.output += body_of(frame)["content"]
        elif frame.type == "session.usage":
            self.usage = body_of(frame)["usage"]
        elif frame.type == "session.error":
            self.error = body_of(frame)["error"]
        elif ends_turn(frame):
            self.last = body_of(frame)
        return self.last is not None
