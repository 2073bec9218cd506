"""Waits for something in a session's log, without asking twice.

A wait is one more listener of the session's tail: it reads the log once, takes what comes
live, and is done with the first event that it was waiting for. Nothing is polled, and
whoever waits may go at any time: the session never notices.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import orjson

from managed_agents.sessions.v1.sessions_pb2 import ReadEventsRequest

from ..operation import Call
from .follower import Follower
from .frames import Frame, frame_of
from .hub import Hub


class LogWait(Follower, ABC):
    """Looks at the events after a seq in the order of the log, until one of them is enough."""

    def __init__(self, session_id: str, seconds: float, *, after_seq: int = 0) -> None:
        super().__init__(published=False)
        self.session_id = session_id
        self.deadline_reached = False
        # Whether the event that was waited for has come.
        self.is_over = False
        self.last_seq = after_seq
        self._seconds = seconds
        self._over = asyncio.Event()
        self._ahead: list[Frame] | None = []

    @abstractmethod
    def see(self, frame: Frame) -> bool:
        """Take one event; True where it is enough."""

    def is_enough(self) -> bool:
        """Whether what was seen is enough, now that nothing newer is known."""
        return False

    async def until_over(self, call: Call, hub: Hub) -> bool:
        """Waits for the event; False where the deadline, the platform or the client came first."""
        # An event and not a cancellation: one that meets the answer of a library's wait may be lost in it.
        deadline = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        try:
            return await self._until_over(call, hub)
        finally:
            deadline.cancel()

    async def _until_over(self, call: Call, hub: Hub) -> bool:
        tail = await hub.join(self.session_id, self, call.context)
        try:
            request = ReadEventsRequest(session_id=self.session_id, after_seq=self.last_seq)
            newest = 0
            async with aclosing(aiter(call.follow(call.clients.events.ReadEvents, request))) as batches:
                async for batch in batches:
                    newest = newest or batch.last_seq
                    self._take([frame_of(event) for event in batch.events])
                    if self.is_over:
                        return True
            tail.begin_at(newest)
            ahead, self._ahead = self._ahead or [], None
            self._take(ahead)
            self._judge()
            await self._over.wait()
            return self.is_over
        finally:
            await hub.leave(tail, self)

    def push(self, frames: Sequence[Frame]) -> None:
        """Live events, in order; repeats among them."""
        if self._ahead is not None:
            self._ahead.extend(frames)
        else:
            self._take(frames)
            self._judge()

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
            if frame.seq <= self.last_seq or self.is_over:
                continue
            self.last_seq = frame.seq
            if self.see(frame):
                self._finish()

    def _judge(self) -> None:
        if not self.is_over and self.is_enough():
            self._finish()

    def _finish(self) -> None:
        self.is_over = True
        self.end()


def body_of(frame: Frame) -> dict[str, Any]:
    """The event of a frame."""
    _, _, data = frame.local.partition(b"\ndata: ")
    return orjson.loads(data)
