"""The ASGI response that carries a stream.

Order: join the tail (live frames are kept aside), replay the log after the cursor, then
follow. A client that disconnects cancels the sending at once; the session never notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from starlette.types import Receive, Scope, Send

from kit import telemetry
from kit.ids import is_id
from managed_agents.sessions.v1.sessions_pb2 import GetSessionRequest, ReadEventsRequest, SessionStatus

from ..errors import describe
from ..operation import Call
from .follower import Follower
from .frames import ENDING_TYPES, Frame, error_frame, frame_of
from .hub import Hub

NOTHING_AFTER = 2**62
ENDED = (SessionStatus.SESSION_STATUS_TERMINATED, SessionStatus.SESSION_STATUS_TIMED_OUT)
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
StopAfter = Callable[[Frame], bool]


class EventStream:
    """Answers with the events of a session.

    `after_seq` is the cursor: everything after it is replayed, None starts live.
    `delta_types` selects previews. `stop_after` ends the stream behind the first frame
    that it accepts, for calls that follow one turn.
    """

    def __init__(
        self,
        call: Call,
        hub: Hub,
        session_id: str,
        *,
        after_seq: int | None,
        delta_types: Sequence[str] = (),
        stop_after: StopAfter | None = None,
    ) -> None:
        self._call = call
        self._hub = hub
        self._session_id = session_id
        self._after_seq = after_seq
        self._stop_after = stop_after
        self._follower = Follower(published=call.published, delta_types=delta_types, stop_after=stop_after)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_id("sess", self._session_id):
            # It names no session and might not do as a subject: refused in the service's own words.
            await self._call.ask(self._call.clients.sessions.GetSession, GetSessionRequest(session_id=self._session_id))
        tail = await self._hub.join(self._session_id, self._follower, self._call.context)
        batches = None
        try:
            after_seq = NOTHING_AFTER if self._after_seq is None else self._after_seq
            request = ReadEventsRequest(session_id=self._session_id, after_seq=after_seq)
            batches = aiter(self._call.follow(self._call.clients.events.ReadEvents, request))
            # The first batch carries every refusal, so it is awaited before the answer begins.
            first = await anext(batches)
            tail.begin_at(first.last_seq)
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            sending = asyncio.create_task(self._send(send, first, batches))
            leaving = asyncio.create_task(_disconnected(receive))
            done, pending = await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            if sending in done:
                sending.result()
        finally:
            if batches is not None:
                await batches.aclose()
            await self._hub.leave(tail, self._follower)

    async def _send(self, send: Send, first, batches) -> None:
        try:
            last_seq, ended = await self._replay(send, first, batches)
            if not ended:
                self._follower.follow_from(last_seq)
                while not self._hub.closing and (data := await self._follower.next()) is not None:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            answer = describe(error, published=self._call.published, request_id=self._call.request_id)
            body = error_frame(answer.body(self._call.request_id))
            await send({"type": "http.response.body", "body": body, "more_body": True})
        if self._follower.overflowed:
            telemetry.log.warning("slow stream cut", session_id=self._session_id)
        await send({"type": "http.response.body", "body": b""})

    async def _replay(self, send: Send, first, batches) -> tuple[int, bool]:
        """Send the log after the cursor; where it ended, and whether nothing can follow."""
        # The head goes out at once: a client may wait for it before it sends its message.
        await send({"type": "http.response.body", "body": b": open\n\n", "more_body": True})
        if await self._send_batch(send, first):
            return first.last_seq, True
        async for batch in batches:
            if await self._send_batch(send, batch):
                return batch.last_seq, True
        return first.last_seq, first.status in ENDED

    async def _send_batch(self, send: Send, batch) -> bool:
        if not batch.events:
            return False
        frames = [frame_of(event) for event in batch.events]
        self._follower.note_unread(frame.seq for frame in frames if frame.is_unread)
        kept, ended = self._until_end(frames)
        data = b"".join(frame.bytes_for(self._call.published) for frame in kept)
        if data:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        return ended

    def _until_end(self, frames: list[Frame]) -> tuple[list[Frame], bool]:
        for index, frame in enumerate(frames):
            stops = self._stop_after is not None and self._stop_after(frame)
            if stops or frame.type in ENDING_TYPES:
                return frames[: index + 1], True
        return frames, False


async def _disconnected(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
