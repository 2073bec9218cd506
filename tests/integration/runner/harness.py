"""A real runner over a real sessions service; only the model, vault and (where a test says so) the tools are played."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from kit.config import reveal
from kit.ids import new_id
from kit.lifecycle import Service
from kit.rpc.client import channel
from kit.rpc.context import CallContext
from kit.rpc.server import Server
from kit.testing import await_until
from managed_agents.sessions.v1 import agents_pb2, sessions_pb2
from managed_agents.vault.v1.injections_pb2_grpc import add_InjectionServiceServicer_to_server
from managed_agents.vault.v1.vault_pb2_grpc import add_SettingsServiceServicer_to_server
from services.sessions.app import build
from services.sessions.config import Settings
from services.worker.runner.app import Runner, compose
from services.worker.runner.config import RunnerSettings
from services.worker.runner.models.base import ModelAccess
from services.worker.runner.models.demo import DemoModel
from tests.integration.runner.played import PlayedInjections, PlayedSandboxes, PlayedVault
from tests.integration.sessions.turn_driver import WORKSPACE, Replica, user


class World:
    """What a test drives."""

    def __init__(self, clients: Replica, folder: Path, nats_url: str, sessions: Settings) -> None:
        self.clients = clients
        self.folder = folder
        self.nats_url = nats_url
        self.sessions_address = sessions.listen
        self._sessions = sessions
        self._service: Service | None = None
        self.vault = PlayedVault()
        self.injections = PlayedInjections()
        self.vault_address = f"unix:{folder}/vault.sock"
        self.database_url = reveal(sessions.database_url)

    async def start_sessions(self) -> None:
        """A replica of the sessions service, at the one address."""
        self._service = await build(self._sessions)
        await self._service.start()

    async def stop_sessions(self) -> None:
        """Stop it in order."""
        if self._service is not None:
            await self._service.stop()

    @asynccontextmanager
    async def runner(self, model: Any = None, sandboxes: Any = None, **options: Any) -> AsyncIterator[Runner]:
        """A running runner in this process, stopped in order afterwards."""
        settings = RunnerSettings(
            sessions_address=self.sessions_address,
            vault_address=self.vault_address,
            nats_url=self.nats_url,
            listen=f"unix:{self.folder}/{new_id('r')[-8:]}.sock",
            data_dir=self.folder,
            model_retry_seconds=0.02,
            # As the service leases turns: a runner that renews more seldom than that loses them on a busy machine.
            **{"lease_seconds": self._sessions.lease_seconds, "runner_drain_seconds": 1.0, **options},
        )

        def create(access: ModelAccess) -> Any:
            return model or DemoModel(access)

        runner = Runner(settings, create, sandboxes or PlayedSandboxes())
        service = compose(settings, runner)
        await service.start()
        try:
            yield runner
        finally:
            await service.stop()

    @asynccontextmanager
    async def runner_process(
        self, failpoints: str = "", **environment: str
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """A runner as a process of its own, with the demo model; killed afterwards if it still lives."""
        variables = {
            "SESSIONS_ADDRESS": self.sessions_address,
            "VAULT_ADDRESS": self.vault_address,
            "NATS_URL": self.nats_url,
            "LISTEN": f"unix:{self.folder}/{new_id('r')[-8:]}.sock",
            "DATA_DIR": str(self.folder / "data"),
            "FAILPOINTS": failpoints,
            "RUNNER_DRAIN_SECONDS": "1",
            "LEASE_SECONDS": str(self._sessions.lease_seconds),
            **environment,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.worker.runner",
            env=os.environ | {f"MANAGED_AGENTS_{name}": value for name, value in variables.items()},
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def session(self, *tools: Any, system: str | None = "Be brief.", **fields: Any) -> str:
        """A session of an agent with these tools and further fields."""
        agent = {"name": "tester", "model": "default", "system": system, "tools": list(tools)} | fields
        body = {"agent": await self.agent(agent), "environment_id": "env_default"}
        request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps(body))
        return (await self.clients.sessions.CreateSession(request)).session.id

    async def agent(self, definition: dict[str, Any]) -> str:
        """A saved agent."""
        request = agents_pb2.CreateAgentRequest(definition_json=orjson.dumps(definition))
        return (await self.clients.agents.CreateAgent(request)).agent.id

    async def say(self, session_id: str, *texts: str) -> None:
        """Messages of a person, in one request."""
        await self.clients.send(session_id, *(user(text) for text in texts))

    async def until(self, session_id: str, *statuses: str, seconds: float = 30) -> list[dict[str, Any]]:
        """The log once the session has one of the statuses."""
        wanted = statuses or ("idle",)

        async def reached() -> bool:
            return await self.clients.status(session_id) in wanted

        await await_until(reached, timeout=seconds, message=f"{session_id} is {' or '.join(wanted)}")
        return await self.clients.log(session_id)

    async def until_logged(self, session_id: str, event_type: str, count: int = 1) -> list[dict[str, Any]]:
        """The log once it has so many events of a type."""

        async def there() -> bool:
            log = await self.clients.log(session_id)
            return sum(event["type"] == event_type for event in log) >= count

        await await_until(there, timeout=30, message=f"{count} {event_type} in {session_id}")
        return await self.clients.log(session_id)


@asynccontextmanager
async def world(dsn: str, nats_url: str, **settings: Any) -> AsyncIterator[World]:
    """Sessions and vault, and no runner yet."""
    with tempfile.TemporaryDirectory(prefix="ma-") as name:
        listen = f"unix:{name}/sessions.sock"
        sessions = Settings(database_url=dsn, nats_url=nats_url, listen=listen, **{"sweep_seconds": 0.1, **settings})
        connection = channel(listen)
        clients = Replica(connection, CallContext(workspace_id=WORKSPACE, principal_id="test"))
        made = World(clients, Path(name), nats_url, sessions)
        server = Server(made.vault_address, service="vault")
        server.add(add_SettingsServiceServicer_to_server, made.vault)
        server.add(add_InjectionServiceServicer_to_server, made.injections)
        await server.start()
        await made.start_sessions()
        try:
            yield made
        finally:
            await made.stop_sessions()
            await connection.close()
            await server.stop()


def types(log: list[dict[str, Any]]) -> list[str]:
    """The types of a log."""
    return [event["type"] for event in log]


def of(log: list[dict[str, Any]], event_type: str) -> list[dict[str, Any]]:
    """The events of one type."""
    return [event for event in log if event["type"] == event_type]


def text_of(event: dict[str, Any]) -> str:
    """The text of an event's content."""
    return "".join(block["text"] for block in event["content"])
