"""Ends sessions that wait for answers longer than their workspace allows.

Nothing is kept in memory but what vault said a moment ago: which sessions wait, and since
when, is in an index, so a restart changes nothing and any number of replicas may look.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import orjson

from kit.errors import DomainError
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from kit.telemetry import log
from managed_agents.vault.v1.vault_pb2 import GetSettingsRequest
from managed_agents.vault.v1.vault_pb2_grpc import SettingsServiceStub
from services.sessions.domain import waiting
from services.sessions.domain.move import Moved
from services.sessions.operations.core import Operations, new_event_id
from services.sessions.operations.writer import Written, unchanged
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
                now: datetime = operations.clock.now()
                decided = [
                    waiting.time_out(state, bound, now, new_event_id)
                    for state in await TurnStore(tx).lock_free(session_ids)
                ]
                moves: list[tuple[Moved, dict[str, str]]] = [(moved, {}) for moved in decided if not unchanged(moved)]
                if moves:
                    await operations.writer.save(tx, moves, written)
        except BaseException:
            operations.writer.undo(written)
            raise
        for moved, _ in moves:
            log.info("a session waited too long", session_id=moved.state.id, workspace_id=moved.state.workspace_id)
        await operations.writer.settle(written)
        return len(moves)
