"""EventsService: what clients append. Reading is `handlers/event_reads.py`."""

from collections.abc import Collection
from typing import Any

import orjson

from kit.rpc.context import current_context
from kit.telemetry import traceparent
from managed_agents.sessions.v1 import sessions_pb2, sessions_pb2_grpc
from services.sessions.domain import turn
from services.sessions.domain.environment import LOCAL_PROVIDER, resolve_registered
from services.sessions.domain.inbound import USER_STEER, ClientEvent, validate_events
from services.sessions.domain.move import Moved
from services.sessions.domain.session_errors import InvalidRequest
from services.sessions.domain.session_state import SessionState
from services.sessions.handlers.definitions import can_exist, once
from services.sessions.handlers.event_reads import EventReadsHandlers
from services.sessions.operations.announcer import event_message
from services.sessions.operations.core import Operations, new_event_id, not_found

_STEER_DETAIL = "The engine of this session runs a turn to its end and takes no steering."


class EventsHandlers(EventReadsHandlers, sessions_pb2_grpc.EventsServiceServicer):
    """Appends and reads. `providers` and `workspace_provider` as for the creation of sessions."""

    def __init__(
        self,
        operations: Operations,
        *,
        workspace_provider: str = LOCAL_PROVIDER,
        providers: Collection[str] = (LOCAL_PROVIDER,),
    ) -> None:
        super().__init__(operations.database)
        self._operations = operations
        self._workspace_provider = workspace_provider
        self._providers = providers

    async def AppendEvents(
        self, request: sessions_pb2.AppendEventsRequest, context: object
    ) -> sessions_pb2.AppendEventsResponse:
        """Stores a client's events, all or none."""
        caller = current_context()
        if not can_exist(request.session_id):
            raise not_found(request.session_id)
        events = validate_events(_load(request.events_json), initial=False, published=caller.published_contract)
        events, receipts = _refuse_steering(events)

        def decide(state: SessionState, now: Any, _stored: frozenset[str] | None) -> Moved:
            if state.environment_now is not None:
                # Nothing to look up: whoever changes an environment tells its sessions.
                resolve_registered(
                    state.environment_id, state.environment_now, self._workspace_provider, self._providers
                )
            return turn.append_client_events(state, events, now, new_event_id, traceparent=traceparent_now)

        traceparent_now = traceparent()
        if not request.idempotency.key:
            moved = await self._operations.move(caller.workspace_id, request.session_id, decide)
            return _response(moved, receipts)
        async with self._operations.unit(caller.workspace_id) as unit:

            async def append() -> sessions_pb2.AppendEventsResponse:
                state = await unit.lock(request.session_id)
                return _response(await unit.apply(decide(state, unit.now, None)), receipts)

            return await once(unit.tx, request.idempotency, sessions_pb2.AppendEventsResponse, append)


def _load(events_json: bytes) -> Any:
    try:
        return orjson.loads(events_json)
    except orjson.JSONDecodeError:
        raise InvalidRequest("events must be a JSON array.", field="events") from None


def _refuse_steering(events: list[ClientEvent]) -> tuple[list[ClientEvent], list[dict[str, Any]]]:
    """A steer is stored with its receipt, so that the log tells that nobody heard it."""
    receipts: list[dict[str, Any]] = []
    told: list[ClientEvent] = []
    for event in events:
        if event.type == USER_STEER:
            input_id = event.fields["input_id"]
            receipts.append({"input_id": input_id, "state": "rejected", "detail": _STEER_DETAIL})
            metadata = {"input_id": input_id, "steer_state": "rejected", "detail": _STEER_DETAIL}
            event = ClientEvent(USER_STEER, event.fields | {"metadata": metadata})
        told.append(event)
    return told, receipts


def _response(moved: Moved, receipts: list[dict[str, Any]]) -> sessions_pb2.AppendEventsResponse:
    return sessions_pb2.AppendEventsResponse(
        events=[event_message(event) for event in moved.client_events],
        steer_receipts_json=orjson.dumps(receipts) if receipts else b"",
    )
