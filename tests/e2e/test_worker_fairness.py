"""Whose work is done next: sessions of an environment take turns, and so do environments."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from cli.data_folder import DataFolder
from kit.ids import new_id
from kit.rpc.client import channel
from kit.rpc.context import CallContext
from kit.testing import await_until
from managed_agents.worker.v1.queue_pb2 import RunWorkItemRequest, RunWorkItemResponse
from managed_agents.worker.v1.queue_pb2_grpc import QueueServiceStub
from services.worker.runner.outside import item_id
from tests.support.api import Api, api
from tests.support.platform import Platform

NOISE = 40


class Queue:
    """Asks for items as a runner does."""

    def __init__(self, stub: Any, client: Api) -> None:
        self._stub = stub
        self._client = client

    async def environment(self) -> str:
        """A further one."""
        body = {"name": "fleet", "hosting_type": "self_hosted"}
        return (await self._client.call("POST", "/v1/environments", body))["id"]

    async def run(self, environment_id: str, session_id: str) -> RunWorkItemResponse:
        """One item to its end."""
        request = RunWorkItemRequest(
            item_id=item_id(new_id("sevt"), 0),
            session_id=session_id,
            environment_id=environment_id,
            kind="exec",
            payload_json=b'{"command":"true"}',
            wait_seconds=60,
        )
        context = CallContext("wrkspc_default", new_id("req"), "test")
        return await self._stub.RunWorkItem(request, context=context, timeout_seconds=60)

    async def until_pending(self, environment_id: str, count: int) -> None:
        """Until so many wait."""

        async def wait() -> bool:
            path = f"/v1/environments/{environment_id}/work-items"
            return (await self._client.call("GET", path))["status_counts"]["pending"] == count

        await await_until(wait, message=f"{count} items wait")

    async def work(self, count: int, **scope: str) -> list[dict[str, Any]]:
        """What one worker is given, one after another; all of it is done."""
        given = []
        for _ in range(count):
            claim = {"worker_id": "any", "wait_ms": 10_000, **scope}
            item = await self._client.call("POST", "/v1/x/worker/claim", claim)
            mark = {"id": item["id"], "worker_id": "any"}
            await self._client.call("POST", "/v1/x/worker/accept", mark)
            result = {"stdout": "", "stderr": "", "exitCode": 0, "timedOut": False}
            await self._client.call("POST", "/v1/x/worker/complete", {**mark, "result": result})
            given.append(item)
        return given


@pytest.fixture
async def queue(platform: Platform):
    folder = DataFolder(platform.data_dir)
    connection = channel(f"unix:{folder.run / 'queue.sock'}", token=folder.internal_token.read_text().strip())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(connection.close)
        yield Queue(connection.stub(QueueServiceStub), await stack.enter_async_context(api(platform.url)))


async def test_a_noisy_session_holds_nobody_up(queue: Queue) -> None:
    environment_id = await queue.environment()
    noise = [asyncio.create_task(queue.run(environment_id, "sess_noisy")) for _ in range(NOISE)]
    await queue.until_pending(environment_id, NOISE)
    quiet = [asyncio.create_task(queue.run(environment_id, f"sess_quiet{number}")) for number in range(3)]
    await queue.until_pending(environment_id, NOISE + 3)
    given = await queue.work(NOISE + 3, environment_id=environment_id)
    await asyncio.gather(*noise, *quiet)
    places = [at for at, item in enumerate(given) if item["session_id"].startswith("sess_quiet")]
    assert len(places) == 3 and max(places) <= 4, places


async def test_a_busy_environment_holds_no_other_up(queue: Queue) -> None:
    busy, calm = await queue.environment(), await queue.environment()
    asked = [asyncio.create_task(queue.run(busy, f"sess_busy{number % 5}")) for number in range(NOISE)]
    await queue.until_pending(busy, NOISE)
    asked += [asyncio.create_task(queue.run(calm, "sess_calm")) for _ in range(4)]
    await queue.until_pending(calm, 4)
    # A caller without a worker key is given work of every environment.
    given = await queue.work(NOISE + 4)
    await asyncio.gather(*asked)
    places = [at for at, item in enumerate(given) if item["environment_id"] == calm]
    assert len(places) == 4 and max(places) <= 9, places
    shares = Counter(item["session_id"] for item in given[:24] if item["environment_id"] == busy)
    assert max(shares.values()) - min(shares.values()) <= 1, shares
