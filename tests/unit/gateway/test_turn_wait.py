"""Waiting for the end of a turn: from the log and from what comes live, up to a deadline that nothing can swallow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from kit.testing import await_until
from kit.waiting import within
from managed_agents.sessions.v1.events_pb2 import Event
from managed_agents.sessions.v1.sessions_pb2 import ReadEventsRequest, ReadEventsResponse
from services.gateway.streams.frames import frame_of
from services.gateway.streams.turn_wait import TurnWait


def event(seq: int, kind: str, **fields: Any) -> Event:
    body = orjson.dumps({"id": f"sevt_{seq}", "type": kind, "seq": seq, **fields})
    return Event(id=f"sevt_{seq}", seq=seq, type=kind, body=body)


def said(seq: int, text: str) -> Event:
    return event(seq, "agent.message", content=[{"type": "text", "text": text}])


def idle(seq: int, kind: str = "end_turn") -> Event:
    return event(seq, "session.status_idle", stop_reason={"type": kind})


class Ground:
    """A log, and a hub with one tail."""

    def __init__(self, *log: Event) -> None:
        self.log = log
        self.begun_at: list[int] = []
        self.waits: set[TurnWait] = set()
        self.clients = SimpleNamespace(events=SimpleNamespace(ReadEvents=self._read))
        self.context = None

    def follow(self, rpc: Any, request: ReadEventsRequest) -> AsyncIterator[ReadEventsResponse]:
        return rpc(request)

    async def _read(self, request: ReadEventsRequest) -> AsyncIterator[ReadEventsResponse]:
        assert request.after_seq == 0
        last = self.log[-1].seq
        half = len(self.log) // 2
        yield ReadEventsResponse(last_seq=last, events=self.log[:half])
        yield ReadEventsResponse(last_seq=last, events=self.log[half:])

    async def join(self, session_id: str, wait: TurnWait, context: Any) -> Any:
        self.waits.add(wait)
        return SimpleNamespace(begin_at=self.begun_at.append)

    async def leave(self, tail: Any, wait: TurnWait) -> None:
        self.waits.remove(wait)

    async def wait(self, wait: TurnWait, *live: Sequence[Event]) -> bool:
        """Waits while batches come live, once the log was read."""
        waiting = asyncio.ensure_future(wait.until_over(self, self))  # type: ignore[arg-type]
        await await_until(lambda: bool(self.begun_at) or waiting.done())
        for batch in live:
            wait.push([frame_of(each) for each in batch])
        found = await within(waiting, 30)
        assert not self.waits
        return found


BEGUN = (event(1, "user.message"), event(2, "session.status_running"))


async def test_a_turn_that_is_over_is_read_from_the_log() -> None:
    log = (*BEGUN, said(3, "a"), event(4, "session.usage", usage={"output_tokens": 1}), idle(5), said(6, "of later"))
    wait = TurnWait("sess_1", 60)
    assert await Ground(*log).wait(wait)
    assert wait.output == [{"type": "text", "text": "a"}] and wait.usage == {"output_tokens": 1}
    assert wait.last is not None and wait.last["seq"] == 5


async def test_what_comes_live_goes_on_after_the_log_without_repeats() -> None:
    wait = TurnWait("sess_1", 60)
    ground = Ground(*BEGUN, said(3, "a"))
    assert await ground.wait(wait, [BEGUN[1], said(3, "a"), said(4, "b")], [said(4, "b")], [idle(5), said(6, "later")])
    assert [block["text"] for block in wait.output] == ["a", "b"] and ground.begun_at == [3]


async def test_a_session_that_ends_ends_the_wait() -> None:
    for kind in ("session.status_terminated", "session.deleted"):
        wait = TurnWait("sess_1", 60)
        assert await Ground(*BEGUN).wait(wait, [event(3, kind)])
        assert wait.last is not None and wait.last["type"] == kind


async def test_the_deadline_ends_the_wait_also_where_a_cancellation_would_be_lost() -> None:
    class Swallowing(Ground):
        async def join(self, session_id: str, wait: TurnWait, context: Any) -> Any:
            # As a library does whose own wait is over in the same moment.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)
            return await super().join(session_id, wait, context)

    for seconds in (0, 0.05, 0.2):
        wait = TurnWait("sess_1", seconds)
        assert not await Swallowing(*BEGUN).wait(wait)
        assert wait.deadline_reached and wait.last is None


async def test_a_deadline_of_nothing_still_finds_what_is_there() -> None:
    wait = TurnWait("sess_1", 0)
    assert await Ground(*BEGUN, idle(3)).wait(wait)


@pytest.mark.parametrize("leave", [TurnWait.abandon, TurnWait.end])
async def test_a_client_or_a_platform_that_goes_ends_the_wait_before_its_deadline(leave: Any) -> None:
    wait = TurnWait("sess_1", 60)
    ground = Ground(*BEGUN)
    waiting = asyncio.ensure_future(ground.wait(wait))
    await await_until(lambda: bool(ground.begun_at))
    leave(wait)
    assert not await waiting
    assert not wait.deadline_reached and wait.abandoned is (leave is TurnWait.abandon)
