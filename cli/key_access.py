"""Where the command line manages API keys: over the sockets of this machine's platform, or over its HTTP API.

Whoever may read the data folder is the operator, and needs no key: so a lost key, or a first one that was made for
somebody else, locks nobody out. From elsewhere an administrator's key is needed, in MANAGED_AGENTS_API_KEY.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from cli import config
from cli.api import Api
from cli.data_folder import DataFolder
from cli.errors import CommandFailed
from kit.errors import DomainError
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from managed_agents.vault.v1 import keys_pb2 as pb
from managed_agents.vault.v1.keys_pb2_grpc import KeysServiceStub

OPERATOR = CallContext("wrkspc_default", principal_id="operator", role="admin")
PAGE = 1_000

Key = dict[str, Any]


class Access(Protocol):
    """Either way."""

    async def create(self, name: str, role: str, owner: str, workspace: str) -> Key:
        """Make a key; the answer has its secret."""
        ...

    async def keys(self, workspace: str) -> list[Key]:
        """All keys of a workspace, newest first."""
        ...

    async def revoke(self, key_id: str, workspace: str) -> None:
        """Delete a key."""
        ...


@asynccontextmanager
async def open_access(url: str | None, data_dir: Path) -> AsyncIterator[Access]:
    """The platform at `url`, or the one that runs in this data folder."""
    if url:
        async with Api(url.rstrip("/"), config.api_key()) as api:
            yield OverHttp(api)
        return
    folder = DataFolder(data_dir)
    if folder.holder() is None:
        raise CommandFailed(
            f"No platform runs in {folder.path}. Start it with `managed-agents up`, name its folder with --data-dir, "
            "or its address with --url."
        )
    channel = Channel(f"unix:{folder.run / 'vault.sock'}", token=folder.internal_token.read_text().strip())
    try:
        yield OverSocket(channel.stub(KeysServiceStub))
    except DomainError as error:
        raise CommandFailed(str(error.message)) from error
    finally:
        await channel.close()


class OverSocket:
    """The vault of this machine's platform."""

    def __init__(self, vault: Any) -> None:
        self._vault = vault
        self._configured = config.api_key() is not None

    async def create(self, name: str, role: str, owner: str, workspace: str) -> Key:
        request = pb.CreateApiKeyRequest(
            name=name, role=role, owner_name=owner, workspace_id=workspace, configured_admin=self._configured
        )
        made = await self._vault.CreateApiKey(request, context=OPERATOR)
        return _shown(made.key) | {"secret_key": made.secret_key}

    async def keys(self, workspace: str) -> list[Key]:
        found: list[Key] = []
        while True:
            after = found[-1]["id"] if found else ""
            request = pb.ListApiKeysRequest(workspace_id=workspace, limit=PAGE, after_id=after)
            answer = await self._vault.ListApiKeys(request, context=OPERATOR)
            found += [_shown(key) for key in answer.keys]
            if not answer.has_more:
                return found

    async def revoke(self, key_id: str, workspace: str) -> None:
        request = pb.DeleteApiKeyRequest(id=key_id, workspace_id=workspace, configured_admin=self._configured)
        await self._vault.DeleteApiKey(request, context=OPERATOR)


class OverHttp:
    """A platform anywhere."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def create(self, name: str, role: str, owner: str, workspace: str) -> Key:
        named = {"role": role, "owner_name": owner, "workspace_id": workspace}
        return await self._api.post(
            "/v1/api-keys", {"name": name} | {key: value for key, value in named.items() if value}
        )

    async def keys(self, workspace: str) -> list[Key]:
        query = {"limit": str(PAGE)} | ({"workspace_id": workspace} if workspace else {})
        found: list[Key] = []
        while True:
            answer = await self._api.get("/v1/api-keys", **query)
            found += answer["data"]
            if not answer["next_page"]:
                return found
            query["page"] = answer["next_page"]

    async def revoke(self, key_id: str, workspace: str) -> None:
        await self._api.delete(f"/v1/api-keys/{key_id}", **({"workspace_id": workspace} if workspace else {}))


def _shown(key: pb.ApiKey) -> Key:
    return {
        "id": key.id,
        "name": key.name,
        "key_prefix": key.key_prefix,
        "role": key.role,
        "owner_name": key.owner_name or None,
        "workspace_id": key.workspace_id,
        "created_at": key.created_at,
        "last_used_at": key.last_used_at or None,
    }
