"""A stream of the session gateway: the session's log as its projection shows it, replayed and then live.

Every stream projects the log itself, from a place that is known: the beginning, or the start of a run that this
process has met before. So which gateway serves a client, and whether it was there before, makes no difference to
what it is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence

from starlette.types import Receive, Scope, Send

from kit import telemetry
from managed_agents.sessions.v1.sessions_pb2 import ReadEventsRequest, ReadEventsResponse

from ..operation import Call
from ..render.gateway import ENDS, Projector
from .follower import Follower
from .frames import ENDING_TYPES, Frame, frame_of
from .hub import Hub
from .line import Line
from .response import ENDED, HEADERS, serve_stream
from .tail import Tail

MAX_SESSIONS = 1_000
MAX_PLACES = 64


class Places:
    """Starts of runs that this process has met, by session: a log never changes, so neither do they."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], list[Projector]] = OrderedDict()

    def before(self, workspace_id: str, session_id: str, *, index: int, seq: int | None) -> Projector:
        """The last known place at or before an index, or before a seq."""
        places = self._kept.get((workspace_id, session_id), [])
        for place in reversed(places):
            if place.index <= index if seq is None else place.seq < seq:
                return place.fork()
        return Projector(session_id)

    def keep(self, workspace_id: str, place: Projector) -> None:
        """Notes a place between two runs."""
        key = (workspace_id, place.session_id)
        places = self._kept.setdefault(key, [])
        self._kept.move_to_end(key)
        if not places or places[-1].index < place.index:
            places.append(place.fork())
            if len(places) > MAX_PLACES:
                # The older they are the less they are asked for, but some of them are.
                del places[1 :: max(2, len(places) // 2)]
        if len(self._kept) > MAX_SESSIONS:
            self._kept.popitem(last=False)


class _Projected(Follower):
    """Takes frames of the log and puts out what they come to, from an index or a seq on."""

    def __init__(self, projector: Projector, *, index: int, seq: int | None) -> None:
        super().__init__(published=False)
        self.projector = projector
        self._index = index
        # Of an answer to a request that started or went on with a run: it is over with that run, or where that waits.
        self._seq = seq
        # Whether the run that the stream is about has ended.
        self.is_over = False
        self._begun: list[Frame] | None = []

    def begin(self) -> None:
        """The replay is done: what came meanwhile, and from now on."""
        early, self._begun = self._begun or [], None
        self.push(early)

    def push(self, frames: Sequence[Frame]) -> None:
        """Live frames, in order; repeats among them."""
        if self._begun is not None:
            self._begun.extend(frames)
            return
        for frame in frames:
            if frame.seq > self.projector.seq:
                self._put(self.shown(frame))
                if self.is_over or frame.type in ENDING_TYPES or (self._seq is not None and self.projector.is_at_rest):
                    self.end()
                    return

    def push_joined(self, joined: bytes, chunk: bytes, first_seq: int, last_seq: int) -> bool:
        """Every event has to be looked at."""
        return False

    def shown(self, frame: Frame) -> bytes:
        """What a frame of the log comes to, as far as this stream begins before it."""
        if self.is_over:
            return b""
        _, _, body = frame.local.partition(b"\ndata: ")
        told = self.projector.take(frame.seq, frame.event_id, frame.type, body)
        if self._seq is not None:
            if frame.seq < self._seq:
                return b""
            self.is_over = any(event.type in ENDS for event in told)
        return b"".join(event.frame() for event in told if event.index >= self._index)


class GatewayStream:
    """Answers with the events of a session.

    With `seq`, those of the run that the event of this seq started or went on with, up to its end or to where it waits
    for a person; else all from `index` on, for as long as the session and the client live.
    """

    def __init__(
        self,
        call: Call,
        hub: Hub,
        places: Places,
        session_id: str,
        *,
        index: int = 0,
        seq: int | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self._call = call
        self._hub = hub
        self._places = places
        self._session_id = session_id
        self._follows_run = seq is not None
        self._headers = [*HEADERS, *headers]
        place = places.before(call.context.workspace_id, session_id, index=index, seq=seq)
        self._follower = _Projected(place, index=index, seq=seq)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tail = await self._hub.join(self._session_id, self._follower, self._call.context)
        ending = self._end_with_cookie()
        try:
            await serve_stream(
                scope, receive, self._call, self._follower.abandon, lambda line: self._serve(send, tail, line)
            )
        finally:
            if ending is not None:
                ending.cancel()
            await self._hub.leave(tail, self._follower)

    def _end_with_cookie(self) -> asyncio.TimerHandle | None:
        expires_at = self._call.admitted.principal.expires_at
        if not expires_at:
            return None
        return asyncio.get_running_loop().call_later(max(0.0, expires_at - time.time()), self._follower.abandon)

    async def _serve(self, send: Send, tail: Tail, line: Line | None) -> None:
        follower = self._follower
        if await self._replay(send, tail):
            if line is not None:
                follower.write_to(line)
            follower.begin()
            while not self._hub.closing and (data := await follower.next()) is not None:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        if follower.overflowed:
            telemetry.log.warning("slow stream cut", session_id=self._session_id)
        await send({"type": "http.response.body", "body": b""})

    async def _replay(self, send: Send, tail: Tail) -> bool:
        """Head and replay; whether anything can come after it."""
        follower = self._follower
        request = ReadEventsRequest(session_id=self._session_id, after_seq=follower.projector.seq)
        batches: AsyncIterator[ReadEventsResponse] = aiter(
            self._call.follow(self._call.clients.events.ReadEvents, request)
        )
        try:
            # The first batch carries every refusal, so it is awaited before the answer begins.
            first = await anext(batches)
            tail.begin_at(first.last_seq)
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await send({"type": "http.response.body", "body": b": open\n\n", "more_body": True})
            await self._send_batch(send, first)
            async for batch in batches:
                if follower.abandoned or follower.is_over:
                    break
                await self._send_batch(send, batch)
        finally:
            await batches.aclose()  # type: ignore[attr-defined]
        if first.status in ENDED or follower.is_over or follower.abandoned:
            return False
        return not (self._follows_run and follower.projector.is_at_rest)

    async def _send_batch(self, send: Send, batch: ReadEventsResponse) -> None:
        shown: list[bytes] = []
        for event in batch.events:
            if self._follower.projector.is_between_runs:
                self._places.keep(self._call.context.workspace_id, self._follower.projector)
            shown.append(self._follower.shown(frame_of(event)))
        if data := b"".join(shown):
            await send({"type": "http.response.body", "body": data, "more_body": True})
