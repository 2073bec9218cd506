"""Followers get each event once and in order, whatever happens to the hints that a tail lives on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import Unavailable
from kit.rpc.context import CallContext
from managed_agents.sessions.v1.events_pb2 import Event, EventReference, EventsAppended, LiveEvents, Preview
from managed_agents.sessions.v1.sessions_pb2 import ReadEventsRequest, ReadEventsResponse
from services.gateway.streams import follower as follower_module
from services.gateway.streams import tail as tail_module
from services.gateway.streams.follower import Follower
from services.gateway.streams.frames import PING, frame_of, preview_frame, previewed_id
from services.gateway.streams.line import framed
from services.gateway.streams.tail import Tail

CONTEXT = CallContext("wrkspc_default", "req_1", "anonymous")


def event(seq: int, kind: str = "agent.message", *, unread: bool = False) -> Event:
    time = b"null" if unread else b'"2026-11-29T00:00:00.000000Z"'
    body = b'{"id":"sevt_%d","type":"%b","seq":%d,"processed_at":%b}' % (seq, kind.encode(), seq, time)
    return Event(id=f"sevt_{seq}", seq=seq, type=kind, body=body)


class Log:
    """Stands in for the sessions service: what is stored can be read, and reading may fail at first."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        # Inputs that were read, by the seq of the first event that was written with the reading.
        self.read: dict[int, Event] = {}
        self.failures = 0

    async def ReadEvents(self, request: ReadEventsRequest, **_: Any) -> AsyncIterator[ReadEventsResponse]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("The log can't be read now.")
        found = [one for one in self.events if one.seq > request.after_seq]
        after = request.after_seq
        updates = [one for read_seq, one in self.read.items() if one.seq <= after < read_seq]
        yield ReadEventsResponse(updates=updates, events=found, last_seq=len(self.events))


def message(payload: Any) -> Any:
    return SimpleNamespace(data=payload.SerializeToString())


def seqs(sent: bytes) -> list[int]:
    return [int(line[4:]) for line in sent.split(b"\n") if line.startswith(b"id: ")]


async def drained(follower: Follower) -> bytes:
    """Everything that the follower would send by now."""
    follower.end()
    sent = b""
    while (data := await follower.next()) is not None:
        sent += data
    return sent


def following(tail: Tail, *, published: bool = False, deltas: tuple[str, ...] = (), after: int = 0) -> Follower:
    follower = Follower(published=published, delta_types=deltas)
    tail.followers.add(follower)
    follower.follow_from(after)
    return follower


@given(st.data())
def test_every_event_arrives_once_and_in_order_however_hints_are_lost_doubled_and_shuffled(data: st.DataObject) -> None:
    async def play() -> None:
        log, total = Log(), data.draw(st.integers(1, 20))
        tail = Tail("sess_1", None, log, CONTEXT)  # type: ignore[arg-type]
        tail.begin_at(0)
        early = following(tail)
        late: list[tuple[int, Follower]] = []
        hints = []
        for seq in range(1, total + 1):
            log.events.append(event(seq))
            hints += [seq] * data.draw(st.integers(0, 2))
        log.failures = data.draw(st.integers(0, 1))
        for seq in data.draw(st.permutations(hints)):
            await tail._on_live(message(LiveEvents(events=[event(seq)])))
            if data.draw(st.booleans()):
                await asyncio.sleep(0)
            if data.draw(st.integers(0, 4)) == 0:
                start = data.draw(st.integers(0, total))
                late.append((start, following(tail, after=start)))
        await tail._on_appended(message(EventsAppended(events=[EventReference(seq=total)])))
        if tail._reading is not None:
            await tail._reading
        assert tail.seen_seq == total
        assert seqs(await drained(early)) == list(range(1, total + 1))
        for start, follower in late:
            heard = seqs(await drained(follower))
            assert heard == sorted(set(heard)) and all(seq > start for seq in heard)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail_module, "HINT_GRACE_SECONDS", 0)
        patch.setattr(tail_module, "RETRY_SECONDS", 0)
        asyncio.run(play())


async def test_live_frames_during_a_replay_follow_it_without_repeats() -> None:
    follower = Follower(published=False)
    follower.push([frame_of(event(seq)) for seq in (4, 5, 6)])
    follower.follow_from(5)
    follower.push([frame_of(event(7))])
    assert seqs(await drained(follower)) == [6, 7]


async def test_an_event_that_was_sent_unread_comes_again_once_it_is_read_and_only_then() -> None:
    follower = Follower(published=False)
    follower.follow_from(0)
    follower.push([frame_of(event(1, "user.message", unread=True)), frame_of(event(2))])
    for _ in range(2):
        follower.push([frame_of(event(1, "user.message", unread=True))])
    for _ in range(2):
        follower.push([frame_of(event(1, "user.message"))])
    sent = await drained(follower)
    assert seqs(sent) == [1, 2], "the update carries no id, so it moves no cursor back"
    assert sent.count(b"event: user.message") == 2
    assert sent.count(b'"processed_at":null') == 1


async def test_the_news_that_an_input_was_read_survives_the_loss_of_its_hint() -> None:
    log, tail = Log(), Tail("sess_1", None, None, CONTEXT)  # type: ignore[arg-type]
    tail._events = log
    tail.begin_at(0)
    follower = following(tail)
    await tail._on_live(message(LiveEvents(events=[event(1, "user.message", unread=True)])))
    log.events = [event(1, "user.message"), event(2), event(3)]
    log.read = {2: event(1, "user.message")}
    # The hint with the reading and event 2 never comes.
    await tail._on_live(message(LiveEvents(events=[event(3)])))
    assert tail._reading is not None
    await tail._reading
    sent = await drained(follower)
    assert seqs(sent) == [1, 2, 3]
    assert sent.count(b"event: user.message") == 2
    assert sent.index(b"event: user.message\ndata: " + event(1, "user.message").body) < sent.index(b"id: 2")


async def test_an_old_input_beside_newer_events_does_not_hide_that_others_are_missing() -> None:
    log, tail = Log(), Tail("sess_1", None, None, CONTEXT)  # type: ignore[arg-type]
    tail._events = log
    tail.begin_at(0)
    follower = following(tail)
    log.events = [event(1, "user.message"), event(2), event(3), event(4)]
    # The hints with 1, 2 and 3 were lost; this one shows that 1 was read when 4 was written.
    await tail._on_live(message(LiveEvents(events=[event(1, "user.message"), event(4)])))
    assert tail._reading is not None
    await tail._reading
    assert seqs(await drained(follower)) == [1, 2, 3, 4]


async def test_what_is_told_while_the_log_is_read_is_read_too() -> None:
    log = Log()
    tail = Tail("sess_1", None, None, CONTEXT)  # type: ignore[arg-type]
    read_once = log.ReadEvents

    async def read(request: ReadEventsRequest, **options: Any) -> AsyncIterator[ReadEventsResponse]:
        async for batch in read_once(request, **options):
            if len(log.events) == 2:
                # It is written, and its hint comes, after this reading has found its end.
                log.events += [event(3), event(4)]
                await tail._on_live(message(LiveEvents(events=[event(4)])))
            yield batch

    tail._events = SimpleNamespace(ReadEvents=read)
    tail.begin_at(0)
    follower = following(tail)
    log.events = [event(1), event(2)]
    await tail._on_live(message(LiveEvents(events=[event(2)])))
    assert tail._reading is not None
    await tail._reading
    assert seqs(await drained(follower)) == [1, 2, 3, 4]


async def test_a_read_message_is_not_repeated_to_those_who_never_saw_it_unread() -> None:
    follower = Follower(published=False)
    follower.push([frame_of(event(1, "user.message"))])
    follower.follow_from(3)
    assert await drained(follower) == b""


async def test_a_message_that_a_replay_showed_unread_is_updated() -> None:
    follower = Follower(published=False)
    follower.note_unread([2])
    follower.follow_from(3)
    follower.push([frame_of(event(2, "user.message"))])
    sent = await drained(follower)
    assert seqs(sent) == [] and sent.startswith(b"event: user.message\n")


async def test_a_reader_that_falls_behind_is_cut_and_slows_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "MAX_WAITING_BYTES", 1000)
    tail = Tail("sess_1", None, Log(), CONTEXT)  # type: ignore[arg-type]
    tail.begin_at(0)
    slow, quick = following(tail), following(tail)
    heard = []
    for seq in range(1, 40):
        await tail._on_live(message(LiveEvents(events=[event(seq)])))
        heard += seqs(await quick.next() or b"")
    assert heard == list(range(1, 40))
    assert slow.overflowed and await slow.next() is None


async def test_the_published_projection_leaves_out_what_its_client_does_not_know() -> None:
    tail = Tail("sess_1", None, Log(), CONTEXT)  # type: ignore[arg-type]
    tail.begin_at(0)
    local, published = following(tail), following(tail, published=True)
    await tail._on_live(message(LiveEvents(events=[event(1), event(2, "user.steer"), event(3)])))
    assert seqs(await drained(local)) == [1, 2, 3]
    assert seqs(await drained(published)) == [1, 3]


class Wire:
    """Stands in for a line: what was written, and whether the client reads too slowly."""

    def __init__(self) -> None:
        self.written = b""
        self.is_full = False

    def write(self, chunk: bytes) -> bool:
        if not self.is_full:
            self.written += chunk
        return not self.is_full


async def test_a_line_gets_everything_in_order_through_a_spell_of_slowness() -> None:
    tail, wire = Tail("sess_1", None, Log(), CONTEXT), Wire()  # type: ignore[arg-type]
    tail.begin_at(0)
    follower = following(tail)
    follower.write_to(wire)  # type: ignore[arg-type]

    async def sending() -> None:
        # As ASGI would: what `next` gives is on the wire only some time later.
        while (data := await follower.next()) is not None:
            await asyncio.sleep(0)
            wire.written += framed(data)

    task = asyncio.create_task(sending())
    for seq in range(1, 60):
        wire.is_full = seq % 10 in (3, 4, 5)
        await tail._on_live(message(LiveEvents(events=[event(seq)])))
        if seq % 3 == 0:
            await asyncio.sleep(0)
    follower.end()
    await task
    assert seqs(wire.written) == list(range(1, 60))


async def test_a_client_that_has_gone_is_sent_nothing_more() -> None:
    follower = Follower(published=False)
    follower.follow_from(0)
    follower.push([frame_of(event(1))])
    follower.abandon()
    follower.push([frame_of(event(2))])
    assert await follower.next() is None and follower.abandoned


def preview(frame: str, event_id: str, kind: str = "agent.message") -> Preview:
    body = b'{"type":"event_start","event":{"type":"%b","id":"%b"}}' % (kind.encode(), event_id.encode())
    if frame == "event_delta":
        body = b'{"type":"event_delta","event_id":"%b","delta":{}}' % event_id.encode()
    return Preview(event_type=kind, body=body, frame=frame)


async def test_previews_reach_only_those_who_asked_and_heard_the_start() -> None:
    tail = Tail("sess_1", None, Log(), CONTEXT)  # type: ignore[arg-type]
    tail.begin_at(0)
    plain, asked = following(tail), following(tail, deltas=("agent.message",))
    thinker = following(tail, deltas=("agent.thinking",))
    start, delta = preview("event_start", "sevt_1"), preview("event_delta", "sevt_1")
    for one in (start, start, delta):
        await tail._on_preview(message(one))
    late = following(tail, deltas=("agent.message",))
    await tail._on_preview(message(delta))
    await tail._on_live(message(LiveEvents(events=[event(1)])))
    await tail._on_preview(message(delta))

    sent = await drained(asked)
    assert sent.count(b"event: event_start") == 1 and sent.count(b"event: event_delta") == 2
    assert sent.rstrip().endswith(event(1).body) and b"id: " not in sent.split(b"id: 1")[0]
    for other in (plain, thinker, late):
        assert b"event_" not in await drained(other)


def test_a_preview_carries_no_id_and_names_its_event() -> None:
    assert previewed_id(preview("event_delta", "sevt_9")) == "sevt_9"
    assert b"\nid:" not in b"\n" + preview_frame(preview("event_start", "sevt_9"))


async def test_a_quiet_stream_is_pinged_and_a_busy_one_is_not() -> None:
    follower = Follower(published=False)
    follower.follow_from(0)
    follower.ping_if_quiet(quiet_since=0.0)
    follower.ping_if_quiet(quiet_since=float("inf"))
    assert await follower.next() == PING


@pytest.mark.parametrize("kind", ["session.status_terminated", "session.deleted"])
async def test_a_stream_ends_with_its_session(kind: str) -> None:
    tail = Tail("sess_1", None, Log(), CONTEXT)  # type: ignore[arg-type]
    tail.begin_at(0)
    follower = following(tail)
    await tail._on_live(message(LiveEvents(events=[event(1), event(2, kind), event(3)])))
    assert seqs(await follower.next() or b"") == [1, 2]
    assert await follower.next() is None
