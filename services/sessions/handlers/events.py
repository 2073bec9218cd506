"""EventsService: what clients append. Reading is `handlers/event_reads.py`."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import orjson

from kit.rpc.context import current_context
from kit.telemetry import traceparent
from managed_agents.sessions.v1 import sessions_pb2, sessions_pb2_grpc
from services.sessions.domain import turn
from services.sessions.domain.environment import LOCAL_PROVIDER, PROVIDERS, resolve_registered
from services.sessions.domain.inbound import (
    ClientEvent,
    refuse_for_worker,
    refuse_ungraded,
    taken_from_worker,
    validate_events,
)
from services.sessions.domain.move import Moved
from services.sessions.domain.session_errors import InvalidRequest
from services.sessions.domain.session_state import SessionState
from services.sessions.domain.steering import Receipt
from services.sessions.domain.threads import ConcernsThreads, concern
from services.sessions.domain.turn_errors import ToolCallNotPending
from services.sessions.handlers.definitions import can_be_session, once
from services.sessions.handlers.event_reads import EventReadsHandlers
from services.sessions.handlers.steers import has_steers, steered
from services.sessions.operations.announcer import event_message
from services.sessions.operations.core import Operations, Unit, new_event_id, not_found
from services.sessions.store.results import ResultStore


class EventsHandlers(EventReadsHandlers, sessions_pb2_grpc.EventsServiceServicer):
    """Appends and reads. `providers` and `workspace_provider` as for the creation of sessions."""

    def __init__(
        self,
        operations: Operations,
        *,
        workspace_provider: str = LOCAL_PROVIDER,
        providers: Collection[str] = PROVIDERS,
        has_grader: bool = True,
    ) -> None:
        super().__init__(operations.database)
        self._operations = operations
        self._has_grader = has_grader
        self._workspace_provider = workspace_provider
        self._providers = providers

    async def AppendEvents(
        self, request: sessions_pb2.AppendEventsRequest, context: object
    ) -> sessions_pb2.AppendEventsResponse:
        """Stores a client's events, all or none."""
        caller = current_context()
        if not can_be_session(request.session_id):
            raise not_found(request.session_id)
        sent = _load(request.events_json)
        if caller.role == "worker":
            sent = taken_from_worker(sent)
        events = validate_events(sent, initial=False, published=caller.published_contract)
        if caller.role == "worker":
            refuse_for_worker(events)
        if not self._has_grader:
            refuse_ungraded(events, "events")
        try:
            return await self._append(request, events)
        except ToolCallNotPending:
            # A worker sends a result until it hears that it has arrived.
            async with self._operations.database.read(caller.workspace_id) as tx:
                stored = await ResultStore(tx).stored(request.session_id, events)
            if stored is None:
                raise
            return sessions_pb2.AppendEventsResponse(events=[event_message(event) for event in stored])

    async def _append(
        self, request: sessions_pb2.AppendEventsRequest, events: list[ClientEvent]
    ) -> sessions_pb2.AppendEventsResponse:
        caller = current_context()

        def decide(state: SessionState, now: Any, _stored: frozenset[str] | None) -> Moved:
            self._require_environment(state)
            if concern(state, events):
                # Their locks are needed too.
                raise ConcernsThreads
            return turn.append_client_events(state, events, now, new_event_id, traceparent=traceparent_now)

        traceparent_now = traceparent()
        if not request.idempotency.key and not has_steers(events):
            with suppress(ConcernsThreads):
                return _response(await self._operations.move(caller.workspace_id, request.session_id, decide))
        async with self._operations.unit(caller.workspace_id) as unit:

            async def append() -> sessions_pb2.AppendEventsResponse:
                nonlocal events
                state = await unit.lock(request.session_id)
                receipts: Sequence[Receipt] = ()
                if has_steers(events):
                    told = await steered(unit, state, events)
                    events, receipts = told.events, told.receipts
                try:
                    moved = await unit.apply(decide(state, unit.now, None))
                except ConcernsThreads:
                    moved = await self._operations.threads.append_client_events(unit, state, events, traceparent_now)
                return _response(moved, receipts)

            if not request.idempotency.key:
                return await append()
            return await once(unit.tx, request.idempotency, sessions_pb2.AppendEventsResponse, append)

    async def append_in(self, unit: Unit, state: SessionState, events: list[ClientEvent]) -> Moved:
        """Appends to a session that a transaction of another handler's holds or has made."""
        self._require_environment(state)
        if concern(state, events):
            return await self._operations.threads.append_client_events(unit, state, events, traceparent())
        return await unit.append_client_events(state, events)

    def _require_environment(self, state: SessionState) -> None:
        if state.environment_now is not None:
            # Nothing to look up: whoever changes an environment tells its sessions.
            resolve_registered(state.environment_id, state.environment_now, self._workspace_provider, self._providers)


def _load(events_json: bytes) -> Any:
    try:
        return orjson.loads(events_json)
    except orjson.JSONDecodeError:
        raise InvalidRequest("events must be a JSON array.", field="events") from None


def _response(moved: Moved, receipts: Sequence[Receipt] = ()) -> sessions_pb2.AppendEventsResponse:
    told = [receipt.public() for receipt in receipts]
    return sessions_pb2.AppendEventsResponse(
        events=[event_message(event) for event in moved.client_events],
        steer_receipts_json=orjson.dumps(told) if told else b"",
    )
