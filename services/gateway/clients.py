"""One gRPC channel per service, shared by every request of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from kit.errors import DomainError, Unavailable
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from managed_agents.sessions.v1.agents_pb2_grpc import AgentsServiceStub
from managed_agents.sessions.v1.duties_pb2_grpc import DutiesServiceStub
from managed_agents.sessions.v1.environments_pb2_grpc import EnvironmentsServiceStub
from managed_agents.sessions.v1.files_pb2_grpc import FilesServiceStub
from managed_agents.sessions.v1.gateway_pb2_grpc import SessionGatewayServiceStub
from managed_agents.sessions.v1.memory_pb2_grpc import MemoryServiceStub
from managed_agents.sessions.v1.outcomes_pb2_grpc import OutcomesServiceStub
from managed_agents.sessions.v1.resources_pb2_grpc import ResourcesServiceStub
from managed_agents.sessions.v1.sessions_pb2_grpc import EventsServiceStub, SessionsServiceStub
from managed_agents.sessions.v1.skills_pb2_grpc import SkillsServiceStub
from managed_agents.sessions.v1.steps_pb2_grpc import StepsServiceStub
from managed_agents.sessions.v1.threads_pb2_grpc import ThreadsServiceStub
from managed_agents.vault.v1.keys_pb2_grpc import KeysServiceStub
from managed_agents.vault.v1.vault_pb2_grpc import SettingsServiceStub
from managed_agents.vault.v1.vaults_pb2_grpc import VaultsServiceStub
from managed_agents.worker.v1.queue_pb2_grpc import QueueServiceStub
from managed_agents.worker.v1.runner_pb2_grpc import RunnerServiceStub
from managed_agents.worker.v1.session_work_pb2_grpc import SessionWorkServiceStub

__all__ = ["CallContext", "Clients", "connect"]


@dataclass(slots=True)
class Clients:
    """The stubs that routes call, and the health of what is behind them.

    A method of a stub takes the request and `context`, `timeout_seconds`, `retry`; a
    refusal comes back as a DomainError.
    """

    agents: Any
    environments: Any
    sessions: Any
    events: Any
    gateway: Any
    memory: Any
    outcomes: Any
    files: Any
    skills: Any
    resources: Any
    threads: Any
    steps: Any
    settings: Any
    keys: Any
    vaults: Any
    runner: Any
    duties: Any
    session_work: Any
    queue: Any
    channels: list[Channel] = field(default_factory=list)
    health: dict[str, Any] = field(default_factory=dict)

    async def check(self, seconds: float) -> dict[str, str]:
        """For each service `ok`, `not_serving` or `unreachable`, asked all at once."""
        states = await asyncio.gather(*(_state(stub, seconds) for stub in self.health.values()))
        return dict(zip(self.health, states, strict=True))

    async def close(self) -> None:
        """Close every channel."""
        for channel in self.channels:
            await channel.close()


class NoQueue:
    """Stands in for the work queue where none is configured."""

    def __getattr__(self, rpc: str) -> Any:
        return self._refuse

    async def _refuse(self, *_arguments: Any, **_options: Any) -> Any:
        raise Unavailable("This installation has no work queue: MANAGED_AGENTS_QUEUE_ADDRESS is not set.")


def connect(addresses: Mapping[str, str], *, token: str | None, call_seconds: float) -> Clients:
    """Channels to the services of `addresses`, by name; nothing is sent before the first call."""
    channels = {
        # Nearly every request of a client asks the sessions service something, and every one of a worker the queue.
        name: Channel(address, token=token, timeout_seconds=call_seconds, exchange=name in ("sessions", "queue"))
        for name, address in addresses.items()
        if address
    }
    sessions, vault, runner = channels["sessions"], channels["vault"], channels["runner"]
    queue = channels.get("queue")
    return Clients(
        agents=sessions.stub(AgentsServiceStub),
        environments=sessions.stub(EnvironmentsServiceStub),
        sessions=sessions.stub(SessionsServiceStub),
        events=sessions.stub(EventsServiceStub),
        gateway=sessions.stub(SessionGatewayServiceStub),
        memory=sessions.stub(MemoryServiceStub),
        outcomes=sessions.stub(OutcomesServiceStub),
        files=sessions.stub(FilesServiceStub),
        skills=sessions.stub(SkillsServiceStub),
        resources=sessions.stub(ResourcesServiceStub),
        threads=sessions.stub(ThreadsServiceStub),
        steps=sessions.stub(StepsServiceStub),
        settings=vault.stub(SettingsServiceStub),
        keys=vault.stub(KeysServiceStub),
        vaults=vault.stub(VaultsServiceStub),
        runner=runner.stub(RunnerServiceStub),
        duties=sessions.stub(DutiesServiceStub),
        session_work=queue.stub(SessionWorkServiceStub) if queue is not None else NoQueue(),
        queue=queue.stub(QueueServiceStub) if queue is not None else NoQueue(),
        channels=list(channels.values()),
        health={name: channel.stub(HealthStub) for name, channel in channels.items()},
    )


async def _state(stub: Any, seconds: float) -> str:
    try:
        answer = await stub.Check(HealthCheckRequest(), context=CallContext(), timeout_seconds=seconds)
    except DomainError:
        return "unreachable"
    return "ok" if answer.status == HealthCheckResponse.SERVING else "not_serving"
