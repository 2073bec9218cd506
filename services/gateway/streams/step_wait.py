"""Waits for the answer of a step in its session's log."""

from __future__ import annotations

from ..render.steps import LOOKED_AT, Reading
from .frames import Frame
from .log_wait import LogWait, body_of


class StepWait(LogWait):
    """Reads the log from the step's first event on; `reading` is what it found."""

    def __init__(self, session_id: str, seconds: float, *, first_seq: int) -> None:
        super().__init__(session_id, seconds, after_seq=first_seq - 1)
        self.reading = Reading(session_id)

    def see(self, frame: Frame) -> bool:
        """Whether the step is answered."""
        return frame.type in LOOKED_AT and self.reading.take(frame.type, body_of(frame))

    def is_enough(self) -> bool:
        """Whether nothing but a confirmation gets the turn on."""
        return self.reading.is_paused
