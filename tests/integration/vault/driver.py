"""A vault with its clients, for tests over real gRPC and Postgres."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.nats import Nats
from kit.nats import connect as connect_nats
from kit.rpc.client import channel
from kit.rpc.context import CallContext
from managed_agents.sessions.v1.common_pb2 import Idempotency
from managed_agents.vault.v1 import injections_pb2 as injections
from managed_agents.vault.v1 import vaults_pb2 as pb
from managed_agents.vault.v1.injections_pb2_grpc import InjectionServiceStub
from managed_agents.vault.v1.vaults_pb2_grpc import SealingServiceStub, VaultsServiceStub
from services.vault.app import compose
from services.vault.config import VaultSettings

SECRET = "a secret of enough length"
PERSON = CallContext("wrkspc_default", "req_1", "key_1")
STRANGER = CallContext("wrkspc_other", "req_1", "key_2")
RUNNER = CallContext("wrkspc_default", "req_1", "runner_1")
OPERATOR = CallContext("", "req_1", "operator")


@dataclass
class Vault:
    """The stubs of a running vault, and the calls that tests make again and again."""

    vaults: Any
    injections: Any
    sealing: Any

    async def create(self, name: str = "v", context: CallContext = PERSON, **more: Any) -> pb.Vault:
        request = pb.CreateVaultRequest(definition_json=encoded({"display_name": name, **more}))
        return (await self.vaults.CreateVault(request, context=context)).vault

    async def add(
        self, vault_id: str, body: dict[str, Any], context: CallContext = PERSON, repeat: Idempotency | None = None
    ) -> pb.Credential:
        request = pb.CreateCredentialRequest(vault_id=vault_id, definition_json=encoded(body), idempotency=repeat)
        return (await self.vaults.CreateCredential(request, context=context)).credential

    async def get(self, credential: pb.Credential, context: CallContext = PERSON) -> pb.Credential:
        return (await self.vaults.GetCredential(ids(pb.GetCredentialRequest, credential), context=context)).credential

    async def update(self, credential: pb.Credential, body: dict[str, Any]) -> pb.Credential:
        request = ids(pb.UpdateCredentialRequest, credential)
        request.patch_json = encoded(body)
        return (await self.vaults.UpdateCredential(request, context=PERSON)).credential

    async def rotate(self, credential: pb.Credential, value: str, **more: Any) -> pb.Credential:
        request = ids(pb.RotateCredentialRequest, credential)
        request.rotation_json = encoded({"value": value, **more})
        return (await self.vaults.RotateCredential(request, context=PERSON)).credential

    async def audit(self, vault_id: str, credential_id: str = "", limit: int = 100) -> list[pb.AuditEvent]:
        request = pb.ListAuditEventsRequest(vault_id=vault_id, credential_id=credential_id, limit=limit)
        return list((await self.vaults.ListAuditEvents(request, context=PERSON)).events)

    async def resolve(
        self, *vault_ids: str, context: CallContext = RUNNER, **target: Any
    ) -> injections.ResolveInjectionsResponse:
        request = injections.ResolveInjectionsRequest(session_id="sess_1", vault_ids=vault_ids, **target)
        return await self.injections.ResolveInjections(request, context=context)

    async def refresh(self, credential: pb.Credential, version: int = 1, context: CallContext = RUNNER) -> Any:
        request = injections.RefreshInjectionRequest(
            session_id="sess_1", vault_id=credential.vault_id, credential_id=credential.id, secret_version=version
        )
        return (await self.injections.RefreshInjection(request, context=context)).injection


@asynccontextmanager
async def vault(
    dsn: str, folder: Path, *, name: str = "vault", nats_url: str = "", **settings: Any
) -> AsyncIterator[Vault]:
    """One that listens; several may stand on one database."""
    listen = f"unix:{folder}/{name}.sock"
    if not {"secret_key", "secret_key_file"} & settings.keys():
        settings["secret_key"] = SECRET
    nats: Nats | None = await connect_nats(nats_url, name) if nats_url else None
    service = compose(VaultSettings(database_url=dsn, listen=listen, **settings), {}, nats)
    await service.start()
    client = channel(listen)
    try:
        stubs = (client.stub(kind) for kind in (VaultsServiceStub, InjectionServiceStub, SealingServiceStub))
        yield Vault(*stubs)
    finally:
        await client.close()
        await service.stop()


@asynccontextmanager
async def vault_process(dsn: str, folder: Path, *, failpoints: str = "", **settings: str) -> AsyncIterator[Any]:
    """The vault as a process of its own, which a failpoint may kill; its socket is `process.sock`."""
    environment = {
        "PATH": os.environ["PATH"],
        "MANAGED_AGENTS_DATABASE_URL": dsn,
        "MANAGED_AGENTS_LISTEN": f"unix:{folder}/process.sock",
        "MANAGED_AGENTS_FAILPOINTS": failpoints,
        **{f"MANAGED_AGENTS_{name.upper()}": value for name, value in settings.items()},
    }
    process = _started(environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 20)


def _started(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "services.vault"]
    return subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[3])


def encoded(body: Any) -> bytes:
    """A body."""
    return json.dumps(body).encode()


def ids(kind: Any, credential: pb.Credential) -> Any:
    """A request that names a credential."""
    return kind(vault_id=credential.vault_id, credential_id=credential.id)


def variable(name: str, value: str = "a-secret-value-0001", *hosts: str, unrestricted: bool = False) -> dict[str, Any]:
    """An environment variable for these hosts."""
    policy = {"type": "unrestricted"} if unrestricted else {"type": "limited", "allowed_hosts": list(hosts)}
    auth = {"type": "environment_variable", "secret_name": name, "secret_value": value, "networking": policy}
    return {"display_name": name, "auth": auth}


def bearer(url: str = "https://mcp.example.com/a", token: str = "a-bearer-token-0001") -> dict[str, Any]:
    """A token of an MCP server."""
    return {"auth": {"type": "static_bearer", "mcp_server_url": url, "token": token}}
