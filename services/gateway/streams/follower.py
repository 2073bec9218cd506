"""One open stream: what waits to be sent to it, bounded.

While a stream replays the log, live frames are kept aside; when the replay is done they
follow, without those that it already brought. A reader that falls behind by more than
`MAX_WAITING_BYTES` is cut and resumes by its cursor: it slows nobody else.

With a line under it, a follower writes what comes at once and wakes nobody. Only what the
line refuses waits here, and until that has gone out nothing may overtake it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from .frames import ENDING_TYPES, PING, Frame
from .line import Line, framed

MAX_WAITING_BYTES = 8 * 1024 * 1024
_PING_CHUNK = framed(PING)


class Follower:
    """The sending side's view of one client."""

    __slots__ = (
        "_aside",
        "_ended",
        "_in_hand",
        "_last_sent_at",
        "_line",
        "_previewed",
        "_size",
        "_stop_after",
        "_unread",
        "_waiting",
        "_woken",
        "abandoned",
        "delta_types",
        "last_seq",
        "overflowed",
        "published",
    )

    def __init__(
        self,
        *,
        published: bool,
        delta_types: Sequence[str] = (),
        stop_after: Callable[[Frame], bool] | None = None,
    ) -> None:
        self.published = published
        self.delta_types = frozenset(delta_types)
        self.last_seq = 0
        self.overflowed = False
        self.abandoned = False
        self._stop_after = stop_after
        self._aside: list[Frame] | None = []
        self._waiting: list[bytes] = []
        self._size = 0
        self._ended = False
        self._line: Line | None = None
        # What `next` gave out may not be on the wire yet.
        self._in_hand = True
        self._woken = asyncio.Event()
        self._previewed: set[str] = set()
        self._unread: set[int] = set()
        self._last_sent_at = time.monotonic()

    @property
    def wants_previews(self) -> bool:
        """Whether the client asked for deltas."""
        return bool(self.delta_types)

    def write_to(self, line: Line) -> None:
        """Write directly from now on, where nothing waits before it."""
        self._line = line

    def note_unread(self, seqs: Iterable[int]) -> None:
        """The client was sent these events before the model read them; each has an update to come."""
        self._unread.update(seqs)

    def follow_from(self, seq: int) -> None:
        """The client has everything up to `seq`: what was kept aside after it goes out now."""
        self.last_seq = seq
        aside, self._aside = self._aside or [], None
        self.push(aside)

    def push(self, frames: Sequence[Frame]) -> None:
        """Live frames, in order. An old seq is a repeat, but for the update of an event that was sent unread."""
        if self._aside is not None:
            self._aside.extend(frames)
            return
        for frame in frames:
            if frame.seq > self.last_seq:
                self.last_seq = frame.seq
                if frame.is_unread:
                    self._unread.add(frame.seq)
            elif frame.is_unread or frame.seq not in self._unread:
                continue
            else:
                self._unread.discard(frame.seq)
                self._put(frame.update_for(self.published))
                continue
            self._previewed.discard(frame.event_id)
            self._put(frame.bytes_for(self.published))
            if frame.type in ENDING_TYPES or (self._stop_after is not None and self._stop_after(frame)):
                self.end()

    def push_joined(self, joined: bytes, chunk: bytes, first_seq: int, last_seq: int) -> bool:
        """Contiguous new frames in one piece, also framed; False where this stream needs them one by one."""
        needs_each = self._previewed or self._stop_after is not None
        if self._aside is not None or first_seq != self.last_seq + 1 or needs_each:
            return False
        self.last_seq = last_seq
        self._put(joined, chunk)
        return True

    def push_preview(self, event_type: str, event_id: str, is_start: bool, frame: bytes, chunk: bytes) -> None:
        """A preview, if the client wants its type and heard its start."""
        if self._aside is not None or event_type not in self.delta_types:
            return
        if is_start == (event_id in self._previewed):
            return
        if is_start:
            self._previewed.add(event_id)
        self._put(frame, chunk)

    def ping_if_quiet(self, quiet_since: float) -> None:
        """Keep proxies from dropping the connection."""
        if self._last_sent_at < quiet_since and not self._waiting:
            self._put(PING, _PING_CHUNK)

    def end(self) -> None:
        """Nothing more comes; what waits is still sent."""
        self._ended = True
        self._woken.set()

    def abandon(self) -> None:
        """The client has gone, or is let in no longer."""
        self.abandoned = True
        self._waiting.clear()
        self.end()

    async def next(self) -> bytes | None:
        """Everything that waits, as soon as something does; None at the end. Asking again means that it was sent."""
        self._in_hand = False
        while not self._waiting:
            if self._ended or self.overflowed:
                return None
            self._woken.clear()
            await self._woken.wait()
        self._in_hand = True
        self._last_sent_at = time.monotonic()
        waiting, self._waiting, self._size = self._waiting, [], 0
        return waiting[0] if len(waiting) == 1 else b"".join(waiting)

    def _put(self, data: bytes, chunk: bytes | None = None) -> None:
        if self._ended or self.overflowed or not data:
            return
        line = None if self._waiting or self._in_hand else self._line
        if line is not None and line.write(framed(data) if chunk is None else chunk):
            self._last_sent_at = time.monotonic()
            return
        self._size += len(data)
        if self._size > MAX_WAITING_BYTES:
            self.overflowed = True
            self._waiting.clear()
        else:
            self._waiting.append(data)
        self._woken.set()
