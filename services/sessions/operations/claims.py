"""Gives waiting turns to runners that wait on this replica.

Most turns never come by here: they are matched in the transaction that makes them ready.
What is left is found by the hint of another replica, by the offer of a runner, or by the
sweep, and claimed under the sessions' locks, so two replicas never give one turn twice.
"""

import asyncio

from kit.errors import DomainError
from kit.postgres import Tx
from kit.telemetry import log
from services.sessions.domain import turn
from services.sessions.domain.move import Moved
from services.sessions.domain.session_state import TurnState
from services.sessions.operations.core import Operations, new_event_id
from services.sessions.operations.waiting_room import Seat
from services.sessions.operations.writer import Written
from services.sessions.store.turns import TurnStore

MAX_CLAIMS = 32
RETRY_SECONDS = 0.05
FAILURE_PAUSE_SECONDS = 0.5


class Claims:
    """The claiming task of one replica."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._room = operations.room

    async def run(self) -> None:
        """Claims whenever places and turns may meet; runs until cancelled."""
        while True:
            await self._room.claim_now.wait()
            try:
                await self.claim()
            except DomainError as error:
                log.warning("turns could not be claimed", reason=error.reason, error=error.message)
                await asyncio.sleep(FAILURE_PAUSE_SECONDS)

    async def claim(self) -> int:
        """Claims one batch; the number of turns that found a runner."""
        operations = self._operations
        limit, engines = min(MAX_CLAIMS, self._room.free), self._room.engines
        # What becomes ready from here on is told anew, so a hint that comes meanwhile isn't lost.
        self._room.none_wait()
        if engines is not None:
            self._room.pass_over()
        written = Written()
        try:
            async with operations.database.platform_transaction() as tx:
                found = await TurnStore(tx).waiting(limit, engines)
                written.granted = await self._grant(tx, found)
                if written.granted:
                    await operations.writer.save(tx, [(moved, {}) for moved, _ in written.granted], written)
        except BaseException:
            operations.writer.undo(written)
            self._room.turns_wait()
            raise
        await operations.writer.settle(written)
        if len(written.granted) < len(found):
            # Somebody else was at these sessions: most likely another replica that claims them.
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._room.turns_wait)
        elif len(found) == limit:
            self._room.turns_wait()
        return len(written.granted)

    async def _grant(self, tx: Tx, session_ids: list[str]) -> list[tuple[Moved, Seat]]:
        granted: list[tuple[Moved, Seat]] = []
        if not session_ids:
            return granted
        now = self._operations.clock.now()
        for state in await TurnStore(tx).lock_free(session_ids):
            if state.turn_state is not TurnState.READY:
                continue
            seat = self._room.reserve(state.turn_holder, state.loop_engine)
            if seat is None:
                # Another turn may need less of a runner.
                continue
            granted.append((turn.grant(state, seat.runner_id, now, new_event_id), seat))
        return granted
