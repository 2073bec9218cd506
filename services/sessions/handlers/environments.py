"""EnvironmentsService: where sessions run, for the gateway."""

from typing import Any

import orjson

from kit.clock import Clock, rfc3339
from kit.ids import new_id
from kit.postgres import Database
from kit.rpc.server import current_context
from managed_agents.sessions.v1 import environments_pb2, environments_pb2_grpc
from managed_agents.sessions.v1.common_pb2 import PageInfo
from services.sessions.domain.environment import (
    DEFAULT_ENVIRONMENT_ID,
    Environment,
    content_of,
    merge_environment,
    validate_environment,
)
from services.sessions.domain.errors import DefaultEnvironmentStays, EnvironmentNotFound
from services.sessions.handlers.definitions import (
    can_exist,
    once,
    page_limit,
    position_after,
    read_body,
    read_position,
)
from services.sessions.store.environments import EnvironmentStore


class EnvironmentsHandler(environments_pb2_grpc.EnvironmentsServiceServicer):
    """Serves environments out of this service's database.

    `workspace_provider` is the sandbox provider of the settings, which the default environment
    and the published `cloud` type resolve to.
    """

    def __init__(self, database: Database, clock: Clock, workspace_provider: str = "local") -> None:
        self._database = database
        self._clock = clock
        self._workspace_provider = workspace_provider

    async def CreateEnvironment(self, request: Any, context: Any) -> environments_pb2.CreateEnvironmentResponse:
        """Saves an environment."""
        content = validate_environment(read_body(request.definition_json))
        async with self._database.transaction(current_context().workspace_id) as tx:

            async def create() -> environments_pb2.CreateEnvironmentResponse:
                saved = await EnvironmentStore(tx).insert(new_id("env"), content, self._clock.now())
                return environments_pb2.CreateEnvironmentResponse(environment=self._message(saved))

            return await once(tx, request.idempotency, environments_pb2.CreateEnvironmentResponse, create)

    async def GetEnvironment(self, request: Any, context: Any) -> environments_pb2.GetEnvironmentResponse:
        """Reads one."""
        environment_id = _known(request.environment_id)
        async with self._database.read(current_context().workspace_id) as tx:
            found = await EnvironmentStore(tx).load(environment_id)
        return environments_pb2.GetEnvironmentResponse(environment=self._message(found))

    async def UpdateEnvironment(self, request: Any, context: Any) -> environments_pb2.UpdateEnvironmentResponse:
        """Merges a partial definition; an update that changes nothing writes nothing."""
        environment_id = _known(request.environment_id)
        body = read_body(request.patch_json)
        async with self._database.transaction(current_context().workspace_id) as tx:
            store = EnvironmentStore(tx)
            current = await store.load_for_update(environment_id)
            current.require_active()
            content = merge_environment(current, body)
            if content != content_of(current):
                current = await store.save(environment_id, content, self._clock.now())
        return environments_pb2.UpdateEnvironmentResponse(environment=self._message(current))

    async def ListEnvironments(self, request: Any, context: Any) -> environments_pb2.ListEnvironmentsResponse:
        """Pages newest first."""
        limit = page_limit(request.page)
        scope = f"environments?archived={request.include_archived}"
        before = read_position(request.page, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            store = EnvironmentStore(tx)
            if before is None:
                # The listing shows the default environment even where nobody has needed it yet.
                await store.load(DEFAULT_ENVIRONMENT_ID)
            found = await store.page(limit=limit + 1, before=before, include_archived=request.include_archived)
        page = found[:limit]
        cursor = position_after(scope, page[-1].created_at, page[-1].id) if len(found) > limit else ""
        return environments_pb2.ListEnvironmentsResponse(
            environments=[self._message(environment) for environment in page], page_info=PageInfo(next_cursor=cursor)
        )

    async def ArchiveEnvironment(self, request: Any, context: Any) -> environments_pb2.ArchiveEnvironmentResponse:
        """Archives for good."""
        environment_id = _removable(request.environment_id)
        async with self._database.transaction(current_context().workspace_id) as tx:
            archived = await EnvironmentStore(tx).archive(environment_id, self._clock.now())
        return environments_pb2.ArchiveEnvironmentResponse(environment=self._message(archived))

    async def DeleteEnvironment(self, request: Any, context: Any) -> environments_pb2.DeleteEnvironmentResponse:
        """Deletes an unused one."""
        environment_id = _removable(request.environment_id)
        async with self._database.transaction(current_context().workspace_id) as tx:
            store = EnvironmentStore(tx)
            await store.lock_for_deletion(environment_id)
            await store.delete_unused(environment_id)
        return environments_pb2.DeleteEnvironmentResponse()

    def _message(self, environment: Environment) -> environments_pb2.Environment:
        report = environment.report(self._workspace_provider)
        return environments_pb2.Environment(
            id=environment.id,
            name=environment.name,
            description=environment.description,
            metadata_json=environment.metadata.encode(),
            config_json=orjson.dumps(report.config),
            hosting_type=report.hosting_type,
            sandbox_provider=report.sandbox_provider,
            network_json=orjson.dumps(report.network),
            packages_json=b"[]",
            worker_protocol=report.worker_protocol,
            scope=environment.scope,
            created_at=rfc3339(environment.created_at),
            updated_at=rfc3339(environment.updated_at),
            archived_at=rfc3339(environment.archived_at) if environment.archived_at else "",
        )


def _known(environment_id: str) -> str:
    if not can_exist(environment_id):
        raise EnvironmentNotFound("Environment not found.")
    return environment_id


def _removable(environment_id: str) -> str:
    if environment_id == DEFAULT_ENVIRONMENT_ID:
        raise DefaultEnvironmentStays(
            f"{DEFAULT_ENVIRONMENT_ID} serves the sessions that name no environment; it can't be archived or deleted.",
            environment_id=environment_id,
        )
    return _known(environment_id)
