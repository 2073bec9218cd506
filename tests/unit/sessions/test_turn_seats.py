"""Places of waiting runners: who gets a turn, what a closed stream gives back, when claims look."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.errors import Unavailable
from kit.testing import await_until
from managed_agents.sessions.v1 import sessions_pb2, turns_pb2
from services.sessions.handlers.turns import TurnsHandlers
from services.sessions.operations.waiting_room import MAX_CACHED, WaitingRoom


class Operations:
    """The two things that a claim stream needs of the real ones."""

    def __init__(self) -> None:
        self.room = WaitingRoom()
        self.given_up: list[tuple[str, str, int]] = []

    async def give_up(self, workspace_id: str, session_id: str, epoch: int) -> None:
        self.given_up.append((workspace_id, session_id, epoch))


def grant(number: int) -> turns_pb2.TurnGrant:
    return turns_pb2.TurnGrant(workspace_id="wrkspc_1", session=sessions_pb2.Session(id=f"sess_{number}"), epoch=number)


async def test_a_closed_stream_gives_back_what_it_has_not_sent() -> None:
    operations = Operations()

    async def requests() -> AsyncIterator[turns_pb2.ClaimTurnsRequest]:
        yield turns_pb2.ClaimTurnsRequest(runner_id="runner_1", free_slots=3)
        await await_until(lambda: False, timeout=30)

    stream: Any = TurnsHandlers(operations).ClaimTurns(requests(), None)  # type: ignore[arg-type]
    first = anext(stream)
    seats = operations.room

    async def deliver() -> None:
        await await_until(lambda: seats.free == 3)
        for number in (1, 2, 3):
            seat = seats.reserve("")
            assert seat is not None
            seat.grants.put_nowait(grant(number))

    sent, _ = await asyncio.gather(first, deliver())
    assert sent.grant.epoch == 1
    second = await anext(stream)
    assert second.grant.epoch == 2
    await stream.aclose()
    await await_until(lambda: operations.given_up)
    assert ("wrkspc_1", "sess_3", 3) in operations.given_up
    assert ("wrkspc_1", "sess_1", 1) not in operations.given_up
    assert seats.free == 0


def test_the_preferred_runner_comes_first_and_then_the_freest() -> None:
    room = WaitingRoom()
    few, many = room.enter("few"), room.enter("many")
    room.offer(few, 1)
    room.offer(many, 3)
    assert room.reserve("few") is few
    assert room.reserve("few") is many
    assert room.reserve("unknown") is many
    room.give_back(few)
    assert room.reserve("few") is few
    assert room.reserve("") is many
    assert room.reserve("") is None


def test_a_runner_that_comes_again_leaves_its_former_seat() -> None:
    room = WaitingRoom()
    former = room.enter("runner")
    room.offer(former, 5)
    seat = room.enter("runner")
    assert not former.open
    assert room.free == 0
    room.offer(former, 5)
    room.give_back(former)
    assert room.free == 0
    room.leave(former)
    room.offer(seat, 2)
    assert room.free == 2


def test_claims_look_only_where_places_and_turns_may_meet() -> None:
    room = WaitingRoom()
    seat = room.enter("runner")
    assert not room.claim_now.is_set()
    room.offer(seat, 1)
    assert room.claim_now.is_set()
    room.none_wait()
    assert not room.claim_now.is_set()
    room.turns_wait()
    assert room.claim_now.is_set()
    room.distrust("runner")
    assert not room.claim_now.is_set()


def test_a_stopping_replica_seats_nobody() -> None:
    room = WaitingRoom()
    seat = room.enter("runner")
    room.close()
    assert not seat.open
    with pytest.raises(Unavailable):
        room.enter("runner")


def test_what_a_runner_keeps_is_bounded_and_can_be_forgotten() -> None:
    seat = WaitingRoom().enter("runner")
    for number in range(MAX_CACHED + 5):
        seat.know(f"sess_{number}", 7)
    assert len(seat.cached) == MAX_CACHED
    assert "sess_0" not in seat.cached
    seat.know("sess_100", 0)
    assert "sess_100" not in seat.cached


async def test_the_end_of_a_turn_tells_what_its_runner_knows() -> None:
    room = WaitingRoom()
    seat = room.enter("runner_1")
    room.learn("runner_1", "sess_1", 9)
    room.learn("runner_that_left", "sess_2", 9)
    assert seat.cached == {"sess_1": 9}


def test_a_turn_goes_to_a_runner_that_has_its_engine_and_to_no_other() -> None:
    room = WaitingRoom()
    # A runner of a former build names no engines.
    former, able = room.enter("former"), room.enter("able", ["http"])
    room.offer(former, 5)
    assert room.reserve("former", "http") is None
    assert room.engines == {"builtin"}
    room.offer(able, 1)
    assert room.engines is None
    assert room.reserve("former", "http") is able
    assert room.reserve("able", "http") is None
    assert room.engines == {"builtin"}
    assert room.reserve("able", "builtin") is former


def test_a_turn_that_was_passed_over_is_asked_for_by_the_first_runner_that_can_take_it() -> None:
    room = WaitingRoom()
    former, able = room.enter("former"), room.enter("able", ["http"])
    room.offer(former, 5)
    room.none_wait()
    room.pass_over()
    room.offer(former, 4)
    assert not room.claim_now.is_set()
    room.offer(able, 1)
    assert room.claim_now.is_set()
    room.none_wait()
    room.offer(able, 1)
    assert not room.claim_now.is_set()
