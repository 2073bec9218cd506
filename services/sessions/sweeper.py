"""What keeps the promise that no session runs without a live lease: a look once a second.

Leases that ran out are taken back, turns whose hint was lost are claimed, sessions that wait
longer than they may are ended, and answers that were kept for repeats are dropped when
their day is over. Every replica sweeps; locks that skip make two sweeps at once harmless.
"""

import asyncio
import time

from kit.errors import DomainError
from kit.idempotency import IdempotencyStore
from kit.postgres import Tx
from kit.telemetry import log
from services.sessions.domain import turn
from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.move import Moved
from services.sessions.domain.session_state import SessionState, TurnState
from services.sessions.operations.core import Operations, new_event_id
from services.sessions.operations.waits import Waits
from services.sessions.operations.writer import Written
from services.sessions.store.log import MAX_TAIL, LogStore
from services.sessions.store.turns import TurnStore

MAX_EXPIRED = 100
FORGET_SECONDS = 3600.0


class Sweeper:
    """The sweep of one replica."""

    def __init__(self, operations: Operations, pause_seconds: float = 1.0, waits: Waits | None = None) -> None:
        self._operations = operations
        self._waits = waits
        self._pause_seconds = pause_seconds
        self._forgot_at = time.monotonic()

    async def run(self) -> None:
        """Sweeps until cancelled; what fails now is tried again at the next look."""
        while True:
            await asyncio.sleep(self._pause_seconds)
            try:
                await self.sweep()
            except DomainError as error:
                log.warning("the sweep failed", reason=error.reason, error=error.message)

    async def sweep(self) -> None:
        """One look."""
        while await self.expire_leases() == MAX_EXPIRED:
            pass
        self._operations.room.turns_wait()
        await self._operations.threads.sweep()
        if self._waits is not None:
            await self._waits.end_overdue()
        if time.monotonic() - self._forgot_at > FORGET_SECONDS:
            self._forgot_at = time.monotonic()
            async with self._operations.database.platform_transaction() as tx:
                await IdempotencyStore(tx).forget_expired()

    async def expire_leases(self) -> int:
        """Takes back leases that ran out; how many of them."""
        operations = self._operations
        async with operations.database.platform_read() as tx:
            found = await TurnStore(tx).expired(MAX_EXPIRED)
        if not found:
            return 0
        written = Written()
        async with operations.database.platform_transaction() as tx:
            store = TurnStore(tx)
            states = await store.lock_free(found)
            expired = await store.still_expired([state.id for state in states])
            now = operations.clock.now()
            moves: list[tuple[Moved, dict[str, str]]] = [
                (turn.expire(state, now, new_event_id, await _tail(tx, state)), {})
                for state in states
                if state.id in expired and state.turn_state is TurnState.LEASED
            ]
            if moves:
                await operations.writer.save(tx, moves, written)
        for moved, _ in moves:
            log.warning(
                "a lease ran out",
                session_id=moved.state.id,
                runner_id=moved.before.turn_holder,
                epoch=moved.before.turn_epoch,
                status=moved.state.status,
            )
            operations.room.distrust(moved.before.turn_holder)
        await operations.writer.settle(written)
        return len(moves)


async def _tail(tx: Tx, state: SessionState) -> list[LoggedEvent]:
    """What a turn may have left open; only read where nobody else will close it."""
    if not turn.is_last_attempt(state):
        return []
    return await LogStore(tx.for_workspace(state.workspace_id)).newest_context(state.id, MAX_TAIL)
