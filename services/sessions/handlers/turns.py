"""TurnsService: hands out turns under fenced leases, and writes what their holders did."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from kit.errors import InvalidArgument
from kit.ids import is_id
from kit.rpc.context import current_context
from managed_agents.sessions.v1 import events_pb2, sessions_pb2, turns_pb2, turns_pb2_grpc
from services.sessions.domain import budget, turn
from services.sessions.domain.cost import Prices
from services.sessions.domain.log import Draft, LoggedEvent, MalformedFields, read_fields
from services.sessions.domain.move import Moved
from services.sessions.domain.session_state import PendingCall, TokenUsage
from services.sessions.domain.threads import thread_calls
from services.sessions.domain.turn_errors import MalformedTurnEvent
from services.sessions.domain.turn_events import parked_call, web_requests
from services.sessions.operations.announcer import event_message
from services.sessions.operations.core import Operations, new_event_id
from services.sessions.operations.thread_budgets import SharesBudget, refuse_shared
from services.sessions.operations.waiting_room import Seat
from services.sessions.store.contexts import ContextStore
from services.sessions.store.log import LogStore
from services.sessions.store.turns import TurnStore

MAX_TURN_EVENTS = 1_000
MAX_HELD = 10_000
NEW_EVENTS_BATCH = 1_000
CONTEXT_BATCH = 200

_END_KINDS = {
    turns_pb2.TURN_END_KIND_END_TURN: turn.EndKind.END_TURN,
    turns_pb2.TURN_END_KIND_REQUIRES_ACTION: turn.EndKind.REQUIRES_ACTION,
    turns_pb2.TURN_END_KIND_REFUSAL: turn.EndKind.REFUSAL,
    turns_pb2.TURN_END_KIND_RETRIES_EXHAUSTED: turn.EndKind.RETRIES_EXHAUSTED,
    turns_pb2.TURN_END_KIND_FAILED: turn.EndKind.FAILED,
    turns_pb2.TURN_END_KIND_INTERRUPTED: turn.EndKind.INTERRUPTED,
    turns_pb2.TURN_END_KIND_BUDGET_REACHED: turn.EndKind.BUDGET_REACHED,
}
_EVENT_TYPE = re.compile(r"[a-z_]+(\.[a-z_]+)+")


class TurnsHandlers(turns_pb2_grpc.TurnsServiceServicer):
    """The rpcs of runners."""

    def __init__(self, operations: Operations, prices: Prices | None = None) -> None:
        self._operations = operations
        self._prices = prices or Prices({})
        self._giving_back: set[asyncio.Task[None]] = set()

    async def ClaimTurns(
        self, request_iterator: AsyncIterator[turns_pb2.ClaimTurnsRequest], context: object
    ) -> AsyncIterator[turns_pb2.ClaimTurnsResponse]:
        """Seats a runner and sends it turns until either side leaves."""
        first = await anext(request_iterator, None)
        if first is None:
            return
        if not first.runner_id:
            raise InvalidArgument("runner_id must name the runner.", field="runner_id")
        seat = self._operations.room.enter(first.runner_id, first.loop_engines)
        listening = asyncio.create_task(self._listen(seat, first, request_iterator), name=f"claims of {seat.runner_id}")
        unsent: turns_pb2.TurnGrant | None = None
        try:
            while (unsent := await seat.grants.get()) is not None:
                yield turns_pb2.ClaimTurnsResponse(grant=unsent)
                # Once sent, the runner may be at work: only the end of its lease takes the turn back.
                unsent = None
        finally:
            listening.cancel()
            self._operations.room.leave(seat)
            self._give_back(seat, unsent)

    async def AppendTurnEvents(
        self, request: turns_pb2.AppendTurnEventsRequest, context: object
    ) -> turns_pb2.AppendTurnEventsResponse:
        """Writes what the loop did, and ends the turn where the request says so."""
        workspace_id = current_context().workspace_id
        drafts, fields = _drafts(request)
        end = await self._end(workspace_id, request, fields) if request.HasField("end") else None
        usage = _usage(request, fields.values())
        charges = tuple(
            self._prices.charge(entry.model_id, _token_usage(entry.usage), entry.asked_as) for entry in request.usage
        )

        command = turn.TurnAppend(request.epoch, request.known_seq, drafts, usage, end, None, charges)

        def decide(state: Any, now: Any, stored: frozenset[str] | None) -> Moved:
            refuse_shared(state)
            return turn.append_turn_events(state, replace(command, stored_ids=stored), now, new_event_id)

        shared: bool | None = None
        if calls := thread_calls((draft, fields[draft.id]) for draft in drafts):
            moved = await self._operations.threads.append_turn(workspace_id, request.session_id, command, calls)
        else:
            try:
                # Streams show every event at once, so each append waits for the disk.
                moved = await self._operations.move(
                    workspace_id, request.session_id, decide, event_ids=tuple(draft.id for draft in drafts)
                )
            except SharesBudget as thread:
                moved, shared = await self._operations.thread_budgets.append_turn(
                    workspace_id, thread.root_id, request.session_id, command
                )
        response = turns_pb2.AppendTurnEventsResponse(last_seq=moved.state.last_seq, ended=moved.ended)
        response.budget_reached = budget.is_reached(moved.state) if shared is None else shared
        response.session_revision = moved.state.revision
        if moved.state.input_seq > request.known_seq:
            # Also where the turn is over: the runner keeps the context for the next one.
            response.new_events.extend(await self._new_events(workspace_id, moved, request))
        if moved.ended:
            self._operations.room.learn(moved.state.turn_holder, request.session_id, moved.state.last_seq)
        else:
            response.interrupt_seq = moved.state.interrupt_seq
        return response

    async def RenewLeases(
        self, request: turns_pb2.RenewLeasesRequest, context: object
    ) -> turns_pb2.RenewLeasesResponse:
        """Extends what the runner still holds, and tells what it lost and what was interrupted."""
        if len(request.turns) > MAX_HELD:
            raise InvalidArgument(f"turns holds {len(request.turns)} entries; at most {MAX_HELD} are taken.")
        held = [(entry.session_id, entry.epoch) for entry in request.turns]
        lease_seconds = self._operations.lease_seconds
        # A renewal that a power cut undoes is made good by the next one, or by another runner.
        async with self._operations.database.platform_transaction(relaxed=True) as tx:
            store = TurnStore(tx)
            await store.renew(request.runner_id, held, lease_seconds)
            standing = await store.standing(request.runner_id, held)
        return turns_pb2.RenewLeasesResponse(
            lost_session_ids=[session_id for session_id, _, holds, _ in standing if not holds],
            interrupted=[
                events_pb2.TurnSignal(session_id=session_id, epoch=epoch, interrupt_seq=interrupt_seq)
                for session_id, epoch, holds, interrupt_seq in standing
                if holds and interrupt_seq
            ],
            lease_seconds=lease_seconds,
        )

    async def ReleaseTurn(
        self, request: turns_pb2.ReleaseTurnRequest, context: object
    ) -> turns_pb2.ReleaseTurnResponse:
        """Takes a turn back; any runner may have it at once."""

        def decide(state: Any, now: Any, _stored: frozenset[str] | None) -> Moved:
            return turn.release(state, request.epoch, now, new_event_id, leaves_calls=request.leaves_calls)

        await self._operations.move(current_context().workspace_id, request.session_id, decide)
        return turns_pb2.ReleaseTurnResponse()

    async def ReadTurnContext(
        self, request: turns_pb2.ReadTurnContextRequest, context: object
    ) -> AsyncIterator[turns_pb2.ReadTurnContextResponse]:
        """Streams the context of a session after a seq, in batches."""
        workspace_id = current_context().workspace_id
        after_seq = request.after_seq
        while True:
            # No connection is held while the reader takes its time.
            async with self._operations.database.read(workspace_id) as tx:
                if request.from_compaction and not after_seq:
                    _, events = await ContextStore(tx).begin(request.session_id, 0, _END_OF_LOG, CONTEXT_BATCH)
                else:
                    events = await LogStore(tx).context(request.session_id, after_seq, _END_OF_LOG, CONTEXT_BATCH)
            if events:
                yield turns_pb2.ReadTurnContextResponse(events=[event_message(event) for event in events])
            if len(events) < CONTEXT_BATCH:
                return
            after_seq = events[-1].seq

    async def _listen(
        self, seat: Seat, first: turns_pb2.ClaimTurnsRequest, requests: AsyncIterator[turns_pb2.ClaimTurnsRequest]
    ) -> None:
        room = self._operations.room
        self._note(seat, first)
        # A stream that breaks ends the iteration by an exception of grpc; either way nobody listens any more.
        with suppress(Exception):
            async for request in requests:
                self._note(seat, request)
        room.leave(seat)

    def _note(self, seat: Seat, request: turns_pb2.ClaimTurnsRequest) -> None:
        for entry in request.cached:
            seat.know(entry.session_id, entry.known_seq)
        self._operations.room.offer(seat, request.free_slots)

    def _give_back(self, seat: Seat, unsent: turns_pb2.TurnGrant | None) -> None:
        grants = [unsent] if unsent is not None else []
        while not seat.grants.empty():
            if (grant := seat.grants.get_nowait()) is not None:
                grants.append(grant)
        for grant in grants:
            give_up = self._operations.give_up(grant.workspace_id, grant.session.id, grant.epoch)
            task = asyncio.create_task(give_up, name=f"give back {grant.session.id}")
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _new_events(
        self, workspace_id: str, moved: Moved, request: turns_pb2.AppendTurnEventsRequest
    ) -> list[events_pb2.Event]:
        """All of the context that the runner has not seen: it takes everything up to `last_seq` for known."""
        own_ids = [event.id for event in request.events]
        found: list[LoggedEvent] = []
        after_seq, batch_size = request.known_seq, NEW_EVENTS_BATCH
        while batch_size == NEW_EVENTS_BATCH:
            async with self._operations.database.read(workspace_id) as tx:
                batch = await LogStore(tx).context_of_others(
                    moved.state.id, after_seq, moved.state.last_seq, own_ids, NEW_EVENTS_BATCH
                )
            found += batch
            batch_size = len(batch)
            after_seq = found[-1].seq if found else after_seq
        return [event_message(event) for event in found]

    async def _end(
        self, workspace_id: str, request: turns_pb2.AppendTurnEventsRequest, fields: dict[str, Any]
    ) -> turn.End:
        kind = _END_KINDS.get(request.end.kind)
        if kind is None:
            raise MalformedTurnEvent("end.kind must say why the turn ends.", field="end.kind")
        details = request.end.stop_details_json
        parked: tuple[PendingCall, ...] = ()
        if kind is turn.EndKind.REQUIRES_ACTION:
            parked = await self._parked(workspace_id, request, fields)
        return turn.End(kind, parked, orjson.loads(details) if details else None)

    async def _parked(
        self, workspace_id: str, request: turns_pb2.AppendTurnEventsRequest, fields: dict[str, Any]
    ) -> tuple[PendingCall, ...]:
        """The calls that a turn waits for: of this request, or written before."""
        calls = {event.id: (event.type, fields[event.id]) for event in request.events}
        elsewhere = [event_id for event_id in request.end.event_ids if event_id not in calls]
        if elsewhere:
            async with self._operations.database.read(workspace_id) as tx:
                for event in await LogStore(tx).by_ids(request.session_id, elsewhere):
                    calls[event.id] = (event.type, orjson.loads(event.body))
        unknown = [event_id for event_id in request.end.event_ids if event_id not in calls]
        if unknown or not request.end.event_ids:
            raise MalformedTurnEvent(
                f"end.event_ids must name calls of the session; not found: {', '.join(unknown) or 'any'}.",
                field="end.event_ids",
            )
        return tuple(parked_call(event_id, *calls[event_id]) for event_id in request.end.event_ids)


_END_OF_LOG = 2**62


def _drafts(request: turns_pb2.AppendTurnEventsRequest) -> tuple[tuple[Draft, ...], dict[str, Any]]:
    """The events of a request, checked, and their fields by event id."""
    if len(request.events) > MAX_TURN_EVENTS:
        raise MalformedTurnEvent(f"events holds more than {MAX_TURN_EVENTS} events.", field="events")
    drafts: list[Draft] = []
    fields: dict[str, Any] = {}
    for index, event in enumerate(request.events):
        if not is_id("sevt", event.id) or event.id in fields:
            raise MalformedTurnEvent("An event id must be a fresh sevt_ id.", field=f"events.{index}.id")
        if not _EVENT_TYPE.fullmatch(event.type):
            raise MalformedTurnEvent("An event type is two or more words with dots.", field=f"events.{index}.type")
        try:
            fields[event.id] = read_fields(event.fields_json or b"{}")
        except MalformedFields as error:
            raise MalformedTurnEvent(f"events.{index}: {error}.", field=f"events.{index}.fields_json") from error
        drafts.append(Draft(event.id, event.type, event.fields_json or b"{}"))
    return tuple(drafts), fields


def _usage(request: turns_pb2.AppendTurnEventsRequest, events: Iterable[Any]) -> TokenUsage | None:
    """What the models spent, and the requests to the web that results tell of."""
    total = TokenUsage()
    for entry in request.usage:
        total += _token_usage(entry.usage)
    for fields in events:
        total += web_requests(fields)
    return total if request.usage or total != TokenUsage() else None


def _token_usage(usage: sessions_pb2.Usage) -> TokenUsage:
    return TokenUsage(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_5m_input_tokens,
        usage.cache_creation_1h_input_tokens,
    )
