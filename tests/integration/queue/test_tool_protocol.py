"""Claim, accept, heartbeat, complete: the rules of the tool protocol over real Postgres, gRPC and NATS."""

from __future__ import annotations

import asyncio
import json

import pytest

from kit.errors import DomainError
from kit.testing import await_until
from tests.integration.queue.harness import Queue, Replica


async def pending(replica: Replica, *item_ids: str) -> None:
    async def all_there() -> bool:
        there = {item.id: item.status for item in await replica.items(limit=1000)}
        return all(there.get(item_id) == "pending" for item_id in item_ids)

    await await_until(all_there)


async def reason_of(call) -> str:
    with pytest.raises(DomainError) as refused:
        await call
    return refused.value.reason


async def test_an_item_goes_from_the_runner_to_a_worker_and_its_result_back(ground: Queue) -> None:
    replica = await ground.replica()
    running = replica.run("work_1", payload={"command": "echo hi"})

    item = await replica.claim("w1", environment_id="env_1", wait_seconds=10)
    assert item is not None
    assert (item.id, item.kind, json.loads(item.payload_json)) == ("work_1", "exec", {"command": "echo hi"})
    assert (item.status, item.claimed_by, item.attempt) == ("claimed", "w1", 1)
    accepted = await replica.accept("work_1")
    assert accepted.lease_expires_at > item.lease_expires_at
    renewed = await replica.heartbeat("work_1")
    assert renewed.lease_expires_at > accepted.lease_expires_at
    await replica.complete("work_1", result={"stdout": "hi\x00\n", "exitCode": 0})

    answer = await running
    assert json.loads(answer.result_json) == {"stdout": "hi\x00\n", "exitCode": 0}
    assert not answer.failed
    ended = await replica.item("work_1")
    assert ended is not None
    assert (ended.status, ended.claimed_by, ended.end_code) == ("completed", "w1", "")


async def test_a_waiting_claim_is_answered_right_after_the_item_is_put_in(ground: Queue) -> None:
    replica = await ground.replica()
    claiming = asyncio.create_task(replica.claim("w1", wait_seconds=30))
    assert await replica.claim("w2") is None  # by now the first one waits
    running = replica.run("work_1")

    async with asyncio.timeout(5):
        item = await claiming
    assert item is not None
    await replica.complete(item.id, result=1)
    assert (await running).result_json == b"1"


async def test_a_claim_that_does_not_wait_is_answered_at_once_and_empty(ground: Queue) -> None:
    replica = await ground.replica()
    assert await replica.claim("w1", environment_id="env_1") is None
