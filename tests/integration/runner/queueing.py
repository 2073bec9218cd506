"""A work queue for tests of the runner: items are done at once in a folder, or end as a test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from kit.errors import Aborted
from kit.rpc.context import current_context
from kit.rpc.server import Server
from managed_agents.sessions.v1 import environments_pb2, sessions_pb2
from managed_agents.worker.v1 import queue_pb2 as pb
from managed_agents.worker.v1.queue_pb2_grpc import QueueServiceServicer, add_QueueServiceServicer_to_server
from tests.integration.runner.harness import World
from tests.integration.runner.played import TOOLSET
from tests.support.performing import perform

# Takes an item's place: answers, raises, or waits.
Play = Callable[[pb.RunWorkItemRequest], Awaitable[pb.RunWorkItemResponse]]


class QueueTimeout(Aborted):
    """As the queue says it."""

    reason = "WORK_QUEUE_TIMEOUT"


class OutcomeUnknown(Aborted):
    """As the queue says it."""

    reason = "WORK_OUTCOME_UNKNOWN"


class LeaseLost(Aborted):
    """As the queue says it."""

    reason = "WORK_LEASE_LOST"


@dataclass
class PlayedQueue(QueueServiceServicer):
    """Keeps to the contract where a test can see it: one item for one id, whatever is asked again."""

    folder: Path
    play: Play | None = None
    asked: list[pb.RunWorkItemRequest] = field(default_factory=list)
    workspaces: set[str] = field(default_factory=set)
    stopped: list[pb.StopSessionWorkRequest] = field(default_factory=list)
    ended: dict[str, pb.RunWorkItemResponse] = field(default_factory=dict)

    @property
    def kinds(self) -> list[str]:
        """Of the items, in order."""
        return [each.kind for each in self.asked]

    async def RunWorkItem(self, request: Any, context: Any) -> pb.RunWorkItemResponse:
        """Done in the folder, once."""
        self.workspaces.add(current_context().workspace_id)
        self.asked.append(request)
        if self.play is not None:
            return await self.play(request)
        if request.item_id not in self.ended:
            result, failed = await perform(request.kind, orjson.loads(request.payload_json), self.folder)
            self.ended[request.item_id] = pb.RunWorkItemResponse(result_json=orjson.dumps(result), failed=failed)
        return self.ended[request.item_id]

    async def StopSessionWork(self, request: Any, context: Any) -> pb.StopSessionWorkResponse:
        """Noted."""
        self.stopped.append(request)
        return pb.StopSessionWorkResponse()

    @asynccontextmanager
    async def served(self, address: str) -> AsyncIterator[None]:
        """At the address, until the end."""
        server = Server(address, service="queue", grace_seconds=0.1)
        server.add(add_QueueServiceServicer_to_server, self)
        await server.start()
        try:
            yield
        finally:
            await server.stop()


async def hosted_session(platform: World, *, tools: Any = (TOOLSET,), **environment: Any) -> str:
    """A session in a self-hosted environment."""
    definition = {"name": "fleet", "hosting_type": "self_hosted"} | environment
    request = environments_pb2.CreateEnvironmentRequest(definition_json=orjson.dumps(definition))
    made = (await platform.clients.environments.CreateEnvironment(request)).environment
    agent = {"name": "tester", "model": "default", "system": "Be brief.", "tools": list(tools)}
    body = {"agent": await platform.agent(agent), "environment_id": made.id}
    create = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps(body))
    return (await platform.clients.sessions.CreateSession(create)).session.id


async def never(_request: Any) -> Any:
    """An item that no worker ends."""
    await asyncio.Event().wait()
