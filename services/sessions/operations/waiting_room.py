"""Runners that wait on this replica for turns: in memory, rebuilt by the runners' own streams.

A seat is one open ClaimTurns stream. A turn that becomes ready is matched here before its
transaction commits, so a waiting runner gets it without a second write; a seat that was
reserved for a transaction that then failed is given back.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from kit.errors import Unavailable
from kit.http_engine import HTTP_ENGINE
from managed_agents.sessions.v1 import turns_pb2
from services.sessions.domain.loop_engine import BUILTIN_ENGINE

# Those that some runner may lack.
OTHER_ENGINES = frozenset({HTTP_ENGINE})
# A runner that keeps more contexts than this has the rest of them read again.
MAX_CACHED = 10_000


@dataclass(eq=False, slots=True)
class Seat:
    """One waiting runner."""

    runner_id: str
    free: int = 0
    # Loop engines that it has.
    engines: frozenset[str] = frozenset({BUILTIN_ENGINE})
    # Session id to the seq up to which the runner knows its context.
    cached: dict[str, int] = field(default_factory=dict)
    grants: asyncio.Queue[turns_pb2.TurnGrant | None] = field(default_factory=asyncio.Queue)
    open: bool = True

    def know(self, session_id: str, seq: int) -> None:
        """Notes what the runner said about its cache; 0 says that it forgot the session."""
        self.cached.pop(session_id, None)
        if seq > 0:
            self.cached[session_id] = seq
            if len(self.cached) > MAX_CACHED:
                self.cached.pop(next(iter(self.cached)))


class WaitingRoom:
    """The seats of one replica."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}
        # Set while somebody could take a turn and turns may wait for somebody.
        self.claim_now = asyncio.Event()
        self._backlog = True
        self._passed_over = False
        self._closed = False

    @property
    def free(self) -> int:
        """Turns that the waiting runners could take."""
        return sum(seat.free for seat in self._seats.values() if seat.free > 0)

    @property
    def engines(self) -> frozenset[str] | None:
        """The engines of the runners that could take a turn; None where they have all that there are."""
        found = frozenset[str]().union(*(seat.engines for seat in self._seats.values() if seat.free > 0))
        return None if found >= OTHER_ENGINES else found

    def enter(self, runner_id: str, engines: Iterable[str] = ()) -> Seat:
        """Opens a seat. A runner that comes again has lost its former stream, so that seat closes.

        `engines` are those that it has beside builtin.
        """
        if self._closed:
            raise Unavailable("This replica is stopping; claim turns at another one.")
        former = self._seats.get(runner_id)
        if former is not None:
            self.leave(former)
        seat = Seat(runner_id, engines=frozenset({BUILTIN_ENGINE, *engines}))
        self._seats[runner_id] = seat
        return seat

    def leave(self, seat: Seat) -> None:
        """Closes a seat; what is in its queue is for the caller to give back."""
        seat.open = False
        seat.free = 0
        seat.grants.put_nowait(None)
        if self._seats.get(seat.runner_id) is seat:
            del self._seats[seat.runner_id]

    def close(self) -> None:
        """Closes every seat for good: the process stops."""
        self._closed = True
        for seat in list(self._seats.values()):
            self.leave(seat)

    def offer(self, seat: Seat, free: int) -> None:
        """Notes how many turns a runner can take."""
        if seat.open:
            seat.free = free
            if self._passed_over and seat.engines >= OTHER_ENGINES:
                self._backlog, self._passed_over = True, False
            self._look()

    def learn(self, runner_id: str, session_id: str, seq: int) -> None:
        """A runner that just ended a turn has the session's context up to there, and need not say so first.

        Should it have dropped the context at once, it reads the log, as for any that it turns out not to have.
        """
        if (seat := self._seats.get(runner_id)) is not None:
            seat.know(session_id, seq)

    def distrust(self, runner_id: str) -> None:
        """A runner let a lease run out, so it may hang: it gets no more turns until it is heard of again."""
        if (seat := self._seats.get(runner_id)) is not None:
            seat.free = 0
            self._look()

    def reserve(self, preferred: str, engine: str = BUILTIN_ENGINE) -> Seat | None:
        """Takes one place of a runner with the engine: the preferred one if it has a place, else the least busy."""
        seat = self._seats.get(preferred)
        if seat is None or seat.free <= 0 or engine not in seat.engines:
            able = (candidate for candidate in self._seats.values() if engine in candidate.engines)
            seat = max(able, key=lambda candidate: candidate.free, default=None)
        if seat is None or seat.free <= 0:
            return None
        seat.free -= 1
        return seat

    def give_back(self, seat: Seat) -> None:
        """Returns a place that was reserved and not used."""
        if seat.open:
            seat.free += 1
            self._look()

    def pass_over(self) -> None:
        """Turns that no runner here could take may wait; one that could asks for them."""
        self._passed_over = True

    def turns_wait(self) -> None:
        """Turns were left waiting, here or on another replica."""
        self._backlog = True
        self._look()

    def none_wait(self) -> None:
        """No turn is known to wait."""
        self._backlog = False
        self._look()

    def _look(self) -> None:
        if self._backlog and self.free > 0:
            self.claim_now.set()
        else:
            self.claim_now.clear()
