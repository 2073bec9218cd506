"""What a runner's compactions mean for the log that they are written to.

`agent.thread_context_compacted` stands for the context up to its `context_seq`, and everything that was read after it
but before the event. A context is built from there on, so the event is refused where that is no place in the log.
"""

import orjson

from services.sessions.domain.log import Draft
from services.sessions.domain.turn_errors import MalformedTurnEvent

COMPACTED = "agent.thread_context_compacted"


def read_up_to(request: Draft, known_seq: int) -> int:
    """The seq up to which a `span.model_request_start` has read; `known_seq` where it doesn't say.

    A runner may learn of more input before it writes the event, and a summary leaves out what waits.
    """
    read = orjson.loads(request.fields).get("context_seq")
    return min(read, known_seq) if isinstance(read, int) else known_seq


def check(compacted: Draft, last_seq: int) -> None:
    """Refuses a compaction that names no place in the log before it."""
    start = orjson.loads(compacted.fields).get("context_seq")
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start <= last_seq:
        raise MalformedTurnEvent(
            f"context_seq of {COMPACTED} must be a seq of the log before it, from 0 to {last_seq}.", field="context_seq"
        )
