"""SessionGatewayService: runs of sessions that belong to whoever made them.

A run is one transaction: the agent's version is resolved, the session made or brought to that version, the
configuration frozen, and the message appended, which starts the turn. The key of a repeat is looked up in the same
transaction, so of two equal requests at one instant one starts the run and the other is told of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import orjson

from kit.clock import rfc3339
from kit.errors import DomainError
from kit.ids import is_id
from kit.postgres import Tx
from kit.rpc.context import current_context
from kit.telemetry import traceparent, tracer
from managed_agents.sessions.v1 import gateway_pb2 as pb
from managed_agents.sessions.v1.gateway_pb2_grpc import SessionGatewayServiceServicer
from services.sessions.domain import turn
from services.sessions.domain.agent import AgentVersion
from services.sessions.domain.errors import AgentNotFound
from services.sessions.domain.gateway import (
    MAX_ANSWERS,
    SESSION_FIELDS,
    Answer,
    InvalidTicket,
    RunNotFound,
    TurnActive,
    answering_events,
    event_id_of,
    read_message,
    run_id_of,
)
from services.sessions.domain.inbound import USER_INTERRUPT, ClientEvent
from services.sessions.domain.loop_engine import ENGINE, OPTIONS
from services.sessions.domain.move import Moved
from services.sessions.domain.session import NewSession, read_new_session
from services.sessions.domain.session_errors import InvalidRequest
from services.sessions.domain.session_state import SessionState, Status
from services.sessions.domain.thread_state import client_ids
from services.sessions.handlers.definitions import can_be_session, can_exist, once
from services.sessions.handlers.events import EventsHandlers
from services.sessions.handlers.publications import Publications, published_version
from services.sessions.handlers.sessions import SessionsHandlers, told_agent
from services.sessions.operations.core import Operations, Unit, new_event_id, not_found
from services.sessions.store.agents import AgentStore
from services.sessions.store.gateway import GatewayRunRow, GatewaySessionRow, GatewayStore
from services.sessions.store.log import LogStore
from services.sessions.store.sessions import SessionRecord, Sessions

MAX_TICKET_SECONDS = 3600


class GatewayHandlers(Publications, SessionGatewayServiceServicer):
    """The rpcs about sessions and runs; those about publications are `handlers/publications.py`."""

    def __init__(self, operations: Operations, sessions: SessionsHandlers, events: EventsHandlers) -> None:
        super().__init__(operations.database, operations.clock)
        self._operations = operations
        self._sessions = sessions
        self._events = events

    async def StartRun(self, request: pb.StartRunRequest, context: Any) -> pb.StartRunResponse:
        """A run of a new session, or the next one of a session that is at rest."""
        workspace_id, caller = current_context().workspace_id, request.caller
        events = read_message(orjson.loads(request.message_json))
        with tracer().start_as_current_span("gateway.configuration"):
            async with self._database.read(workspace_id) as tx:
                version = await _reachable(tx, caller)
            new = read_new_session(_definition(version, is_new=not request.session_id), published=False)
            new, refusal = await self._sessions.prepared(workspace_id, new)
        async with self._operations.unit(workspace_id) as unit:

            async def start() -> pb.StartRunResponse:
                if request.session_id:
                    return await self._go_on(unit, request, new, events)
                with _of_the_agent():
                    return await self._begin(unit, request, new, events, refusal)

            return await once(unit.tx, request.idempotency, pb.StartRunResponse, start)

    async def AnswerInput(self, request: pb.AnswerInputRequest, context: Any) -> pb.AnswerInputResponse:
        """Answers of a person; with the last one the turn goes on."""
        if not 1 <= len(request.answers) <= MAX_ANSWERS:
            raise InvalidRequest(f"inputResponses must hold 1 to {MAX_ANSWERS} answers.", field="inputResponses")
        answers = [
            Answer(each.request_id, each.option_id, each.text if each.HasField("text") else None)
            for each in request.answers
        ]

        async with self._operations.unit(current_context().workspace_id) as unit:

            async def answer() -> pb.AnswerInputResponse:
                await _own(unit.tx, request.caller, request.session_id)
                state = await unit.lock(request.session_id)
                named = [each.request_id for each in answers if is_id("sevt", each.request_id)]
                kinds = {each.id: each.type for each in await LogStore(unit.tx).by_ids(state.id, named)}
                moved = await self._events.append_in(unit, state, answering_events(answers, kinds, client_ids(state)))
                return pb.AnswerInputResponse(first_seq=moved.client_events[0].seq)

            return await once(unit.tx, request.idempotency, pb.AnswerInputResponse, answer)

    async def CancelRun(self, request: pb.CancelRunRequest, context: Any) -> pb.CancelRunResponse:
        """Interrupts what is under way; repeating it changes nothing."""
        async with self._operations.unit(current_context().workspace_id) as unit:
            session_id = request.session_id or await _session_of(unit.tx, request.run_id)
            await _own(unit.tx, request.caller, session_id)
            state = await unit.lock(session_id)
            active = _is_active(state)
            if request.run_id:
                active = not await _is_over(unit.tx, session_id, request.run_id) and active
            if active and not state.interrupt_seq:
                await self._events.append_in(unit, state, [ClientEvent(USER_INTERRUPT, {})])
            return pb.CancelRunResponse(session_id=session_id, was_active=active)

    async def OpenSession(self, request: pb.OpenSessionRequest, context: Any) -> pb.OpenSessionResponse:
        """Whether the caller may read the session."""
        async with self._database.read(current_context().workspace_id) as tx:
            row = await _own(tx, request.caller, request.session_id)
        return pb.OpenSessionResponse(created_at=rfc3339(row.created_at))

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:
        """One run with what was frozen onto it."""
        async with self._database.read(current_context().workspace_id) as tx:
            await _own(tx, request.caller, request.session_id)
            row = await GatewayStore(tx).run(request.run_id) if can_exist(request.run_id) else None
        if row is None or row.session_id != request.session_id:
            raise _no_run(request.run_id)
        return pb.GetRunResponse(
            run=pb.GatewayRun(
                id=row.run_id,
                session_id=row.session_id,
                first_seq=row.first_seq,
                agent_version=row.agent_version,
                configuration_json=row.configuration.encode(),
                created_at=rfc3339(row.created_at),
                trace_id=row.trace_id,
            )
        )

    async def RedeemTicket(self, request: pb.RedeemTicketRequest, context: Any) -> pb.RedeemTicketResponse:
        """Spends a ticket."""
        if not can_exist(request.ticket_id):
            raise InvalidTicket("This ticket is none.")
        keep_seconds = min(max(request.keep_seconds, 1), MAX_TICKET_SECONDS)
        async with self._database.transaction(current_context().workspace_id) as tx:
            if not await GatewayStore(tx).spend_ticket(request.ticket_id, keep_seconds):
                raise InvalidTicket("This ticket was used before. Ask for a new one.")
        return pb.RedeemTicketResponse()

    async def _begin(
        self,
        unit: Unit,
        request: pb.StartRunRequest,
        new: NewSession,
        events: list[ClientEvent],
        refusal: DomainError | None,
    ) -> pb.StartRunResponse:
        if refusal is not None:
            raise refusal
        admitted, state = await self._sessions.insert(unit.tx, new, unit.now)
        caller = request.caller
        row = GatewaySessionRow(caller.agent_id, caller.preview, caller.owner, unit.now)
        await GatewayStore(unit.tx).insert_session(state.id, row)
        moved = await self._events.append_in(unit, state, events)
        return await _started(unit, caller, moved, admitted.record(moved.state))

    async def _go_on(
        self, unit: Unit, request: pb.StartRunRequest, new: NewSession, events: list[ClientEvent]
    ) -> pb.StartRunResponse:
        session_id = request.session_id
        await _own(unit.tx, request.caller, session_id)
        state = await unit.lock(session_id)
        if _is_active(state):
            raise TurnActive(
                f"A turn of session {session_id} is active: it runs, or waits for an answer. Answer or cancel it, or"
                " wait for its end.",
                session_id=session_id,
            )
        record = await _record(unit.tx, session_id)
        if record.row.agent_version != new.agent.version:
            state = await self._follow_version(unit, state, new)
            record = await _record(unit.tx, session_id)
        return await _started(unit, request.caller, await self._events.append_in(unit, state, events), record)

    async def _follow_version(self, unit: Unit, state: SessionState, new: NewSession) -> SessionState:
        """The session with the version that it runs from now on, told in its log."""
        admitted = await self._sessions.admit(unit.tx, new, unit.now)
        row = admitted.row
        await GatewayStore(unit.tx).change_agent(state.id, row.agent_version, row.agent_document, row.agent_name)
        document = orjson.loads(row.agent_document or admitted.saved.document)
        state = replace(state, agent_name=row.agent_name)
        told = {"agent": told_agent(row.agent_id, row.agent_version, document, admitted.saved.model)}
        return (await unit.apply(turn.tell_update(state, told, unit.now, new_event_id))).state


@contextmanager
def _of_the_agent() -> Iterator[None]:
    """What a session can't be begun with is in the agent's definition, and is named as it is there."""
    try:
        yield
    except DomainError as refusal:
        if refusal.field and refusal.field.partition(".")[0] in SESSION_FIELDS:
            joint = "." if str(refusal.message).startswith(refusal.field) else ": "
            refusal.message = f"gateway_session{joint}{refusal.message}"
            refusal.field = f"gateway_session.{refusal.field}"
        raise


async def _reachable(tx: Tx, caller: pb.GatewayCaller) -> AgentVersion:
    """The version that the route runs."""
    agent_id = caller.agent_id
    if not can_exist(agent_id):
        raise AgentNotFound("Agent not found.")
    agent = await AgentStore(tx).load(agent_id)
    if agent.archived_at is not None:
        raise AgentNotFound(f"The agent {agent_id} is archived and can't be reached here.", agent_id=agent_id)
    return agent if caller.preview else await published_version(tx, agent)


def _definition(version: AgentVersion, *, is_new: bool) -> dict[str, Any]:
    """A session of this very version, with what the agent says that its sessions are begun with."""
    begun_with = (orjson.loads(version.document).get("gateway_session") or {}) if is_new else {}
    return {"agent": {"type": "agent", "id": version.id, "version": version.version}} | begun_with


async def _own(tx: Tx, caller: pb.GatewayCaller, session_id: str) -> GatewaySessionRow:
    """Whose the session is, if it is the caller's, of this agent and on this route."""
    row = await GatewayStore(tx).session(session_id) if can_be_session(session_id) else None
    if row is None or (row.agent_id, row.preview, row.owner) != (caller.agent_id, caller.preview, caller.owner):
        raise not_found(session_id)
    return row


def _is_active(state: SessionState) -> bool:
    return turn.is_at_work(state) or state.status is Status.REQUIRES_ACTION


async def _record(tx: Tx, session_id: str) -> SessionRecord:
    record = await Sessions(tx).get(session_id)
    if record is None:
        raise not_found(session_id)
    return record


async def _session_of(tx: Tx, run_id: str) -> str:
    row = await GatewayStore(tx).run(run_id) if can_exist(run_id) else None
    if row is None:
        raise _no_run(run_id)
    return row.session_id


async def _is_over(tx: Tx, session_id: str, run_id: str) -> bool:
    """Whether a run of the session has ended. A turn that was started elsewhere is known by its first event too."""
    event_id = event_id_of(run_id)
    found = await LogStore(tx).by_ids(session_id, [event_id]) if is_id("sevt", event_id) else []
    if not found:
        raise _no_run(run_id)
    return await GatewayStore(tx).ends_after(session_id, found[0].seq)


def _no_run(run_id: str) -> RunNotFound:
    return RunNotFound(f"The session has no run {run_id}.", run_id=run_id)


async def _started(unit: Unit, caller: pb.GatewayCaller, moved: Moved, record: SessionRecord) -> pb.StartRunResponse:
    """Freezes the configuration onto the run that the message started."""
    message, row = moved.client_events[0], record.row
    run = GatewayRunRow(
        run_id=run_id_of(message.id),
        session_id=row.id,
        first_seq=message.seq,
        agent_version=row.agent_version,
        configuration=_configuration(record, caller),
        trace_id=traceparent()[3:35],
        created_at=moved.moved_at or unit.now,
    )
    await GatewayStore(unit.tx).insert_run(run)
    return pb.StartRunResponse(session_id=row.id, run_id=run.run_id, first_seq=run.first_seq)


def _configuration(record: SessionRecord, caller: pb.GatewayCaller) -> str:
    row, document = record.row, orjson.loads(record.agent_document)
    document.pop("gateway_session", None)
    # A session keeps its engine, whatever newer versions of its agent choose.
    document.pop(OPTIONS, None)
    options = {OPTIONS: orjson.loads(row.loop_engine_options)} if row.loop_engine_options else {}
    return orjson.dumps(
        {
            "agent": {"id": row.agent_id, "version": row.agent_version},
            "route": "preview" if caller.preview else "published",
            **document,
            "model": orjson.loads(record.agent_model),
            ENGINE: row.loop_engine,
            **options,
            "environment": {"id": row.environment_id, **orjson.loads(row.environment)},
            "resources": orjson.loads(row.resources),
            "vault_ids": orjson.loads(row.vault_ids),
            "budget": orjson.loads(row.budget) if row.budget else None,
        }
    ).decode()
