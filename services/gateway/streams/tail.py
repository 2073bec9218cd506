"""The live end of one session's log, as this gateway hears it.

Two subjects feed a tail: hints with the events themselves, sent right after each commit,
and the relay's announcements, which come whatever happens to the sender of the hints. A
hint that fits (its first seq is the next one) is passed on; anything else that tells of
unseen events makes the tail read the log. `seen_seq` is the newest contiguous seq that
was passed on; 0 means that the tail has not learnt yet where the log stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from nats.aio.msg import Msg

from kit import telemetry
from kit.errors import DomainError
from kit.nats import Nats
from managed_agents.sessions.v1.events_pb2 import EventsAppended, LiveEvents, Preview
from managed_agents.sessions.v1.sessions_pb2 import ReadEventsRequest

from ..clients import CallContext
from .follower import Follower
from .frames import ENDING_TYPES, Frame, frame_of, preview_frame, previewed_id
from .line import framed

# How long the relay's news may wait for the hint that it usually follows.
HINT_GRACE_SECONDS = 0.2
RETRY_SECONDS = 1.0


class Tail:
    """Shared by every follower of one session, or of one thread of it beside the primary one."""

    def __init__(self, session_id: str, nats: Nats, events: Any, context: CallContext, thread_id: str = "") -> None:
        self.session_id = session_id
        self.thread_id = thread_id
        # What its log is announced by.
        self.log_id = thread_id or session_id
        self.workspace_id = context.workspace_id
        self.followers: set[Follower] = set()
        self.seen_seq: int | None = None
        self._nats = nats
        self._events = events
        # Any follower's right to read the log was checked when it joined.
        self._context = context
        self._subscriptions: list[Any] = []
        self._previews: Any = None
        self._starting = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        # Told of more while it was reading.
        self._read_again = False

    async def start(self, *, previews: bool) -> None:
        """Listen; returns once the server knows. Idempotent."""
        async with self._starting:
            if not self._subscriptions:
                for subject, handle in (("sessions.live", self._on_live), ("sessions.log", self._on_appended)):
                    self._subscriptions.append(await self._nats.subscribe(f"{subject}.{self.log_id}", handle))
                await self._flush()
            if previews and self._previews is None:
                self._previews = await self._nats.subscribe(f"sessions.preview.{self.log_id}", self._on_preview)
                await self._flush()

    def begin_at(self, seq: int) -> None:
        """The log was read up to `seq` after the tail began to listen."""
        if self.seen_seq is None:
            self.seen_seq = seq

    def catch_up_soon(self) -> None:
        """Read the log after `seen_seq`, once, in the background."""
        if self.seen_seq is None:
            return
        if self._reading is not None and not self._reading.done():
            self._read_again = True
            return
        self._reading = asyncio.create_task(self._catch_up(), name=f"catch up {self.session_id}")

    async def close(self) -> None:
        """Stop listening."""
        if self._reading is not None:
            self._reading.cancel()
        for subscription in (*self._subscriptions, self._previews):
            if subscription is not None:
                try:
                    await subscription.unsubscribe()
                except Exception as error:
                    telemetry.log.debug("not unsubscribed", session_id=self.session_id, error=repr(error))
        self._subscriptions, self._previews = [], None

    async def _flush(self) -> None:
        if not self._nats.connected:
            return
        try:
            await self._nats.client.flush(timeout=2)
        except Exception as error:
            telemetry.log.warning("subscription not confirmed", session_id=self.session_id, error=repr(error))

    async def _on_live(self, message: Msg) -> None:
        live = LiveEvents.FromString(message.data)
        self._take([frame_of(event) for event in live.events])

    async def _on_appended(self, message: Msg) -> None:
        appended = EventsAppended.FromString(message.data)
        newest = max((reference.seq for reference in appended.events), default=0)
        if self.seen_seq is None or newest <= self.seen_seq:
            return
        await asyncio.sleep(HINT_GRACE_SECONDS)
        if newest > self.seen_seq:
            self.catch_up_soon()

    async def _on_preview(self, message: Msg) -> None:
        preview = Preview.FromString(message.data)
        frame, event_id = preview_frame(preview), previewed_id(preview)
        chunk = framed(frame)
        is_start = preview.frame == "event_start"
        for follower in list(self.followers):
            follower.push_preview(preview.event_type, event_id, is_start, frame, chunk)

    def _take(self, frames: Sequence[Frame]) -> None:
        """Pass on what is next, and notice what is missing. Before the first read everyone keeps it aside."""
        seen = self.seen_seq
        fresh = frames if seen is None else [frame for frame in frames if frame.seq > seen]
        if len(fresh) < len(frames) or seen is None:
            for follower in list(self.followers):
                follower.push(frames if seen is None else [frame for frame in frames if frame.seq <= seen])
        if not fresh or seen is None:
            return
        if fresh[-1].seq - seen != len({frame.seq for frame in fresh}):
            # Something is missing before or between them; an old input may stand before newer events.
            self.catch_up_soon()
            return
        self.seen_seq = fresh[-1].seq
        self._pass_on(fresh)

    def _pass_on(self, fresh: Sequence[Frame]) -> None:
        one_by_one = any(frame.is_unread or frame.type in ENDING_TYPES for frame in fresh)
        joined = {
            published: b"".join(frame.bytes_for(published) for frame in fresh)
            for published in {follower.published for follower in self.followers}
        }
        chunks = {published: framed(data) for published, data in joined.items()}
        first_seq, last_seq = fresh[0].seq, fresh[-1].seq
        for follower in list(self.followers):
            data, chunk = joined[follower.published], chunks[follower.published]
            if one_by_one or not follower.push_joined(data, chunk, first_seq, last_seq):
                follower.push(fresh)

    async def _catch_up(self) -> None:
        while self.followers:
            self._read_again = False
            try:
                request = ReadEventsRequest(
                    session_id=self.session_id, thread_id=self.thread_id, after_seq=self.seen_seq or 0
                )
                async with aclosing(aiter(self._events.ReadEvents(request, context=self._context))) as batches:
                    async for batch in batches:
                        self._take([frame_of(event) for event in (*batch.updates, *batch.events)])
                if not self._read_again:
                    return
            except DomainError as error:
                if error.code == "NOT_FOUND":
                    for follower in list(self.followers):
                        follower.end()
                    return
                telemetry.log.warning("log not read, trying on", session_id=self.session_id, reason=error.reason)
                await asyncio.sleep(RETRY_SECONDS)
