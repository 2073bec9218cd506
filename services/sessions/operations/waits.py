"""Ends sessions that wait for answers longer than their workspace allows.

Nothing is kept in memory but what vault said a moment ago: which sessions wait, and since
when, is in an index, so a restart changes nothing and any number of replicas may look.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import orjson

from kit.errors import DomainError
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from kit.telemetry import log
from managed_agents.vault.v1.vault_pb2 import GetSettingsRequest
from managed_agents.vault.v1.vault_pb2_grpc import SettingsServiceStub
from services.sessions.domain import turn, waiting
from services.sessions.domain.move import Moved
from services.sessions.domain.session_state import SessionState
from services.sessions.operations.core import Operations, new_event_id
from services.sessions.operations.writer import Written
from services.sessions.store.parked import ParkedStore
from services.sessions.store.turns import TurnStore

# How long an answer of vault is believed.
REFRESH_SECONDS = 5.0
MAX_ENDED = 100

# The bound of a workspace; None where it has none.
ReadBound = Callable[[str], Awaitable[timedelta | None]]


def bound_reader(vault: Channel) -> ReadBound:
    """Reads the bound from the settings document of a workspace."""
    settings = vault.stub(SettingsServiceStub)

    async def read(workspace_id: str) -> timedelta | None:
        answer = await settings.GetSettings(GetSettingsRequest(), context=CallContext(workspace_id=workspace_id))
        engine = orjson.loads(answer.document_json).get("loop_engine") or {}
        seconds = (engine.get("options") or {}).get("requires_action_timeout_seconds")
        return None if seconds is None else timedelta(seconds=seconds)

    return read


@dataclass(frozen=True, slots=True)
class _Known:
    bound: timedelta | None
    read_at: float


class Waits:
    """The look at waiting sessions of one replica."""

    def __init__(self, operations: Operations, read_bound: ReadBound) -> None:
        self._operations = operations
        self._read_bound = read_bound
        self._known: dict[str, _Known] = {}

    async def end_overdue(self) -> int:
        """Ends what waited too long; how many sessions."""
        async with self._operations.database.platform_read() as tx:
            workspaces = await ParkedStore(tx).workspaces()
        self._known = {key: known for key, known in self._known.items() if key in workspaces}
        ended = 0
        for workspace_id in workspaces:
            bound = await self._bound(workspace_id)
            if bound is not None:
                ended += await self._end_in(workspace_id, bound)
        return ended

    async def _bound(self, workspace_id: str) -> timedelta | None:
        known = self._known.get(workspace_id)
        if known is not None and time.monotonic() - known.read_at < REFRESH_SECONDS:
            return known.bound
        try:
            bound = await self._read_bound(workspace_id)
        except DomainError as error:
            # Nothing is ended by a bound that may have been taken back; the next look asks again.
            log.warning("the bound on waiting is not known", workspace_id=workspace_id, reason=error.reason)
            return None
        self._known[workspace_id] = _Known(bound, time.monotonic())
        return bound

    async def _end_in(self, workspace_id: str, bound: timedelta) -> int:
        parked_until = self._operations.clock.now() - bound
        ended, after = 0, (None, "")
        while True:
            async with self._operations.database.read(workspace_id) as tx:
                found = await ParkedStore(tx).parked(parked_until, after, MAX_ENDED)
            if found:
                ended += await self._end([session_id for session_id, _ in found], bound)
            if len(found) < MAX_ENDED:
                return ended
            session_id, parked_at = found[-1]
            after = (parked_at, session_id)

    async def _end(self, session_ids: list[str], bound: timedelta) -> int:
        operations = self._operations
        written = Written()
        try:
            async with operations.database.platform_transaction() as tx:
                now = operations.clock.now()
                states = await TurnStore(tx).lock_free(session_ids)
                overdue = [state for state in states if waiting.is_overdue(state, bound, now)]
                moves: list[tuple[Moved, dict[str, str]]] = [
                    (waiting.time_out(state, bound, now, new_event_id), {}) for state in overdue if not state.threads
                ]
                if moves:
                    await operations.writer.save(tx, moves, written)
        except BaseException:
            operations.writer.undo(written)
            raise
        await operations.writer.settle(written)
        ended = len(moves)
        for state in overdue:
            if state.threads:
                ended += await self._end_with_threads(state, bound)
            log.info("a session waited too long", session_id=state.id, workspace_id=state.workspace_id)
        return ended

    async def _end_with_threads(self, found: SessionState, bound: timedelta) -> int:
        """Ends a session whose threads end with it, in a transaction of its own."""
        operations = self._operations
        try:
            async with operations.unit(found.workspace_id) as unit:
                state = await unit.lock(found.id)
                if not waiting.is_overdue(state, bound, unit.now):
                    return 0
                # Without the end of its log, so that its calls stay as they are too.
                ended = await operations.threads.end(
                    unit, state, lambda thread, _tail: turn.stop(thread, unit.now, new_event_id)
                )
                # What was late may have been calls of the threads; calls that are up to workers are never late.
                ended = replace(ended, parked_at=state.parked_at)
                await unit.apply(waiting.time_out(ended, bound, unit.now, new_event_id))
        except DomainError as error:
            log.warning("a session that waited too long was not ended", session_id=found.id, reason=error.reason)
            return 0
        return 1
