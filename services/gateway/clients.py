"""One gRPC channel per service, shared by every request of the process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc

from kit.rpc import client as rpc_client
from managed_agents.context.v1.context_pb2 import CallContext
from managed_agents.sessions.v1.agents_pb2_grpc import AgentsServiceStub
from managed_agents.sessions.v1.environments_pb2_grpc import EnvironmentsServiceStub
from managed_agents.sessions.v1.sessions_pb2_grpc import EventsServiceStub, SessionsServiceStub
from managed_agents.worker.v1.runner_pb2_grpc import RunnerServiceStub

__all__ = ["CallContext", "Clients"]


@dataclass(slots=True)
class Clients:
    """The stubs that routes call, and the one way to call them."""

    agents: Any
    environments: Any
    sessions: Any
    events: Any
    runner: Any
    call_seconds: float = 30.0
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    async def ask(self, rpc: Any, request: Any, context: CallContext, *, seconds: float | None = None) -> Any:
        """One unary call: context and deadline go along, a refusal comes back as a DomainError."""
        deadline = self.call_seconds if seconds is None else seconds
        return await rpc_client.call(rpc, request, context=context, seconds=deadline)

    def follow(self, rpc: Any, request: Any, context: CallContext, *, seconds: float | None = None) -> Any:
        """One server stream, to be iterated; errors come as in `ask`."""
        return rpc_client.stream(rpc, request, context=context, seconds=seconds)

    async def close(self) -> None:
        """Close every channel."""
        for channel in self.channels:
            await channel.close()


def connect(*, sessions_address: str, runner_address: str, token: str | None, call_seconds: float) -> Clients:
    """Open the channels; nothing is sent before the first call."""
    sessions = rpc_client.channel(sessions_address, token=token)
    runner = rpc_client.channel(runner_address, token=token)
    return Clients(
        agents=AgentsServiceStub(sessions),
        environments=EnvironmentsServiceStub(sessions),
        sessions=SessionsServiceStub(sessions),
        events=EventsServiceStub(sessions),
        runner=RunnerServiceStub(runner),
        call_seconds=call_seconds,
        channels=[sessions, runner],
    )
