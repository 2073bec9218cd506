"""A gateway that stops answers the claims that it holds, and what workers had not taken stays where it was."""

from __future__ import annotations

import asyncio
import time

import httpx2
import pytest

from kit.ids import new_id
from kit.rpc.context import CallContext
from kit.testing import await_until
from managed_agents.worker.v1 import queue_pb2 as pb
from tests.integration.gateway.conftest import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.fixture
def gateway(own_vault: Gateway) -> Gateway:
    """One whose hub may be closed."""
    return own_vault


async def test_held_claims_are_answered_with_nothing_at_once(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    assert gateway.hub is not None
    made = (await http.post("/v1/environments", json={"name": "e", "hosting_type": "self_hosted"})).json()
    body = {"environment_id": made["id"], "wait_ms": 30_000}
    claims = [
        asyncio.create_task(http.post("/v1/x/worker/claim", json={"worker_id": f"w{number}", **body}, timeout=40))
        for number in range(5)
    ]
    await await_until(lambda: len(gateway.hub._told_of_closing) == 5, message="the claims are held")
    began = time.monotonic()
    await gateway.hub.close()
    answers = await asyncio.gather(*claims)
    assert [(answer.status_code, answer.content) for answer in answers] == [(204, b"")] * 5
    # Long before the wait of the claims is over.
    assert time.monotonic() - began < 20
    assert not gateway.hub._told_of_closing
    # What comes now is nobody's.
    context = CallContext("wrkspc_default", "req_1", "runner_1")
    request = pb.RunWorkItemRequest(
        item_id=new_id("work"),
        session_id=new_id("sess"),
        environment_id=made["id"],
        kind="exec",
        payload_json=b"{}",
        wait_seconds=30,
    )
    running = asyncio.create_task(gateway.clients.queue.RunWorkItem(request, context=context, timeout_seconds=30))

    async def waits() -> bool:
        stats = pb.GetQueueStatsRequest(environment_id=made["id"])
        return (await gateway.clients.queue.GetQueueStats(stats, context=context)).pending == 1

    await await_until(waits, message="the item waits for a worker")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
