"""Live event streams: one tail per session and gateway, shared by everyone who follows it.

A stream first replays the log after its cursor, then follows the tail. The tail listens
to hints on NATS and reads the log wherever hints leave a gap, so every stream gets each
event once and in the order of its seq, whatever is lost in between.
"""

from .hub import Hub
from .line import StreamProtocol
from .log_wait import LogWait
from .response import CURSOR_HEADER, EventStream, while_there
from .step_wait import StepWait
from .turn_wait import TurnWait, ends_turn

__all__ = [
    "CURSOR_HEADER",
    "EventStream",
    "Hub",
    "LogWait",
    "StepWait",
    "StreamProtocol",
    "TurnWait",
    "ends_turn",
    "while_there",
]
