"""API keys and worker keys. For administrators; every gateway hears of a change before it is answered."""

from __future__ import annotations

import orjson

from kit.errors import FailedPrecondition
from kit.nats import Nats
from kit.pages import decode_cursor, encode_cursor
from managed_agents.sessions.v1.common_pb2 import PageInfo
from managed_agents.sessions.v1.environments_pb2 import GetEnvironmentRequest
from managed_agents.vault.v1 import keys_pb2 as pb

from ..admission.keyring import CHANGED_SUBJECT, KeyRing
from ..admission.principal import CONFIGURED
from ..operation import Call, Operation, limit, page, text
from ..render.keys import render_api_key, render_configured_key, render_deleted_api_key, render_worker_key
from ..render.splice import collection
from ..schemas.keys import (
    ApiKeyCreate,
    ApiKeyDeleted,
    ApiKeyPage,
    CreatedApiKey,
    IssuedWorkerKey,
    WorkerKey,
    WorkerKeyCreate,
    WorkerKeyPage,
)

TAG = "API keys"
WORKER_TAG = "Worker keys"
PATH = "/v1/api-keys"
WORKER_PATH = "/v1/environments/{environment_id}/worker-keys"
WORKSPACE = text("workspace_id", description="Another workspace's keys, for administrators of the default one.")
PAGING = (limit(default=100, maximum=1000), page())


class ApiKeyReadOnly(FailedPrecondition):
    """The key comes from the configuration and is changed there."""

    reason = "API_KEY_READ_ONLY"


class KeyRoutes:
    """The routes, with whatever must hear of a change, and the key of the configuration."""

    def __init__(self, nats: Nats, ring: KeyRing | None, configured: str | None) -> None:
        self._nats = nats
        self._ring = ring
        self._configured = configured

    async def list_api_keys(self, call: Call) -> bytes:
        """GET /v1/api-keys."""
        named = call.query["workspace_id"]
        scope = f"api-keys {call.context.workspace_id} {named}"
        after_id = _position(call, scope)
        request = pb.ListApiKeysRequest(workspace_id=named, limit=call.query["limit"], after_id=after_id)
        answer = await call.ask(call.clients.keys.ListApiKeys, request)
        items = [render_api_key(key) for key in answer.keys]
        workspace_id = CONFIGURED.workspace_id
        if self._configured and not after_id and (named or call.context.workspace_id) == workspace_id:
            items.insert(0, render_configured_key(CONFIGURED.id, workspace_id, self._configured))
        return collection(items, _next(scope, answer.keys, answer.has_more))

    async def create_api_key(self, call: Call) -> bytes:
        """POST /v1/api-keys. Once this is answered, every gateway that can be reached knows the key."""
        body: ApiKeyCreate = call.body
        request = pb.CreateApiKeyRequest(
            name=body.name,
            role=body.role or "",
            owner_name=body.owner_name or "",
            workspace_id=body.workspace_id or "",
            configured_admin=self._configured is not None,
        )
        answer = await call.ask(call.clients.keys.CreateApiKey, request)
        await self._announce()
        return render_api_key(answer.key, answer.secret_key)

    async def delete_api_key(self, call: Call) -> bytes:
        """DELETE /v1/api-keys/{key_id}."""
        key_id = call.path["key_id"]
        if key_id == CONFIGURED.id:
            raise ApiKeyReadOnly("This key comes from MANAGED_AGENTS_API_KEY; change it there and start anew.")
        request = pb.DeleteApiKeyRequest(
            id=key_id, workspace_id=call.query["workspace_id"], configured_admin=self._configured is not None
        )
        await call.ask(call.clients.keys.DeleteApiKey, request)
        await self._announce()
        return render_deleted_api_key(key_id)

    async def list_worker_keys(self, call: Call) -> bytes:
        """GET /v1/environments/{environment_id}/worker-keys."""
        environment_id = await _environment(call)
        scope = f"worker-keys {environment_id}"
        request = pb.ListWorkerKeysRequest(
            environment_id=environment_id, limit=call.query["limit"], after_id=_position(call, scope)
        )
        answer = await call.ask(call.clients.keys.ListWorkerKeys, request)
        return collection([render_worker_key(key) for key in answer.keys], _next(scope, answer.keys, answer.has_more))

    async def issue_worker_key(self, call: Call) -> bytes:
        """POST /v1/environments/{environment_id}/worker-keys."""
        body: WorkerKeyCreate = call.body
        request = pb.IssueWorkerKeyRequest(
            environment_id=await _environment(call),
            name=body.name,
            expires_at=body.expires_at or "",
            metadata_json=orjson.dumps(body.metadata or {}),
        )
        answer = await call.ask(call.clients.keys.IssueWorkerKey, request)
        await self._announce()
        return render_worker_key(answer.key, answer.secret_key)

    async def revoke_worker_key(self, call: Call) -> bytes:
        """POST /v1/environments/{environment_id}/worker-keys/{key_id}/revoke."""
        request = pb.RevokeWorkerKeyRequest(environment_id=await _environment(call), id=call.path["key_id"])
        answer = await call.ask(call.clients.keys.RevokeWorkerKey, request)
        await self._announce()
        return render_worker_key(answer.key)

    async def _announce(self) -> None:
        if self._ring is not None:
            self._ring.forget()
        # Lost with the bus, this costs the part of a second for which a gateway trusts what it was told.
        await self._nats.publish(CHANGED_SUBJECT, b"")
        await self._nats.flush()

    def operations(self) -> tuple[Operation, ...]:
        """The operations of this module."""
        return (*self._api_keys(), *self._worker_keys())

    def _api_keys(self) -> tuple[Operation, ...]:
        return (
            Operation(
                "GET",
                PATH,
                self.list_api_keys,
                tag=TAG,
                needs="admin",
                summary="List managed and configured API keys, newest first",
                query=(*PAGING, WORKSPACE),
                response=ApiKeyPage,
            ),
            Operation(
                "POST",
                PATH,
                self.create_api_key,
                tag=TAG,
                needs="admin",
                summary="Create a managed API key",
                description="`secret_key` is in this answer only. The first key turns authentication on for every "
                "request, so it must have the role `admin`, which is also the default. Administrators of the default "
                "workspace may name another `workspace_id`, which begins to exist with its first key.",
                body=ApiKeyCreate,
                response=CreatedApiKey,
            ),
            Operation(
                "DELETE",
                f"{PATH}/{{key_id}}",
                self.delete_api_key,
                tag=TAG,
                needs="admin",
                summary="Delete a managed API key",
                description="It is refused from then on. With the last one, authentication is off again.",
                query=(WORKSPACE,),
                response=ApiKeyDeleted,
            ),
        )

    def _worker_keys(self) -> tuple[Operation, ...]:
        return (
            Operation(
                "GET",
                WORKER_PATH,
                self.list_worker_keys,
                tag=WORKER_TAG,
                needs="admin",
                summary="List the worker keys of an environment, newest first",
                query=PAGING,
                response=WorkerKeyPage,
            ),
            Operation(
                "POST",
                WORKER_PATH,
                self.issue_worker_key,
                tag=WORKER_TAG,
                needs="admin",
                summary="Issue a worker key",
                description="`secret_key` is in this answer only. It reaches the work of this environment and nothing "
                "else.",
                body=WorkerKeyCreate,
                response=IssuedWorkerKey,
            ),
            Operation(
                "POST",
                f"{WORKER_PATH}/{{key_id}}/revoke",
                self.revoke_worker_key,
                tag=WORKER_TAG,
                needs="admin",
                summary="Revoke a worker key for good",
                response=WorkerKey,
            ),
        )


async def _environment(call: Call) -> str:
    """The id of the environment in the path, which exists in the caller's workspace."""
    environment_id = call.path["environment_id"]
    await call.ask(call.clients.environments.GetEnvironment, GetEnvironmentRequest(environment_id=environment_id))
    return environment_id


def _position(call: Call, scope: str) -> str:
    cursor = call.query["page"]
    return str(decode_cursor(cursor, scope)["id"]) if cursor else ""


def _next(scope: str, keys: list[pb.ApiKey] | list[pb.WorkerKey], has_more: bool) -> PageInfo:
    return PageInfo(next_cursor=encode_cursor(scope, {"id": keys[-1].id}) if has_more else "")
