"""Resources of sessions: listed, attached, changed, detached.

Each write is one transaction under the session's lock, and raises the session's revision: runners that hold a turn of
the session hear of it with their next append.
"""

from typing import Any

import orjson

from kit.clock import rfc3339
from kit.pages import InvalidCursor, decode_cursor, encode_cursor
from kit.rpc.context import current_context
from managed_agents.sessions.v1 import resources_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import PageInfo
from managed_agents.sessions.v1.resources_pb2_grpc import ResourcesServiceServicer
from services.sessions.domain import resources as rules
from services.sessions.domain.mount_paths import check_free
from services.sessions.domain.resource_errors import ResourceNotFound
from services.sessions.domain.resource_moves import change_resources
from services.sessions.domain.self_hosted import refuse_resource
from services.sessions.domain.session_state import SessionState
from services.sessions.handlers.definitions import can_be_session, can_exist, once, page_limit, read_body
from services.sessions.handlers.resource_admission import admit_resources
from services.sessions.operations.core import Operations, Unit, new_event_id, not_found
from services.sessions.operations.repository_tokens import RepositoryTokens
from services.sessions.store.resources import ResourceStore
from services.sessions.store.sessions import Sessions

Resource = dict[str, Any]


class ResourcesHandlers(ResourcesServiceServicer):
    """ResourcesService."""

    def __init__(self, operations: Operations, tokens: RepositoryTokens) -> None:
        self._operations = operations
        self._tokens = tokens

    async def ListResources(self, request: pb.ListResourcesRequest, context: Any) -> pb.ListResourcesResponse:
        """One page in position order; all of them where no limit is given."""
        resources = await self._read(request.session_id)
        scope = f"resources:{request.session_id}"
        start = _position(request.page.cursor, scope, resources)
        limit = page_limit(request.page) if request.page.limit else len(resources)
        shown = resources[start : start + limit]
        info = PageInfo()
        if start + len(shown) < len(resources):
            info.next_cursor = encode_cursor(scope, {"after": shown[-1]["id"]})
        return pb.ListResourcesResponse(resources_json=orjson.dumps(shown), page_info=info)

    async def GetResource(self, request: pb.GetResourceRequest, context: Any) -> pb.GetResourceResponse:
        """One instance."""
        resources = await self._read(request.session_id)
        return pb.GetResourceResponse(resource_json=orjson.dumps(_present(resources, request.resource_id)))

    async def AttachResource(self, request: pb.AttachResourceRequest, context: Any) -> pb.AttachResourceResponse:
        """One more instance, after all that is there."""
        call = current_context()
        body = read_body(request.definition_json)
        wanted = rules.read_later_resource(body, published=call.published_contract)
        async with self._tokens.until_committed() as keeping, self._operations.unit(call.workspace_id) as unit:

            async def attach() -> pb.AttachResourceResponse:
                state, resources = await _lock(unit, request.session_id)
                moved = change_resources(state, unit.now, new_event_id)
                refuse_resource(*await _environment(unit, state), wanted)
                rules.check_numbers([wanted], resources)
                check_free(wanted.sandbox_path, rules.taken_paths(resources), "mount_path")
                admitted = await admit_resources(unit.tx, state.id, [wanted], unit.now, resources)
                await keeping.put(state.id, admitted.tokens)
                await _write(unit, state, [*resources, *admitted.resources])
                await unit.apply(moved)
                return pb.AttachResourceResponse(resource_json=orjson.dumps(admitted.resources[0]))

            return await once(unit.tx, request.idempotency, pb.AttachResourceResponse, attach)

    async def RotateResourceToken(
        self, request: pb.RotateResourceTokenRequest, context: Any
    ) -> pb.RotateResourceTokenResponse:
        """The same instance with another token."""
        token = rules.read_rotation(read_body(request.patch_json))
        async with self._operations.unit(current_context().workspace_id) as unit:
            state, resources = await _lock(unit, request.session_id)
            resource = _present(resources, request.resource_id)
            rules.require_token(resource)
            moved = change_resources(state, unit.now, new_event_id)
            resource |= {"authenticated": True, "updated_at": rfc3339(unit.now)}
            await _write(unit, state, resources)
            await unit.apply(moved)
            # Last, so that a refusal has not replaced the token; of a commit that fails nothing is missing.
            await self._tokens.put(state.id, {resource["id"]: token})
        return pb.RotateResourceTokenResponse(resource_json=orjson.dumps(resource))

    async def DetachResource(self, request: pb.DetachResourceRequest, context: Any) -> pb.DetachResourceResponse:
        """Takes an instance off the session; its copy of a file goes with it."""
        async with self._operations.unit(current_context().workspace_id) as unit:
            state, resources = await _lock(unit, request.session_id)
            resource = _present(resources, request.resource_id)
            rules.require_detachable(resource)
            moved = change_resources(state, unit.now, new_event_id)
            if resource["type"] == rules.FILE:
                await ResourceStore(unit.tx).archive_copy(state.id, resource["session_file_id"], unit.now)
            await _write(unit, state, [each for each in resources if each is not resource])
            await unit.apply(moved)
        if resource.get("authenticated"):
            await self._tokens.drop([resource["id"]])
        return pb.DetachResourceResponse()

    async def ReadAttachments(self, request: pb.ReadAttachmentsRequest, context: Any) -> pb.ReadAttachmentsResponse:
        """What a grant would tell now."""
        async with self._operations.database.read(current_context().workspace_id) as tx:
            found = await ResourceStore(tx).read(request.session_id)
        if found is None:
            raise not_found(request.session_id)
        return pb.ReadAttachmentsResponse(resources_json=found[0].encode(), session_revision=found[1])

    async def _read(self, session_id: str) -> list[Resource]:
        if not can_be_session(session_id):
            raise not_found(session_id)
        async with self._operations.database.read(current_context().workspace_id) as tx:
            found = await ResourceStore(tx).read(session_id)
        if found is None:
            raise not_found(session_id)
        return orjson.loads(found[0])


async def _lock(unit: Unit, session_id: str) -> tuple[SessionState, list[Resource]]:
    if not can_be_session(session_id):
        raise not_found(session_id)
    state = await unit.lock(session_id)
    found = await ResourceStore(unit.tx).read(session_id)
    assert found is not None
    return state, orjson.loads(found[0])


async def _environment(unit: Unit, state: SessionState) -> tuple[str, str | None]:
    """The session's sandbox provider, and how workers get their work where it has any."""
    record = await Sessions(unit.tx).get(state.id)
    assert record is not None
    environment = orjson.loads(record.row.environment)
    return environment.get("sandbox_provider") or "", environment.get("worker_protocol")


async def _write(unit: Unit, state: SessionState, resources: list[Resource]) -> None:
    await ResourceStore(unit.tx).write(state.id, orjson.dumps(resources).decode())


def _present(resources: list[Resource], resource_id: str) -> Resource:
    found = rules.find(resources, resource_id) if can_exist(resource_id) else None
    if found is None:
        raise ResourceNotFound(f"Resource not found: {resource_id}", resource_id=resource_id)
    return found


def _position(cursor: str, scope: str, resources: list[Resource]) -> int:
    """Where a page begins. Instances keep their order, so the one before it is enough to find it."""
    if not cursor:
        return 0
    position = decode_cursor(cursor, scope)
    ids = [each["id"] for each in resources]
    after = position.get("after") if isinstance(position, dict) else None
    if not isinstance(after, str):
        raise InvalidCursor("The page cursor was not issued by this listing.", field="page")
    if after in ids:
        return ids.index(after) + 1
    # It was detached meanwhile: ids are in the order in which instances came.
    return sum(each <= after for each in ids)
