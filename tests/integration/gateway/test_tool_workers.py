"""The tool protocol over HTTP: keys in both places, statuses, bodies, and what a held claim costs nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from kit.ids import new_id
from kit.rpc.context import CallContext
from kit.testing import await_until
from managed_agents.worker.v1 import queue_pb2 as pb
from services.gateway.routes import worker_protocols
from tests.integration.gateway.conftest import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="package")

CLAIM, ACCEPT, HEARTBEAT, COMPLETE = (f"/v1/x/worker/{name}" for name in ("claim", "accept", "heartbeat", "complete"))


class Ground:
    """A gateway with an environment of the tool protocol, and what runners say to the queue."""

    def __init__(self, gateway: Gateway, http: httpx2.AsyncClient, environment_id: str) -> None:
        self.gateway, self.http, self.environment_id = gateway, http, environment_id
        self._suffix = new_id("own")
        self._running: list[asyncio.Task[Any]] = []

    def named(self, item_id: str) -> str:
        """An id of this test's own: those of items are the runner's, and no test has those of another."""
        return f"{item_id}_{self._suffix}"

    async def close(self) -> None:
        """End what runners still wait for, since the queue goes on."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def run(self, item_id: str, environment_id: str = "", **fields: Any) -> asyncio.Task[Any]:
        request = {
            "item_id": item_id,
            "session_id": self.named("sess_1"),
            "environment_id": environment_id or self.environment_id,
            "kind": "exec",
            "payload_json": b'{"command":"true"}',
            "wait_seconds": 30.0,
        } | fields
        context = CallContext(self.gateway.workspace_id, "req_1", "runner_1")
        rpc = self.gateway.clients.queue.RunWorkItem
        running = asyncio.create_task(rpc(pb.RunWorkItemRequest(**request), context=context, timeout_seconds=60.0))
        self._running.append(running)
        return running

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

    async def pending(self, environment_id: str) -> int:
        """How many items wait there."""
        stats = await self.gateway.clients.queue.GetQueueStats(
            pb.GetQueueStatsRequest(environment_id=environment_id),
            context=CallContext(self.gateway.workspace_id, "req_1", "test"),
        )
        return stats.pending

    async def environment(self, **fields: Any) -> str:
        status, made = await self.post("/v1/environments", {"hosting_type": "self_hosted", **fields})
        assert status == 200, made
        return made["id"]


@pytest_asyncio.fixture(loop_scope="package")
async def ground(gateway: Gateway, http: httpx2.AsyncClient) -> AsyncIterator[Ground]:
    async with _furnished(gateway, http) as ground:
        yield ground


@pytest_asyncio.fixture(loop_scope="package")
async def fresh_ground(fresh_gateway: Gateway, fresh_http: httpx2.AsyncClient) -> AsyncIterator[Ground]:
    """One where keys may turn authentication on."""
    async with _furnished(fresh_gateway, fresh_http) as ground:
        yield ground


@asynccontextmanager
async def _furnished(gateway: Gateway, http: httpx2.AsyncClient) -> AsyncIterator[Ground]:
    ground = Ground(gateway, http, "")
    ground.environment_id = await ground.environment(name="machines")
    try:
        yield ground
    finally:
        await ground.close()


async def test_an_item_is_claimed_accepted_renewed_and_reported(ground: Ground) -> None:
    running = ground.run(ground.named("work_1"))
    status, item = await ground.claim(wait_ms=20_000)
    assert status == 200
    assert {name: item[name] for name in ("id", "session_id", "environment_id", "kind", "payload", "status")} == {
        "id": ground.named("work_1"),
        "session_id": ground.named("sess_1"),
        "environment_id": ground.environment_id,
        "kind": "exec",
        "payload": {"command": "true"},
        "status": "claimed",
    }
    assert (item["claimed_by"], item["attempt"]) == ("w1", 1)
    assert item["claimed_at"] < item["lease_expires_at"]

    holder = {"id": ground.named("work_1"), "worker_id": "w1"}
    status, accepted = await ground.post(ACCEPT, holder)
    assert (status, accepted["ok"]) == (200, True)
    assert accepted["lease_expires_at"] >= item["lease_expires_at"]
    assert (await ground.post(HEARTBEAT, holder))[0] == 200
    report = {**holder, "result": {"stdout": "a\x00b", "stderr": "", "exitCode": 0, "timedOut": False}}
    assert await ground.post(COMPLETE, report) == (200, {"ok": True})
    assert await ground.post(COMPLETE, report) == (200, {"ok": True})
    assert json.loads((await running).result_json) == report["result"]


async def test_conflicts_tell_whether_the_lease_is_lost_or_somebody_else_is_at_work(ground: Ground) -> None:
    running = ground.run(ground.named("work_1"))
    assert (await ground.claim(wait_ms=20_000))[0] == 200
    for path in (ACCEPT, HEARTBEAT, COMPLETE):
        more = {"result": None} if path == COMPLETE else {}
        status, body = await ground.post(path, {"id": ground.named("work_1"), "worker_id": "w2", **more})
        assert (status, body["error"]["type"]) == (409, "conflict")
        assert "code" not in body["error"]
        status, body = await ground.post(path, {"id": "work_unknown", "worker_id": "w1", **more})
        assert (status, body["error"]["code"]) == (404, "work_item_not_found")
    answer = await ground.http.post(ACCEPT, json={"id": ground.named("work_1"), "worker_id": "w2"})
    assert answer.headers["x-should-retry"] == "false"

    stop = pb.StopSessionWorkRequest(session_id=ground.named("sess_1"))
    context = CallContext(ground.gateway.workspace_id, "req_1", "runner_1")
    assert (await ground.gateway.clients.queue.StopSessionWork(stop, context=context)).stopped == 1
    for path in (ACCEPT, HEARTBEAT):
        status, body = await ground.post(path, {"id": ground.named("work_1"), "worker_id": "w1"})
        assert (status, body["error"]["code"]) == (409, "work_lease_lost")
    report = {"id": ground.named("work_1"), "worker_id": "w1", "result": 1, "failed": True}
    assert (await ground.post(COMPLETE, report))[0] == 200
    assert (await running).failed


async def test_nothing_to_do_is_204_without_a_body(ground: Ground) -> None:
    answer = await ground.http.post(CLAIM, json={"worker_id": "w1", "wait_ms": 20})
    assert (answer.status_code, answer.content) == (204, b"")
    assert "request-id" in answer.headers


@pytest.mark.parametrize("where", ["header", "body"])
async def test_a_worker_key_scopes_all_it_does_to_its_environment(ground: Ground, where: str) -> None:
    other = await ground.environment(name="others")
    runs = [ground.run(ground.named("work_ours")), ground.run(ground.named("work_theirs"), other)]
    for environment_id in (ground.environment_id, other):
        await await_until(lambda each=environment_id: ground.pending(each))
    key = await ground.worker_key()
    header, body = (key, {}) if where == "header" else ("", {"environment_key": key})

    status, refused = await ground.claim(header, environment_id=other, **body)
    assert (status, refused["error"]["code"]) == (400, "work_environment_refused")
    status, item = await ground.claim(header, **body)
    assert (status, item["id"]) == (200, ground.named("work_ours"))
    assert await ground.claim(header, **body) == (204, None)
    status, theirs = await ground.claim()
    assert theirs["id"] == ground.named("work_theirs")
    for path in (ACCEPT, HEARTBEAT, COMPLETE):
        more = body | ({"result": None} if path == COMPLETE else {})
        other = {"id": ground.named("work_theirs"), "worker_id": "w1", **more}
        status, unknown = await ground.post(path, other, header)
        assert (status, unknown["error"]["code"]) == (404, "work_item_not_found")
        assert (await ground.post(path, {"id": ground.named("work_ours"), "worker_id": "w1", **more}, header))[0] == 200
    for run in runs:
        run.cancel()


async def test_a_key_that_does_not_hold_is_refused_before_anything_changes_hands(ground: Ground) -> None:
    running = ground.run(ground.named("work_1"))
    await await_until(lambda: ground.pending(ground.environment_id))
    path = f"/v1/environments/{ground.environment_id}/worker-keys"
    made = (await ground.http.post(path, json={"name": "revoked"})).json()
    await ground.http.post(f"{path}/{made['id']}/revoke", json={})

    for key in (made["secret_key"], "mawk_unknown", "not even a key"):
        status, refused = await ground.claim(environment_key=key)
        assert (status, refused["error"]["code"]) == (401, "invalid_credential")
    assert (await ground.claim(made["secret_key"]))[0] == 401
    assert await ground.pending(ground.environment_id) == 1
    running.cancel()


async def test_environments_without_items_of_this_kind_are_refused_by_name(ground: Ground) -> None:
    canonical = await ground.post("/v1/environments", {"name": "whole", "config": {"type": "self_hosted"}})
    local = await ground.post("/v1/environments", {"name": "local", "config": {"type": "cloud"}})
    for environment_id, told in (
        (canonical[1]["id"], "session"),
        (local[1]["id"], "not self_hosted"),
        ("env_unknown", "no environment"),
    ):
        status, refused = await ground.claim(environment_id=environment_id)
        assert (status, refused["error"]["code"]) == (400, "work_environment_refused")
        assert told in refused["error"]["message"]
    key = await ground.worker_key(canonical[1]["id"])
    assert (await ground.claim(key))[0] == 400


@pytest.mark.parametrize("config", [{}, {"config": {"type": "self_hosted"}}], ids=["tool", "session"])
async def test_workers_hear_soon_that_their_environment_is_deleted(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    # More than a question of a worker, until then, is not worth it.
    assert worker_protocols.KNOWN_SECONDS <= 30
    monkeypatch.setattr(worker_protocols, "KNOWN_SECONDS", 0.0)
    environment_id = await ground.environment(name="short-lived", **config)
    key = await ground.worker_key(environment_id)

    async def asked() -> tuple[int, Any]:
        if not config:
            return await ground.claim(key)
        headers = {"authorization": f"Bearer {key}"}
        answer = await ground.http.get(f"/v1/environments/{environment_id}/work/poll", headers=headers)
        return answer.status_code, answer.json()

    assert (await asked())[0] in (200, 204)
    assert (await ground.http.delete(f"/v1/environments/{environment_id}")).status_code == 200
    for _ in range(2):
        status, refused = await asked()
        assert (status, refused["error"]["code"]) == (
            (404, "environment_not_found") if config else (400, "work_environment_refused")
        )


async def test_with_keys_on_a_claim_needs_one_of_them_and_a_worker_is_not_throttled(fresh_ground: Ground) -> None:
    ground = fresh_ground
    status, admin = await ground.post("/v1/api-keys", {"name": "admin"})
    assert status == 200
    secret = admin["secret_key"]
    try:
        for path, more in ((CLAIM, {}), (ACCEPT, {"id": "x"}), (HEARTBEAT, {"id": "x"})):
            status, refused = await ground.post(path, {"worker_id": "w1", **more})
            assert (status, refused["error"]["code"]) == (401, "invalid_credential")
        assert (await ground.claim(secret))[0] == 204
        key = await ground.worker_key(key=secret)
        assert (await ground.claim(key))[0] == 204
        assert (await ground.claim(environment_key=key))[0] == 204
        assert (await ground.claim(secret, environment_key=key))[0] == 204
        for _ in range(310):
            assert (await ground.claim(key))[0] == 204
    finally:
        await ground.http.delete(f"/v1/api-keys/{admin['id']}", headers={"authorization": f"Bearer {secret}"})


@pytest.mark.parametrize("where", ["header", "body"])
async def test_a_key_that_is_revoked_ends_the_claim_that_it_waits_with(ground: Ground, where: str) -> None:
    path = f"/v1/environments/{ground.environment_id}/worker-keys"
    made = (await ground.http.post(path, json={"name": "w"})).json()
    key = made["secret_key"]
    header, body = (key, {}) if where == "header" else ("", {"environment_key": key})
    waiting = asyncio.create_task(ground.claim(header, wait_ms=30_000, **body))
    assert (await ground.claim(header, **body))[0] == 204
    await ground.http.post(f"{path}/{made['id']}/revoke", json={})
    status, refused = await waiting
    assert (status, refused["error"]["code"]) == (401, "invalid_credential")


async def test_a_worker_that_hangs_up_leaves_the_next_item_to_others(ground: Ground) -> None:
    async with httpx2.AsyncClient(base_url=ground.gateway.url) as leaving:
        waiting = asyncio.create_task(leaving.post(CLAIM, json={"worker_id": "gone", "wait_ms": 30_000}, timeout=40))
        assert (await ground.claim())[0] == 204
        waiting.cancel()
    running = ground.run(ground.named("work_1"))
    status, item = await ground.claim(wait_ms=20_000)
    assert (status, item["id"], item["claimed_by"]) == (200, ground.named("work_1"), "w1")
    running.cancel()


async def test_a_queue_is_inspected_with_counts_and_pages(ground: Ground) -> None:
    runs = [ground.run(ground.named(f"work_{n}")) for n in range(3)]

    async def all_there() -> bool:
        return await ground.pending(ground.environment_id) == 3

    await await_until(all_there)
    _status, item = await ground.claim()
    await ground.post(COMPLETE, {"id": item["id"], "worker_id": "w1", "result": None, "failed": True})
    path = f"/v1/environments/{ground.environment_id}/work-items"

    body = (await ground.http.get(path)).json()
    assert body["status_counts"] == {"pending": 2, "claimed": 0, "completed": 0, "failed": 1, "stopped": 0}
    assert sorted(each["id"] for each in body["data"]) == [ground.named(f"work_{n}") for n in range(3)]
    failed = (await ground.http.get(path, params={"status": "failed"})).json()
    assert [each["id"] for each in failed["data"]] == [item["id"]]
    first = (await ground.http.get(path, params={"limit": 2})).json()
    rest = (await ground.http.get(path, params={"limit": 2, "page": first["next_page"]})).json()
    assert [each["id"] for each in (*first["data"], *rest["data"])] == [each["id"] for each in body["data"]]
    assert rest["next_page"] is None
    assert (await ground.http.get("/v1/environments/env_unknown/work-items")).status_code == 404
    for run in runs:
        run.cancel()


async def test_the_way_from_an_item_to_a_waiting_worker_and_back_is_short(ground: Ground) -> None:
    async def one(number: int) -> float:
        claiming = asyncio.create_task(ground.claim(wait_ms=20_000))
        assert (await ground.claim(session_id=ground.named("sess_none")))[0] == 204
        begun = asyncio.get_running_loop().time()
        running = ground.run(ground.named(f"work_{number}"))
        _status, item = await claiming
        holder = {"id": item["id"], "worker_id": "w1"}
        assert (await ground.post(ACCEPT, holder))[0] == 200
        assert (await ground.post(COMPLETE, {**holder, "result": 1}))[0] == 200
        await running
        return asyncio.get_running_loop().time() - begun

    # The quickest of some: how long is told by the measuring program, and that nothing here waits for a timer by this.
    # On a busy machine it may take some more until one is.
    for number in range(40):
        if await one(number) < 0.2:
            return
    pytest.fail("none of them was quick")
