"""AgentsService: agents and their versions, for the gateway."""

from dataclasses import dataclass, replace
from typing import Any

from kit.clock import Clock, rfc3339
from kit.ids import new_id
from kit.pages import encode_cursor
from kit.postgres import Database, Tx
from kit.rpc.server import CallContext, current_context
from managed_agents.sessions.v1 import agents_pb2, agents_pb2_grpc
from managed_agents.sessions.v1.common_pb2 import PageInfo
from services.sessions.domain import roster
from services.sessions.domain.agent import (
    AgentDocument,
    AgentVersion,
    merge_definition,
    take_precondition,
    validate_definition,
)
from services.sessions.domain.errors import AgentNotFound
from services.sessions.domain.web_search import refuse_search
from services.sessions.handlers.definitions import (
    can_exist,
    once,
    page_limit,
    position_after,
    read_body,
    read_position,
    read_version_position,
)
from services.sessions.handlers.moments import read_bounds
from services.sessions.store.agents import AgentStore, present
from services.sessions.store.shared_reads import SharedReads


@dataclass(slots=True)
class _Bounds:
    """The bounds that the listing of agents has; both ends are inclusive."""

    created_at_gte: str
    created_at_lte: str
    created_at_gt: str = ""
    created_at_lt: str = ""


class AgentsHandler(agents_pb2_grpc.AgentsServiceServicer):
    """Serves agents out of this service's database."""

    def __init__(self, database: Database, clock: Clock, *, has_search: bool = False) -> None:
        """`has_search`: the operator named a provider for web_search."""
        self._database = database
        self._has_search = has_search
        self._clock = clock
        self._newest = SharedReads(database, lambda tx, ids: AgentStore(tx).load_some(ids))

    async def CreateAgent(self, request: Any, context: Any) -> agents_pb2.CreateAgentResponse:
        """Saves version 1."""
        caller = current_context()
        body = read_body(request.definition_json)
        document = validate_definition(body, published=caller.published_contract)
        if not self._has_search:
            refuse_search(document.tools, given=body.get("tools"))

        async def create(tx: Tx) -> agents_pb2.CreateAgentResponse:
            agent_id = new_id("agent")
            resolved = await _with_roster(tx, document, agent_id, 1)
            saved = await AgentStore(tx).insert(agent_id, resolved, self._clock.now())
            return agents_pb2.CreateAgentResponse(agent=agent_message(saved))

        if not request.idempotency.key:
            # Agent and version are written by one statement.
            async with self._database.statements(caller.workspace_id) as tx:
                return await create(tx)
        async with self._database.transaction(caller.workspace_id) as tx:
            return await once(tx, request.idempotency, agents_pb2.CreateAgentResponse, lambda: create(tx))

    async def GetAgent(self, request: Any, context: Any) -> agents_pb2.GetAgentResponse:
        """Reads one version."""
        workspace_id, agent_id = current_context().workspace_id, _known(request.agent_id)
        if request.version:
            async with self._database.read(workspace_id) as tx:
                found = await AgentStore(tx).load_version(agent_id, request.version)
        else:
            found = present(await self._newest.get(workspace_id, agent_id), agent_id)
        return agents_pb2.GetAgentResponse(agent=agent_message(found))

    async def UpdateAgent(self, request: Any, context: Any) -> agents_pb2.UpdateAgentResponse:
        """Saves a new version of a changed definition."""
        caller = current_context()
        agent_id = _known(request.agent_id)
        expected, patch = take_precondition(read_body(request.patch_json))
        async with self._database.transaction(caller.workspace_id) as tx:

            async def update() -> agents_pb2.UpdateAgentResponse:
                saved = await self._update(tx, caller, agent_id, expected, patch)
                return agents_pb2.UpdateAgentResponse(agent=agent_message(saved))

            return await once(tx, request.idempotency, agents_pb2.UpdateAgentResponse, update)

    async def ListAgents(self, request: Any, context: Any) -> agents_pb2.ListAgentsResponse:
        """Pages newest first."""
        bounds = read_bounds(_Bounds(request.created_at_gte, request.created_at_lte))
        limit = page_limit(request.page)
        scope = (
            f"agents?archived={request.include_archived}&from={bounds['created_at_gte']}&to={bounds['created_at_lte']}"
        )
        before = read_position(request.page, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            found = await AgentStore(tx).page(
                limit=limit + 1,
                before=before,
                include_archived=request.include_archived,
                created_from=bounds["created_at_gte"],
                created_to=bounds["created_at_lte"],
            )
        page = found[:limit]
        cursor = position_after(scope, page[-1].created_at, page[-1].id) if len(found) > limit else ""
        return agents_pb2.ListAgentsResponse(
            agents=[agent_message(agent) for agent in page], page_info=PageInfo(next_cursor=cursor)
        )

    async def ListAgentVersions(self, request: Any, context: Any) -> agents_pb2.ListAgentVersionsResponse:
        """Pages newest version first."""
        agent_id = _known(request.agent_id)
        limit = page_limit(request.page)
        scope = f"agent_versions?agent={agent_id}"
        before = read_version_position(request.page, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            found = await AgentStore(tx).versions(agent_id, limit=limit + 1, before=before)
        page = found[:limit]
        cursor = encode_cursor(scope, {"version": page[-1].version}) if len(found) > limit else ""
        return agents_pb2.ListAgentVersionsResponse(
            agents=[agent_message(version) for version in page], page_info=PageInfo(next_cursor=cursor)
        )

    async def ArchiveAgent(self, request: Any, context: Any) -> agents_pb2.ArchiveAgentResponse:
        """Archives for good."""
        agent_id = _known(request.agent_id)
        async with self._database.transaction(current_context().workspace_id) as tx:
            archived = await AgentStore(tx).archive(agent_id, self._clock.now())
        return agents_pb2.ArchiveAgentResponse(agent=agent_message(archived))

    async def _update(
        self, tx: Tx, caller: CallContext, agent_id: str, expected: int | None, patch: dict[str, Any]
    ) -> AgentVersion:
        store = AgentStore(tx)
        current = await store.load_for_update(agent_id)
        current.require_active()
        current.require_version(expected)
        stored = current.definition()
        merged = merge_definition(stored, patch, published=caller.published_contract)
        if not self._has_search:
            refuse_search(merged.tools, given=patch.get("tools"))
        if "multiagent" in patch:
            merged = await _with_roster(tx, merged, agent_id, current.version)
        if merged.same_as(stored):
            return current
        return await store.save_version(current, merged.saved_as(agent_id, current.version + 1), self._clock.now())


async def _with_roster(tx: Tx, document: AgentDocument, agent_id: str, version: int) -> AgentDocument:
    """The document with its roster looked up."""
    if document.multiagent is None:
        return document
    known = await AgentStore(tx).roster(roster.references(document.multiagent, agent_id))
    return replace(document, multiagent=roster.resolve(document.multiagent, agent_id, version, known))


def _known(agent_id: str) -> str:
    if not can_exist(agent_id):
        raise AgentNotFound("Agent not found.")
    return agent_id


def agent_message(agent: AgentVersion) -> agents_pb2.Agent:
    """An agent version on the wire; its JSON passes through."""
    return agents_pb2.Agent(
        id=agent.id,
        version=agent.version,
        document_json=agent.document.encode(),
        model_json=agent.model.encode(),
        created_at=rfc3339(agent.created_at),
        updated_at=rfc3339(agent.updated_at),
        archived_at=rfc3339(agent.archived_at) if agent.archived_at else "",
        model_id=agent.model_id,
    )
