"""Sessions: made, read, listed, changed, ended.

Each write is one transaction. What moves a session's turn or log goes through
`operations`, under the session's lock; a refusal leaves nothing behind.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

import orjson

from kit.errors import DomainError
from kit.postgres import Tx
from kit.rpc.context import current_context
from kit.telemetry import traceparent
from managed_agents.sessions.v1.sessions_pb2 import (
    ArchiveSessionRequest,
    ArchiveSessionResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    DeleteSessionRequest,
    DeleteSessionResponse,
    GetSessionRequest,
    GetSessionResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    Session,
    StopSessionRequest,
    StopSessionResponse,
    UpdateSessionRequest,
    UpdateSessionResponse,
)
from managed_agents.sessions.v1.sessions_pb2_grpc import SessionsServiceServicer
from services.sessions.domain import budget, turn
from services.sessions.domain.cost import Prices
from services.sessions.domain.environment import DEFAULT_ENVIRONMENT_ID, LOCAL_PROVIDER, PROVIDERS
from services.sessions.domain.inbound import refuse_ungraded
from services.sessions.domain.loop_engine import BUILTIN, EngineChoice, public_fields
from services.sessions.domain.metadata import merge_metadata
from services.sessions.domain.move import Moved
from services.sessions.domain.overrides import refuse_unavailable, replace_tools, without_effort
from services.sessions.domain.self_hosted import refuse_agent
from services.sessions.domain.session import (
    NewSession,
    SessionPatch,
    read_new_session,
    read_session_patch,
)
from services.sessions.domain.session_errors import SessionEnded, SessionRunning
from services.sessions.domain.session_state import SessionState
from services.sessions.domain.web_search import refuse_search
from services.sessions.handlers.definitions import can_be_session, once, read_body
from services.sessions.handlers.listed_sessions import ListedSessions
from services.sessions.handlers.rosters import models_of
from services.sessions.handlers.session_admission import Admitted, admit
from services.sessions.handlers.session_messages import session_message
from services.sessions.handlers.session_pages import read_listing
from services.sessions.operations.core import Operations, Unit, new_event_id, not_found
from services.sessions.operations.default_engines import DefaultEngines
from services.sessions.operations.repository_tokens import Keeping, RepositoryTokens
from services.sessions.operations.session_vaults import CheckVaults, no_vaults
from services.sessions.store.sessions import SessionRecord, Sessions
from services.sessions.store.shared_reads import SharedReads

Decide = Callable[[SessionState, datetime], Moved]


class SessionsHandlers(SessionsServiceServicer):
    """SessionsService."""

    def __init__(
        self,
        operations: Operations,
        *,
        workspace_provider: str = LOCAL_PROVIDER,
        providers: Collection[str] = PROVIDERS,
        default_engines: DefaultEngines | None = None,
        has_grader: bool = True,
        prices: Prices | None = None,
        check_vaults: CheckVaults = no_vaults,
        tokens: RepositoryTokens | None = None,
        has_search: bool = False,
    ) -> None:
        """`providers` are the sandbox backends that runners have; `workspace_provider` serves by default."""
        self._operations = operations
        self._database = operations.database
        self._clock = operations.clock
        self._workspace_provider = workspace_provider
        self._providers = providers
        self._default_engines = default_engines or DefaultEngines()
        self._has_grader = has_grader
        self._has_search = has_search
        self._prices = prices or Prices({})
        self._check_vaults = check_vaults
        self._tokens = tokens or RepositoryTokens(None)
        self._listed = ListedSessions()
        self._reads = SharedReads(operations.database, lambda tx, ids: Sessions(tx).get_some(ids))

    async def CreateSession(self, request: CreateSessionRequest, context: Any) -> CreateSessionResponse:
        """A session, idle or at work on its initial events."""
        call = current_context()
        new = read_new_session(read_body(request.definition_json), published=call.published_contract)
        if not self._has_grader:
            refuse_ungraded(new.initial_events, "initial_events")
        new, refusal = await self.prepared(call.workspace_id, new)
        plain = not request.idempotency.key and not new.initial_events and not new.resources
        if plain and new.environment_id == DEFAULT_ENVIRONMENT_ID:
            # Nothing has to go together, or to be held: the default environment never goes away.
            if refusal is not None:
                raise refusal
            async with self._database.statements(call.workspace_id) as tx:
                admitted, state = await self.insert(tx, new, self._clock.now())
            self._operations.writer.states.keep(state)
            return CreateSessionResponse(session=session_message(admitted.record(state), state.updated_at))
        async with self._tokens.until_committed() as keeping, self._operations.unit(call.workspace_id) as unit:
            return await once(
                unit.tx, request.idempotency, CreateSessionResponse, lambda: self._create(unit, new, refusal, keeping)
            )

    async def GetSession(self, request: GetSessionRequest, context: Any) -> GetSessionResponse:
        """One session."""
        session_id = request.session_id
        known = can_be_session(session_id)
        found = await self._reads.get(current_context().workspace_id, session_id) if known else None
        record = _present(found, session_id)
        return GetSessionResponse(session=session_message(record, self._clock.now()))

    async def ListSessions(self, request: ListSessionsRequest, context: Any) -> ListSessionsResponse:
        """One page of sessions by creation; one more than asked for tells whether there are more."""
        listing = read_listing(request)
        async with self._database.read(current_context().workspace_id) as tx:
            page, more = await self._listed.page(tx, listing)
        now = self._clock.now()
        page_info = listing.page_info([listed.position for listed in page], more)
        encoded = [listed.at(now) for listed in page]
        if request.takes_encoded:
            return ListSessionsResponse(encoded_sessions=encoded, page_info=page_info)
        return ListSessionsResponse(sessions=map(Session.FromString, encoded), page_info=page_info)

    async def UpdateSession(self, request: UpdateSessionRequest, context: Any) -> UpdateSessionResponse:
        """Changes what may be changed and tells exactly what did; an update without a change writes nothing."""
        patch = read_session_patch(read_body(request.patch_json))
        async with self._operations.unit(current_context().workspace_id) as unit:
            state = await _lock(unit, request.session_id)
            if turn.phase_of(state) is turn.Phase.ENDED:
                raise SessionEnded(f"Session {state.id} has ended and can't be changed.", session_id=state.id)
            record = await _record(unit.tx, state.id)
            change = _Change(record, patch, is_running=turn.is_at_work(state), has_search=self._has_search)
            if patch.has_budget:
                change.change_budget(state, record, patch.budget, self._prices)
            if change.told is not None:
                await Sessions(unit.tx).change(
                    state.id,
                    title=change.title,
                    metadata=change.metadata,
                    agent_document=change.agent_document,
                    agent_model=record.row.agent_model,
                    budget=change.budget,
                )
                told = turn.tell_update(state, change.told, unit.now, new_event_id, traceparent=traceparent())
                moved = await unit.apply(told)
                if patch.has_budget:
                    await self._operations.thread_budgets.resume(unit, moved.state, traceparent())
            return UpdateSessionResponse(session=await self._read(unit, state.id))

    async def ArchiveSession(self, request: ArchiveSessionRequest, context: Any) -> ArchiveSessionResponse:
        """Closes an idle session for good; repeating it changes nothing."""
        async with self._operations.unit(current_context().workspace_id) as unit:
            state = await _lock(unit, request.session_id)
            if state.archived_at is None:
                turn.require_at_rest(state)
                state = await self._operations.threads.end(
                    unit, state, lambda each, tail: turn.archive(each, unit.now, new_event_id, tail)
                )
            await unit.apply(turn.archive(state, unit.now, new_event_id, await unit.open_work(state)))
            return ArchiveSessionResponse(session=await self._read(unit, state.id))

    async def DeleteSession(self, request: DeleteSessionRequest, context: Any) -> DeleteSessionResponse:
        """Takes a session out of sight and stops its work."""
        call = current_context()
        async with self._operations.unit(call.workspace_id) as unit:
            state = await _lock(unit, request.session_id)
            if call.published_contract:
                turn.require_at_rest(state)
            state = await self._operations.threads.delete(unit, state)
            await unit.apply(
                turn.delete(state, unit.now, new_event_id, await unit.open_work(state), refuse_running=False)
            )
        return DeleteSessionResponse()

    async def StopSession(self, request: StopSessionRequest, context: Any) -> StopSessionResponse:
        """Ends a session; repeating it changes nothing."""
        async with self._operations.unit(current_context().workspace_id) as unit:
            state = await _lock(unit, request.session_id)
            state = await self._operations.threads.end(
                unit, state, lambda each, tail: turn.stop(each, unit.now, new_event_id, tail)
            )
            await unit.apply(turn.stop(state, unit.now, new_event_id, await unit.open_work(state)))
            return StopSessionResponse(session=await self._read(unit, state.id))

    async def _create(
        self, unit: Unit, new: NewSession, refusal: DomainError | None, keeping: Keeping
    ) -> CreateSessionResponse:
        if refusal is not None:
            raise refusal
        admitted, state = await self.insert(unit.tx, new, unit.now)
        await keeping.put(state.id, admitted.tokens)
        outcomes: Sequence[dict[str, Any]] = ()
        if new.initial_events:
            moved = await unit.append_client_events(state, new.initial_events)
            state, outcomes = moved.state, moved.outcome_changes
        return CreateSessionResponse(session=session_message(admitted.record(state, outcomes), unit.now))

    async def prepared(self, workspace_id: str, new: NewSession) -> tuple[NewSession, DomainError | None]:
        """What other services say of the request, asked before a transaction begins, so that none waits for them."""
        new, refusal = await self._check_vaults(new) if new.vault_ids else (new, None)
        await self._default_engine(workspace_id, new)
        return new, refusal

    async def insert(self, tx: Tx, new: NewSession, now: datetime) -> tuple[Admitted, SessionState]:
        """Admits a session and stores it, idle, in a transaction of the caller's, who has checked its vaults."""
        admitted = await self.admit(tx, new, now)
        await Sessions(tx).insert(admitted.row)
        return admitted, admitted.state(tx.workspace_id)

    async def admit(self, tx: Tx, new: NewSession, now: datetime) -> Admitted:
        """A session that may exist, with everything that it refers to resolved."""
        return await admit(
            tx,
            new,
            now,
            workspace_provider=self._workspace_provider,
            providers=self._providers,
            prices=self._prices,
            has_search=self._has_search,
            default_engine=await self._default_engine(tx.workspace_id, new),
        )

    async def _default_engine(self, workspace_id: str, new: NewSession) -> EngineChoice:
        """What the settings choose, where a session may come to need it."""
        own = new.loop_engine
        return own if own is not None and own == BUILTIN else await self._default_engines.of(workspace_id)

    async def _read(self, unit: Unit, session_id: str) -> Session:
        return session_message(await _record(unit.tx, session_id), unit.now)


class _Change:
    """What an update does to a session: its columns afterwards, and what to tell about it."""

    def __init__(self, record: SessionRecord, patch: SessionPatch, *, is_running: bool, has_search: bool) -> None:
        row = record.row
        self._has_search = has_search
        # The changed fields as session.updated shows them; None where nothing changed.
        self.told: dict[str, Any] | None = None
        self.title, self.metadata, self.agent_document = row.title, row.metadata, row.agent_document
        self.budget = row.budget
        if patch.has_title and patch.title != row.title:
            self.title = patch.title
            self._tell(title=patch.title)
        if patch.has_metadata:
            self._change_metadata(row.metadata, patch.metadata)
        if patch.agent is not None:
            if is_running:
                raise SessionRunning(
                    f"Session {row.id} is running, so its agent can't be changed. Send a user.interrupt and wait"
                    " until it is idle.",
                    session_id=row.id,
                )
            self._change_agent(record, patch.agent)

    def change_budget(self, state: SessionState, record: SessionRecord, wanted: Any, prices: Prices) -> None:
        """Raises, lowers or removes the ceiling of a locked session."""
        model_id = orjson.loads(record.agent_model)["id"]
        after = budget.at_update(state, wanted, models_of(model_id, orjson.loads(record.agent_document)), prices)
        if after != self.budget:
            self.budget = after
            self._tell(budget=wanted)

    def _tell(self, **changed: Any) -> None:
        self.told = (self.told or {}) | changed

    def _change_metadata(self, stored: str, patch: Any) -> None:
        before = orjson.loads(stored)
        after = merge_metadata(before, patch)
        if after == before:
            return
        self.metadata = orjson.dumps(after).decode()
        # A bag that was emptied is told by the absence of the field.
        self._tell(**({"metadata": after} if after else {}))

    def _change_agent(self, record: SessionRecord, patch: dict[str, Any]) -> None:
        before = orjson.loads(record.agent_document)
        after = replace_tools(before, patch)
        refuse_unavailable(after)
        environment = orjson.loads(record.row.environment)
        refuse_agent(environment.get("sandbox_provider") or "", environment.get("worker_protocol"), after)
        if not self._has_search:
            refuse_search(after.get("tools") or [], field="agent.tools", given=patch.get("tools"))
        if after == before:
            return
        self.agent_document = orjson.dumps(after).decode()
        self._tell(agent=told_agent(record.row.agent_id, record.row.agent_version, after, record.agent_model))


def told_agent(agent_id: str, version: int, document: dict[str, Any], model: str) -> dict[str, Any]:
    """The agent as the log tells of a change."""
    shown = {name: value for name, value in document.items() if name != "metadata"}
    identity = {"type": "agent", "id": agent_id, "version": version}
    return identity | public_fields(shown) | {"model": without_effort(orjson.loads(model))}


async def _lock(unit: Unit, session_id: str) -> SessionState:
    if not can_be_session(session_id):
        raise not_found(session_id)
    return await unit.lock(session_id)


async def _record(tx: Tx, session_id: str) -> SessionRecord:
    return _present(await Sessions(tx).get(session_id) if can_be_session(session_id) else None, session_id)


def _present(found: SessionRecord | None, session_id: str) -> SessionRecord:
    if found is None:
        raise not_found(session_id)
    return found
