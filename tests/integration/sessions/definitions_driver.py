"""Calls the handlers of agents and environments as the gateway does, in JSON instead of messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

import services.sessions
from kit.postgres import Database
from kit.rpc.context import CallContext, use_context
from managed_agents.sessions.v1 import agents_pb2, environments_pb2
from managed_agents.sessions.v1.common_pb2 import Idempotency, Page
from services.sessions.handlers.agents import AgentsHandler
from services.sessions.handlers.environments import EnvironmentsHandler

MIGRATIONS = Path(services.sessions.__file__).parent / "migrations"
HOME = "wrkspc_home"
TOOLSET = {"type": "agent_toolset_20260401"}


class Definitions:
    """Both handlers over one database."""

    def __init__(self, database: Database, clock: Any) -> None:
        self.database = database
        self.agents = AgentsHandler(database, clock)
        self.environments = EnvironmentsHandler(database, clock)

    async def _call(self, method: Any, request: Any, workspace: str, published: bool = False) -> Any:
        with use_context(CallContext(workspace_id=workspace, request_id="req_1", published_contract=published)):
            return await method(request, None)

    async def create_agent(
        self,
        definition: Any = None,
        *,
        workspace: str = HOME,
        published: bool = False,
        key: str = "",
        first: bool = False,
    ) -> agents_pb2.Agent:
        body = {"name": "assistant", "model": "default", "system": "Help.", "tools": [TOOLSET]} | (definition or {})
        encoded = orjson.dumps(body)
        request = agents_pb2.CreateAgentRequest(definition_json=encoded, idempotency=_repeatable(key, encoded, first))
        return (await self._call(self.agents.CreateAgent, request, workspace, published)).agent

    async def agent(self, agent_id: str, version: int = 0, *, workspace: str = HOME) -> agents_pb2.Agent:
        request = agents_pb2.GetAgentRequest(agent_id=agent_id, version=version)
        return (await self._call(self.agents.GetAgent, request, workspace)).agent

    async def update_agent(
        self, agent_id: str, patch: Any, *, workspace: str = HOME, published: bool = False, key: str = ""
    ) -> agents_pb2.Agent:
        encoded = orjson.dumps(patch)
        request = agents_pb2.UpdateAgentRequest(
            agent_id=agent_id, patch_json=encoded, idempotency=_repeatable(key, encoded)
        )
        return (await self._call(self.agents.UpdateAgent, request, workspace, published)).agent

    async def archive_agent(self, agent_id: str, *, workspace: str = HOME) -> agents_pb2.Agent:
        request = agents_pb2.ArchiveAgentRequest(agent_id=agent_id)
        return (await self._call(self.agents.ArchiveAgent, request, workspace)).agent

    async def list_agents(
        self, *, limit: int = 20, cursor: str = "", workspace: str = HOME, **filters: Any
    ) -> agents_pb2.ListAgentsResponse:
        request = agents_pb2.ListAgentsRequest(page=Page(limit=limit, cursor=cursor), **filters)
        return await self._call(self.agents.ListAgents, request, workspace)

    async def agent_versions(
        self, agent_id: str, *, limit: int = 20, cursor: str = "", workspace: str = HOME
    ) -> agents_pb2.ListAgentVersionsResponse:
        request = agents_pb2.ListAgentVersionsRequest(agent_id=agent_id, page=Page(limit=limit, cursor=cursor))
        return await self._call(self.agents.ListAgentVersions, request, workspace)

    async def create_environment(
        self, definition: Any, *, workspace: str = HOME, key: str = ""
    ) -> environments_pb2.Environment:
        encoded = orjson.dumps({"name": "place"} | definition)
        request = environments_pb2.CreateEnvironmentRequest(
            definition_json=encoded, idempotency=_repeatable(key, encoded)
        )
        return (await self._call(self.environments.CreateEnvironment, request, workspace)).environment

    async def environment(self, environment_id: str, *, workspace: str = HOME) -> environments_pb2.Environment:
        request = environments_pb2.GetEnvironmentRequest(environment_id=environment_id)
        return (await self._call(self.environments.GetEnvironment, request, workspace)).environment

    async def update_environment(
        self, environment_id: str, patch: Any, *, workspace: str = HOME
    ) -> environments_pb2.Environment:
        request = environments_pb2.UpdateEnvironmentRequest(
            environment_id=environment_id, patch_json=orjson.dumps(patch)
        )
        return (await self._call(self.environments.UpdateEnvironment, request, workspace)).environment

    async def list_environments(
        self, *, limit: int = 20, cursor: str = "", include_archived: bool = False, workspace: str = HOME
    ) -> environments_pb2.ListEnvironmentsResponse:
        request = environments_pb2.ListEnvironmentsRequest(
            page=Page(limit=limit, cursor=cursor), include_archived=include_archived
        )
        return await self._call(self.environments.ListEnvironments, request, workspace)

    async def archive_environment(self, environment_id: str, *, workspace: str = HOME) -> environments_pb2.Environment:
        request = environments_pb2.ArchiveEnvironmentRequest(environment_id=environment_id)
        return (await self._call(self.environments.ArchiveEnvironment, request, workspace)).environment

    async def delete_environment(self, environment_id: str, *, workspace: str = HOME) -> None:
        request = environments_pb2.DeleteEnvironmentRequest(environment_id=environment_id)
        await self._call(self.environments.DeleteEnvironment, request, workspace)


def document(agent: agents_pb2.Agent) -> dict[str, Any]:
    """The public fields of an agent with its model."""
    return orjson.loads(agent.document_json) | {"model": orjson.loads(agent.model_json)}


def _repeatable(key: str, encoded: bytes, first: bool = False) -> Idempotency:
    return Idempotency(key=key, fingerprint=encoded[:32], keep_seconds=60 if key else 0, first_try=first)


@asynccontextmanager
async def opened(dsn: str, clock: Any) -> AsyncIterator[Definitions]:
    """The handlers over this database, as long as the block runs."""
    database = Database(dsn, "sessions")
    await database.open()
    try:
        yield Definitions(database, clock)
    finally:
        await database.close()
