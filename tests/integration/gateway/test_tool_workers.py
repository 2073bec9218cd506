"""The tool protocol over HTTP: keys in both places, statuses, bodies, and what a held claim costs nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from kit.rpc.context import CallContext
from kit.testing import await_until
from managed_agents.worker.v1 import queue_pb2 as pb
from tests.integration.gateway.conftest import Gateway

CLAIM, ACCEPT, HEARTBEAT, COMPLETE = (f"/v1/x/worker/{name}" for name in ("claim", "accept", "heartbeat", "complete"))


class Ground:
    """A gateway with an environment of the tool protocol, and what runners say to the queue."""

    def __init__(self, gateway: Gateway, http: httpx2.AsyncClient, environment_id: str) -> None:
        self.gateway, self.http, self.environment_id = gateway, http, environment_id

    def run(self, item_id: str, environment_id: str = "", **fields: Any) -> asyncio.Task[Any]:
        request = {
            "item_id": item_id,
            "session_id": "sess_1",
            "environment_id": environment_id or self.environment_id,
            "kind": "exec",
            "payload_json": b'{"command":"true"}',
            "wait_seconds": 30.0,
        } | fields
        context = CallContext("wrkspc_default", "req_1", "runner_1")
        rpc = self.gateway.clients.queue.RunWorkItem
        return asyncio.create_task(rpc(pb.RunWorkItemRequest(**request), context=context, timeout_seconds=60.0))

    async def post(self, path: str, body: Any, key: str = "") -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        answer = await self.http.post(path, json=body, headers=headers)
        return answer.status_code, answer.json() if answer.content else None

    async def claim(self, key: str = "", **fields: Any) -> tuple[int, Any]:
        return await self.post(CLAIM, {"worker_id": "w1", **fields}, key)

    async def worker_key(self, environment_id: str = "", key: str = "") -> str:
        path = f"/v1/environments/{environment_id or self.environment_id}/worker-keys"
        status, made = await self.post(path, {"name": "w"}, key)
        assert status == 200, made
        return made["secret_key"]

    async def environment(self, **fields: Any) -> str:
        status, made = await self.post("/v1/environments", {"hosting_type": "self_hosted", **fields})
        assert status == 200, made
        return made["id"]


@pytest.fixture
async def ground(gateway: Gateway, http: httpx2.AsyncClient) -> AsyncIterator[Ground]:
    ground = Ground(gateway, http, "")
    ground.environment_id = await ground.environment(name="machines")
    yield ground


async def test_an_item_is_claimed_accepted_renewed_and_reported(ground: Ground) -> None:
    running = ground.run("work_1")
    status, item = await ground.claim(wait_ms=20_000)
    assert status == 200
    assert {name: item[name] for name in ("id", "session_id", "environment_id", "kind", "payload", "status")} == {
        "id": "work_1",
        "session_id": "sess_1",
        "environment_id": ground.environment_id,
        "kind": "exec",
        "payload": {"command": "true"},
        "status": "claimed",
    }
    assert (item["claimed_by"], item["attempt"]) == ("w1", 1)
    assert item["claimed_at"] < item["lease_expires_at"]

    holder = {"id": "work_1", "worker_id": "w1"}
    status, accepted = await ground.post(ACCEPT, holder)
    assert (status, accepted["ok"]) == (200, True)
    assert accepted["lease_expires_at"] >= item["lease_expires_at"]
    assert (await ground.post(HEARTBEAT, holder))[0] == 200
    report = {**holder, "result": {"stdout": "a\x00b", "stderr": "", "exitCode": 0, "timedOut": False}}
    assert await ground.post(COMPLETE, report) == (200, {"ok": True})
    assert await ground.post(COMPLETE, report) == (200, {"ok": True})
    assert json.loads((await running).result_json) == report["result"]
