"""The sessions service as turns use it: appends, releases, and contexts from the cache, the grant and the log."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from kit.errors import DeadlineExceeded, FailedPrecondition, NotFound, Unavailable
from kit.telemetry import log
from managed_agents.sessions.v1.events_pb2 import Event
from managed_agents.sessions.v1.turns_pb2 import (
    AppendTurnEventsRequest,
    AppendTurnEventsResponse,
    ReadTurnContextRequest,
    ReleaseTurnRequest,
    TurnGrant,
)
from services.worker.runner.loop.cache import ConversationCache
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.leases import Lease, LeaseLost

_LEAST_CALL_SECONDS = 0.2
_RELEASE_SECONDS = 5.0
_PAUSE_SECONDS = 0.2


class TurnSessions:
    """Calls for held turns, over a stub of TurnsService. Their call context is that of the turn's task."""

    def __init__(self, turns: Any, cache: ConversationCache) -> None:
        self._turns = turns
        self._cache = cache

    async def append(self, lease: Lease, request: AppendTurnEventsRequest) -> AppendTurnEventsResponse:
        """Append once. An answer after the end of the lease would come too late."""
        seconds = max(_LEAST_CALL_SECONDS, lease.remaining_seconds())
        return await self._turns.AppendTurnEvents(request, timeout_seconds=seconds)

    async def release(self, lease: Lease, leaves_calls: bool) -> None:
        """Give a turn back, perhaps with calls left open; where that fails, the end of its lease does it."""
        request = ReleaseTurnRequest(session_id=lease.session_id, epoch=lease.epoch, leaves_calls=leaves_calls)
        try:
            await self._turns.ReleaseTurn(request, timeout_seconds=_RELEASE_SECONDS, retry=True)
        except (Unavailable, DeadlineExceeded, FailedPrecondition, NotFound) as failed:
            log.info("turn not given back", session_id=lease.session_id, epoch=lease.epoch, error=repr(failed))

    async def load(self, grant: TurnGrant, lease: Lease, from_log: bool) -> Conversation:
        """The conversation of a granted session, with everything that the log holds by now where it is read anew."""
        kept = self._cache.take(grant.session.id)
        if from_log:
            return await self._read_on(Conversation(), lease)
        conversation = Conversation() if kept is None or grant.context_starts_anew else kept
        if grant.context_after_seq > conversation.known_seq and not grant.context_starts_anew:
            # What was announced is gone by now.
            return await self._read_on(Conversation(), lease)
        for event in grant.context:
            conversation.apply_stored(event.seq, event.id, event.type, event.body)
        return conversation if grant.context_complete else await self._read_on(conversation, lease)

    async def _read_on(self, conversation: Conversation, lease: Lease) -> Conversation:
        async for event in self.read_log(lease, conversation.known_seq, from_compaction=True):
            conversation.apply_stored(event.seq, event.id, event.type, event.body)
        return conversation

    async def read_log(
        self, lease: Lease, after_seq: int = 0, *, from_compaction: bool = False
    ) -> AsyncIterator[Event]:
        """The context events of the log after a seq, or of what the newest compaction left of it."""
        while True:
            lease.check()
            request = ReadTurnContextRequest(
                session_id=lease.session_id, after_seq=after_seq, from_compaction=from_compaction
            )
            try:
                async for batch in self._turns.ReadTurnContext(request, timeout_seconds=lease.remaining_seconds()):
                    for event in batch.events:
                        yield event
                        after_seq = event.seq
                    # A long log must not hold up the other turns of this process.
                    await asyncio.sleep(0)
                return
            except (Unavailable, DeadlineExceeded) as failed:
                log.warning("context not read, trying again", session_id=lease.session_id, error=repr(failed))
                await asyncio.sleep(_PAUSE_SECONDS)
            except NotFound as gone:
                raise LeaseLost(gone.message) from gone
