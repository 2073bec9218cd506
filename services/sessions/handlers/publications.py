"""Which version of an agent the session gateway runs: the one that was published last, else the newest."""

from typing import Any

from kit.clock import Clock, rfc3339
from kit.postgres import Database, Tx
from kit.rpc.context import current_context
from managed_agents.sessions.v1 import gateway_pb2 as pb
from services.sessions.domain.agent import AgentVersion
from services.sessions.domain.errors import AgentNotFound
from services.sessions.handlers.definitions import can_exist
from services.sessions.store.agents import AgentStore
from services.sessions.store.gateway import GatewayStore, PublicationRow


class Publications:
    """The two rpcs about them, for the servicer of the session gateway."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def PublishAgent(self, request: pb.PublishAgentRequest, context: Any) -> pb.PublishAgentResponse:
        """Publishes a version; publishing it again changes nothing but the time."""
        caller, agent_id = current_context(), _known(request.agent_id)
        async with self._database.transaction(caller.workspace_id) as tx:
            newest = await AgentStore(tx).load_for_update(agent_id)
            newest.require_active()
            version = request.version or newest.version
            await AgentStore(tx).load_version(agent_id, version)
            row = PublicationRow(version, self._clock.now(), caller.principal_id)
            await GatewayStore(tx).publish(agent_id, row)
        return pb.PublishAgentResponse(publication=_message(agent_id, row))

    async def GetPublication(self, request: pb.GetPublicationRequest, context: Any) -> pb.GetPublicationResponse:
        """What the plain route runs."""
        agent_id = _known(request.agent_id)
        async with self._database.read(current_context().workspace_id) as tx:
            newest = await AgentStore(tx).load(agent_id)
            row = await GatewayStore(tx).publication(agent_id)
        if row is None:
            return pb.GetPublicationResponse(publication=pb.Publication(agent_id=agent_id, version=newest.version))
        return pb.GetPublicationResponse(publication=_message(agent_id, row))


async def published_version(tx: Tx, newest: AgentVersion) -> AgentVersion:
    """The version that is published, given the newest one."""
    row = await GatewayStore(tx).publication(newest.id)
    if row is None or row.version == newest.version:
        return newest
    return await AgentStore(tx).load_version(newest.id, row.version)


def _known(agent_id: str) -> str:
    if not can_exist(agent_id):
        raise AgentNotFound("Agent not found.")
    return agent_id


def _message(agent_id: str, row: PublicationRow) -> pb.Publication:
    return pb.Publication(
        agent_id=agent_id,
        version=row.version,
        published_at=rfc3339(row.published_at),
        published_by=row.published_by,
    )
