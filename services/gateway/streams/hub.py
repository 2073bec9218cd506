"""One tail per session that somebody follows.

The hub owns the tails, pings idle streams, and ends all of them when the process stops.
While NATS is away it reads the logs of followed sessions each second instead, and
after a reconnect once more, as what was published in between is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from kit import telemetry
from kit.nats import Nats

from ..clients import CallContext
from .follower import Follower
from .tail import Tail

TICK_SECONDS = 1.0
PING_SECONDS = 12.0


class Hub:
    """The live streams of this process."""

    def __init__(self, nats: Nats, events: Any) -> None:
        self.nats = nats
        self._events = events
        # By workspace too: a stranger's attempt must never share a tail with its owner.
        self._tails: dict[tuple[str, str, str], Tail] = {}
        self.closing = False
        self._told_of_closing: dict[object, Callable[[], None]] = {}
        nats.on_reconnect(self.catch_up)
        nats.on_slow(self._catch_up_after_loss)

    @property
    def size(self) -> int:
        """How many streams are open."""
        return sum(len(tail.followers) for tail in self._tails.values())

    async def join(self, session_id: str, follower: Follower, context: CallContext, thread_id: str = "") -> Tail:
        """Make the follower hear a session, or a thread of it, from some moment before this returns."""
        key = (context.workspace_id, session_id, thread_id)
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = Tail(session_id, self.nats, self._events, context, thread_id)
        tail.followers.add(follower)
        try:
            await tail.start(previews=follower.wants_previews)
        except BaseException:
            await self.leave(tail, follower)
            raise
        return tail

    async def leave(self, tail: Tail, follower: Follower) -> None:
        """Forget a follower, and the tail with its last one."""
        tail.followers.discard(follower)
        key = (tail.workspace_id, tail.session_id, tail.thread_id)
        if not tail.followers and self._tails.get(key) is tail:
            del self._tails[key]
            await tail.close()

    def catch_up(self) -> None:
        """Let every tail read its log from where it stands."""
        for tail in list(self._tails.values()):
            tail.catch_up_soon()

    async def run(self) -> None:
        """Ping streams that were quiet, and stand in for NATS while it is away."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if not self.nats.connected:
                self.catch_up()
            quiet_since = time.monotonic() - PING_SECONDS
            for tail in list(self._tails.values()):
                for follower in list(tail.followers):
                    follower.ping_if_quiet(quiet_since)

    def when_closing(self, end: Callable[[], None]) -> Callable[[], None]:
        """Have `end` called when the process stops, for what else is held open; the answer takes that back."""
        if self.closing:
            end()
        key = object()
        self._told_of_closing[key] = end

        def forget() -> None:
            self._told_of_closing.pop(key, None)

        return forget

    async def close(self) -> None:
        """End every stream; clients come back to another gateway with their cursor."""
        self.closing = True
        tails = list(self._tails.values())
        telemetry.log.info("ending streams", streams=self.size)
        for tail in tails:
            for follower in list(tail.followers):
                follower.end()
        for end in list(self._told_of_closing.values()):
            end()

    def _catch_up_after_loss(self, subject: str) -> None:
        log_id = subject.rsplit(".", 1)[-1]
        for tail in list(self._tails.values()):
            if tail.log_id == log_id:
                tail.catch_up_soon()
