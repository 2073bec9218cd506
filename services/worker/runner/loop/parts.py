"""What a model says, written into the log while it speaks.

A session of the session gateway shows its text while it comes, and nothing that it showed may be taken back: neither a
reconnect nor a crash may tell another story. So its text is written in parts, `agent.message_part`, before anybody is
shown it. The whole message follows as any session's does, and the context is made of that alone.

A part waits for a moment, so that an answer that comes at once has none, and further ones come a few times a second.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from services.worker.runner.loop.journal import encode

PART = "agent.message_part"
FIRST_SECONDS = 0.08
EACH_SECONDS = 0.2

Add = Callable[[str, dict[str, Any]], object]


class Parts:
    """The parts of one answer after another."""

    def __init__(self) -> None:
        self._add: Add | None = None
        self._message_id = ""
        self._waiting = ""
        # In characters as the log has them.
        self._offset = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, add: Add, message_id: str, text: str) -> None:
        """The first piece of an answer's text; `add` takes events for the log."""
        self.end()
        self._add, self._message_id, self._waiting, self._offset = add, message_id, text, 0
        self._later(FIRST_SECONDS)

    def more(self, text: str) -> None:
        """A further piece of it."""
        self._waiting += text
        if self._timer is None and self._add is not None:
            self._later(EACH_SECONDS)

    def end(self) -> None:
        """The message itself comes next, or nothing."""
        self._add, self._waiting = None, ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._write)

    def _write(self) -> None:
        self._timer = None
        text, self._waiting = self._waiting, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            # The first half of a character: alone it would be stored as something else.
            text, self._waiting = text[:-1], text[-1]
        if not text or self._add is None:
            return
        _, fields = encode({"message_id": self._message_id, "offset": self._offset, "text": text})
        self._offset += len(fields["text"])
        self._add(PART, dict(fields))
        self._later(EACH_SECONDS)
