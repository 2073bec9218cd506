"""The ASGI response that carries a stream.

Order: join the tail (live frames are kept aside), replay the log after the cursor, then
follow. A client that disconnects cancels the sending at once; the session never notices. A
client whose key is revoked has its stream ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from kit import telemetry
from kit.ids import is_id
from managed_agents.sessions.v1.sessions_pb2 import (
    GetSessionRequest,
    ReadEventsRequest,
    ReadEventsResponse,
    SessionStatus,
)

from ..errors import InvalidRequest, describe
from ..operation import Call
from .follower import Follower
from .frames import ENDING_TYPES, Frame, error_frame, frame_of
from .hub import Hub
from .line import Line
from .tail import Tail

NOTHING_AFTER = 2**62
CURSOR_HEADER = "last-event-id"
ENDED = (SessionStatus.SESSION_STATUS_TERMINATED, SessionStatus.SESSION_STATUS_TIMED_OUT)
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
StopAfter = Callable[[Frame], bool]
Batches = AsyncIterator[ReadEventsResponse]


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
        thread_id: str = "",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._call = call
        self._hub = hub
        self._session_id = session_id
        # A thread beside the primary one whose log it is; known to be there.
        self._thread_id = thread_id
        self._after_seq = after_seq
        self._stop_after = stop_after
        self._headers = [*HEADERS, *headers]
        self._follower = Follower(published=call.published, delta_types=delta_types, stop_after=stop_after)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_id("sess", self._session_id):
            # It names no session and might not do as a subject: refused in the service's own words.
            await self._call.ask(self._call.clients.sessions.GetSession, GetSessionRequest(session_id=self._session_id))
        tail = await self._hub.join(self._session_id, self._follower, self._call.context, self._thread_id)
        try:
            await serve_stream(
                scope, receive, self._call, self._follower.abandon, lambda line: self._serve(send, tail, line)
            )
        finally:
            await self._hub.leave(tail, self._follower)

    async def _serve(self, send: Send, tail: Tail, line: Line | None) -> None:
        last_seq = await self._begin(send, tail)
        if last_seq is not None:
            if line is not None:
                self._follower.write_to(line)
            self._follower.follow_from(last_seq)
            while not self._hub.closing and (data := await self._follower.next()) is not None:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        if self._follower.overflowed:
            telemetry.log.warning("slow stream cut", session_id=self._session_id)
        await send({"type": "http.response.body", "body": b""})

    async def _begin(self, send: Send, tail: Tail) -> int | None:
        """Head and replay; the seq after which to follow, or None where nothing can come after it."""
        after_seq = NOTHING_AFTER if self._after_seq is None else self._after_seq
        request = ReadEventsRequest(
            session_id=self._session_id,
            thread_id=self._thread_id,
            after_seq=after_seq,
            # Nobody has to look at the single events of a replay that goes out as it is stored.
            framed=self._stop_after is None and not self._call.published,
        )
        batches = aiter(self._call.follow(self._call.clients.events.ReadEvents, request))
        try:
            # The first batch carries every refusal, so it is awaited before the answer begins.
            first = await anext(batches)
            if self._after_seq is not None and self._after_seq > first.last_seq:
                # It would skip what is written next: such a cursor is of another log, or of one that was set back.
                raise InvalidRequest(
                    f"Last-Event-ID {self._after_seq} lies beyond the end of the log, which is {first.last_seq}. Send"
                    " the seq of an event that was received from this session, or 0 for all of them.",
                    field=CURSOR_HEADER,
                )
            tail.begin_at(first.last_seq)
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            return await self._replay(send, first, batches)
        finally:
            await batches.aclose()

    async def _replay(self, send: Send, first: ReadEventsResponse, batches: Batches) -> int | None:
        # The head goes out at once: a client may wait for it before it sends its message.
        await send({"type": "http.response.body", "body": b": open\n\n", "more_body": True})
        try:
            if await self._send_batch(send, first):
                return None
            async for batch in batches:
                if self._follower.abandoned or await self._send_batch(send, batch):
                    return None
        except Exception as error:
            answer = describe(error, published=self._call.published, request_id=self._call.request_id)
            body = error_frame(answer.body(self._call.request_id))
            await send({"type": "http.response.body", "body": body, "more_body": True})
            return None
        return None if first.status in ENDED else first.last_seq

    async def _send_batch(self, send: Send, batch) -> bool:
        self._follower.note_unread(batch.unread_seqs)
        if batch.updates:
            # Before the events that came with the reading: a cursor among them says that this was sent.
            data = b"".join(frame_of(event).update_for(self._call.published) for event in batch.updates)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        if batch.frames:
            await send({"type": "http.response.body", "body": batch.frames, "more_body": True})
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


async def serve_stream(
    scope: Scope,
    receive: Receive,
    call: Call,
    abandon: Callable[[], None],
    serve: Callable[[Line | None], Coroutine[Any, Any, None]],
) -> None:
    """Serve on the connection's line where it has one; `abandon` is called once the client is gone or not let in."""
    line = Line.of(scope)
    take_off = call.guard(abandon)
    try:
        if line is None:
            await while_there(receive, serve(None))
        else:
            line.watch(abandon)
            await serve(line)
    finally:
        take_off()
        if line is not None:
            line.release()


async def while_there(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work for as long as the client stays."""
    sending, leaving = asyncio.create_task(work), asyncio.create_task(_disconnected(receive))
    try:
        done, _ = await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if sending in done:
            sending.result()
    finally:
        for task in (sending, leaving):
            task.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
