"""Waits for the end of the turn that a session began with, without asking twice.

A wait is one more listener of the session's tail: it reads the log once, takes what comes
live, and is done with the first event that ends a turn. Nothing is polled, and whoever
waits may go at any time: the session never notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from managed_agents.sessions.v1.sessions_pb2 import ReadEventsRequest

from ..operation import Call
from .follower import Follower
from .frames import ENDING_TYPES, Frame, frame_of
from .hub import Hub

TURN_ENDS = ENDING_TYPES | {"session.status_idle"}


def ends_turn(frame: Frame) -> bool:
    """Whether nothing of the turn comes after this event."""
    return frame.type in TURN_ENDS


class TurnWait(Follower):
    """What the turn brought, collected in the order of the log."""

    def __init__(self, session_id: str, seconds: float) -> None:
        super().__init__(published=False)
        self.session_id = session_id
        self.deadline_reached = False
        self._seconds = seconds
        self.output: list[Any] = []
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        # The event that ended the turn.
        self.last: dict[str, Any] | None = None
        self._over = asyncio.Event()
        self._ahead: list[Frame] | None = []

    async def until_over(self, call: Call, hub: Hub) -> bool:
        """Collects up to the end of the turn; False where the deadline, the platform or the client came first."""
        # An event and not a cancellation: one that meets the answer of a library's wait may be lost in it.
        deadline = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        try:
            return await self._until_over(call, hub)
        finally:
            deadline.cancel()

    async def _until_over(self, call: Call, hub: Hub) -> bool:
        tail = await hub.join(self.session_id, self, call.context)
        try:
            request = ReadEventsRequest(session_id=self.session_id, after_seq=0)
            last_seq = 0
            async for batch in call.follow(call.clients.events.ReadEvents, request):
                last_seq = last_seq or batch.last_seq
                self._take([frame_of(event) for event in batch.events])
            tail.begin_at(last_seq)
            ahead, self._ahead = self._ahead or [], None
            self._take(ahead)
            await self._over.wait()
            return self.last is not None
        finally:
            await hub.leave(tail, self)

    def push(self, frames: Sequence[Frame]) -> None:
        """Live events, in order; repeats among them."""
        if self._ahead is not None:
            self._ahead.extend(frames)
        else:
            self._take(frames)

    def push_joined(self, joined: bytes, chunk: bytes, first_seq: int, last_seq: int) -> bool:
        """Every event has to be looked at."""
        return False

    def ping_if_quiet(self, quiet_since: float) -> None:
        """Nothing is sent before the end."""

    def end(self) -> None:
        """Nothing more comes."""
        super().end()
        self._over.set()

    def _expire(self) -> None:
        self.deadline_reached = True
        self.end()

    def _take(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if frame.seq <= self.last_seq or self.last is not None:
                continue
            self.last_seq = frame.seq
            if frame.type == "agent.message":
                self.output += _body(frame)["content"]
            elif frame.type == "session.usage":
                self.usage = _body(frame)["usage"]
            elif frame.type == "session.error":
                self.error = _body(frame)["error"]
            elif ends_turn(frame):
                self.last = _body(frame)
                self.end()


def _body(frame: Frame) -> dict[str, Any]:
    _, _, data = frame.local.partition(b"\ndata: ")
    return orjson.loads(data)
