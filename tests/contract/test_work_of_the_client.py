"""Every method that the published client has for the work of an environment, with every parameter, strictly validated.

A method or a parameter that a new version of the client brings fails here until it has a case.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import anthropic
import pytest

from kit.testing import await_until
from tests.contract.client_flow import TOOLSET, WORKSPACE, Watched, methods_of
from tests.support.platform import Platform
from tests.support.published_worker import client_of

pytestmark = pytest.mark.timeout(120)
METHODS = methods_of(anthropic.AsyncAnthropic(api_key="none").beta.environments.work)
# Made by the client itself out of the others; `test_environment_worker` has them at work.
COMPOSED = {"poller", "worker"}
BETA = {"anthropic-beta": "managed-agents-2026-04-01"}


class Ground:
    """An environment with sessions that need a worker, and the client as an operator and as a worker."""

    def __init__(self, operator: anthropic.AsyncAnthropic, worker: anthropic.AsyncAnthropic, environment: str) -> None:
        self.seen: dict[str, set[str]] = {}
        self.operator = Watched(operator.beta.environments.work, "", self.seen)
        self.worker = Watched(worker.beta.environments.work, "", self.seen)
        self.client, self.environment_id = operator, environment

    async def session(self) -> str:
        """One whose call waits."""
        toolset: Any = TOOLSET
        agent = await self.client.beta.agents.create(name="a", model="default", tools=[toolset])
        text = 'TOOL:bash:{"command": "true"}'
        message: Any = {"type": "user.message", "content": [{"type": "text", "text": text}]}
        made = await self.client.beta.sessions.create(
            agent=agent.id, environment_id=self.environment_id, initial_events=[message]
        )
        return made.id

    async def polled(self) -> Any:
        """An item that was handed out."""
        found: list[Any] = []

        async def is_there() -> bool:
            item = await self.worker.poll(
                self.environment_id, block_ms=999, reclaim_older_than_ms=60_000, anthropic_worker_id="w1"
            )
            found.extend([item] if item else [])
            return bool(found)

        await await_until(is_there, timeout=30)
        return found[0]

    async def active(self) -> Any:
        """An item that is served."""
        item = await self.polled()
        await self.worker.ack(item.id, environment_id=self.environment_id)
        await self.beat(item.id, "NO_HEARTBEAT")
        return item

    async def beat(self, work_id: str, expected: str) -> Any:
        return await self.worker.heartbeat(
            work_id, environment_id=self.environment_id, expected_last_heartbeat=expected, desired_ttl_seconds=120
        )


@pytest.fixture
async def ground(platform: Platform, tmp_path: Path) -> AsyncIterator[Ground]:
    async with client_of(platform.url) as operator:
        made = await operator.beta.environments.create(name=uuid4().hex, config={"type": "self_hosted"})
        path = f"/v1/environments/{made.id}/worker-keys"
        key: Any = await operator.post(path, body={"name": "w"}, cast_to=object, options={"headers": BETA})
        async with client_of(platform.url, auth_token=key["secret_key"]) as worker:
            yield Ground(operator, worker, made.id)


async def test_every_method_passes_with_every_parameter(ground: Ground) -> None:
    session_id = await ground.session()
    item = await ground.polled()
    assert (item.type, item.state, item.data.id, item.data.type) == ("work", "queued", session_id, "session")
    assert item.secret and item.environment_id == ground.environment_id and item.metadata == {}
    stats = await ground.operator.stats(ground.environment_id, workspace_id=WORKSPACE)
    assert (stats.depth, stats.pending, stats.workers_polling, stats.type) == (0, 1, 1, "work_queue_stats")
    assert stats.oldest_queued_at == item.created_at
    taken = await ground.worker.ack(item.id, environment_id=ground.environment_id)
    assert (taken.state, taken.secret) == ("starting", None) and taken.acknowledged_at
    first = await ground.beat(item.id, "NO_HEARTBEAT")
    second = await ground.beat(item.id, first.last_heartbeat)
    assert (second.state, second.lease_extended, second.ttl_seconds) == ("active", True, 120)
    changed = await ground.operator.update(
        item.id, environment_id=ground.environment_id, metadata={"a": "1", "b": None}, workspace_id=WORKSPACE
    )
    assert changed.metadata == {"a": "1"} and changed.state == "active"
    kept = await ground.operator.retrieve(item.id, environment_id=ground.environment_id, workspace_id=WORKSPACE)
    assert kept == changed and kept.latest_heartbeat_at == second.last_heartbeat
    stopping = await ground.operator.stop(
        item.id, environment_id=ground.environment_id, force=False, workspace_id=WORKSPACE
    )
    assert stopping.state == "stopping" and stopping.stop_requested_at
    last = await ground.beat(item.id, "nonsense")
    assert (last.state, last.lease_extended, last.last_heartbeat) == ("stopping", False, second.last_heartbeat)
    stopped = await ground.worker.stop(item.id, environment_id=ground.environment_id, force=True)
    assert stopped.state == "stopped" and stopped.stopped_at
    page = await ground.worker.list(ground.environment_id, limit=1)
    following = await ground.polled()
    page = await ground.worker.list(ground.environment_id, limit=1)
    assert [each.id for each in page.data] == [following.id] and page.next_page
    rest = await ground.worker.list(ground.environment_id, limit=1, page=page.next_page)
    assert [each.id for each in rest.data] == [item.id] and rest.next_page is None
    unseen = {name: METHODS[name] - ground.seen.get(name, set()) for name in METHODS if name not in COMPOSED}
    assert not {name: left for name, left in unseen.items() if left}


async def test_a_heartbeat_out_of_turn_says_how_the_lease_stands(ground: Ground) -> None:
    await ground.session()
    item = await ground.active()
    with pytest.raises(anthropic.APIStatusError) as refused:
        await ground.beat(item.id, "NO_HEARTBEAT")
    assert refused.value.status_code == 412
    assert isinstance(refused.value, anthropic.PreconditionFailedError)
    details = refused.value.body["error"]["details"]  # type: ignore[index,call-overload]
    kept = await ground.operator.retrieve(item.id, environment_id=ground.environment_id)
    assert details == {
        "error_code": "heartbeat_precondition_failed",
        "current_state": {
            "last_heartbeat": kept.latest_heartbeat_at,
            "lease_extended": False,
            "state": "active",
            "ttl_seconds": 120,
        },
    }


async def test_a_stopped_item_stays_stopped_and_an_unknown_one_is_unknown(ground: Ground) -> None:
    await ground.session()
    item = await ground.active()
    await ground.operator.stop(item.id, environment_id=ground.environment_id, force=True)
    with pytest.raises(anthropic.ConflictError) as refused:
        await ground.operator.stop(item.id, environment_id=ground.environment_id)
    assert refused.value.response.headers["x-should-retry"] == "false"
    for asked in (
        ground.worker.heartbeat("work_none", environment_id=ground.environment_id),
        ground.operator.retrieve("work_none", environment_id=ground.environment_id),
    ):
        with pytest.raises(anthropic.NotFoundError):
            await asked


async def test_an_environment_of_the_other_protocol_is_refused_by_name(ground: Ground) -> None:
    made: Any = await ground.client.post(
        "/v1/environments",
        body={"name": uuid4().hex, "hosting_type": "self_hosted"},
        cast_to=object,
        options={"headers": BETA},
    )
    for asked in (ground.operator.poll(made["id"]), ground.operator.stats("env_default")):
        with pytest.raises(anthropic.BadRequestError) as refused:
            await asked
        assert refused.value.body["error"]["code"] == "work_environment_refused"  # type: ignore[index,call-overload]
