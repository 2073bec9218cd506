"""Previews of an answer while the model speaks: hints on core NATS, never stored, dropped when in doubt.

The first piece of text goes out at once with an `event_start`; further ones are joined until THROTTLE_SECONDS have
passed. The loop follows each `event_start` with the stored event, or with the end of its model request.
"""

import time
from collections.abc import Awaitable, Callable

import orjson

from managed_agents.sessions.v1.events_pb2 import Preview

THROTTLE_SECONDS = 0.03

Publish = Callable[[str, bytes], Awaitable[object]]


class Previews:
    """The previews of one session."""

    def __init__(self, publish: Publish, session_id: str) -> None:
        self._publish = publish
        self._subject = f"sessions.preview.{session_id}"
        self._event_id = ""
        self._waiting: list[str] = []
        self._next = 0.0

    async def start_message(self, event_id: str, text: str) -> None:
        """The first piece of an answer's text."""
        self._event_id = event_id
        self._waiting.clear()
        await self._start("agent.message", event_id)
        await self._delta(text)

    async def more_text(self, text: str) -> None:
        """A further piece of it."""
        self._waiting.append(text)
        if time.monotonic() >= self._next:
            joined = "".join(self._waiting)
            self._waiting.clear()
            await self._delta(joined)

    async def start_thinking(self, event_id: str) -> None:
        """The model reasons; what it reasons is not shown."""
        await self._start("agent.thinking", event_id)

    async def _start(self, event_type: str, event_id: str) -> None:
        frame = {"type": "event_start", "event": {"type": event_type, "id": event_id}}
        await self._send(event_type, "event_start", frame)

    async def _delta(self, text: str) -> None:
        self._next = time.monotonic() + THROTTLE_SECONDS
        delta = {"type": "content_delta", "index": 0, "content": {"type": "text", "text": text}}
        frame = {"type": "event_delta", "event_id": self._event_id, "delta": delta}
        await self._send("agent.message", "event_delta", frame)

    async def _send(self, event_type: str, frame: str, body: dict) -> None:
        try:
            encoded = orjson.dumps(body)
        except TypeError:
            # Half of a surrogate pair; the stored event will show the whole.
            return
        await self._publish(
            self._subject, Preview(event_type=event_type, body=encoded, frame=frame).SerializeToString()
        )
