"""A queue that dies while it follows a session's item up: the next look does what was left, and nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from kit import failpoints
from kit.nats import connect
from kit.testing.swept import SweptDatabases
from services.worker.queue.domain import session_item
from services.worker.queue.domain.session_item import Caller, SessionItem
from services.worker.queue.operations.session_duties import SessionDuties
from services.worker.queue.operations.session_room import SessionRoom
from services.worker.queue.store.session_items import SessionItemStore
from tests.integration.queue.sessions.ground import WORKSPACE, Ground, session_ground

POINTS = ("queue.sessions.following_up", "queue.sessions.settled")


class Bare:
    """What makes and follows up items, without a process around it."""

    def __init__(self, ground: Ground, duties: SessionDuties) -> None:
        self.ground, self.duties = ground, duties

    async def held(self) -> SessionItem:
        """An item of session 1 that a worker serves."""
        ground = self.ground
        ground.duties.needed.add(ground.name("1"))
        async with ground.database.transaction(WORKSPACE) as tx:
            store = SessionItemStore(tx)
            await store.need("work_1", ground.environment_id, ground.name("1"))
            item = await store.hand_out(ground.environment_id, b"token", 5.0)
            assert item is not None
            _, now = await store.lock(item.environment_id, item.id) or pytest.fail("it is there")
            item = session_item.acknowledge(item, Caller(b"token"), now, 60)
            item, _ = session_item.beat(item, Caller(b"token"), session_item.NO_HEARTBEAT, now, None)
            await store.save(item)
        return await self.item()

    async def item(self, work_id: str = "work_1") -> SessionItem:
        async with self.ground.database.read(WORKSPACE) as tx:
            found = await SessionItemStore(tx).get(self.ground.environment_id, work_id)
        assert found is not None
        return found

    async def items(self) -> list[SessionItem]:
        async with self.ground.database.read(WORKSPACE) as tx:
            return await SessionItemStore(tx).page(self.ground.environment_id, None, 100)

    async def save(self, item: SessionItem) -> None:
        async with self.ground.database.transaction(WORKSPACE) as tx:
            assert await SessionItemStore(tx).save(item)

    async def die_at(self, point: str) -> None:
        """One look that ends in the middle."""
        failpoints.arm(f"{point}=raise@1")
        with pytest.raises(failpoints.FailpointHit):
            await self.duties.round()
        failpoints.arm("")


@pytest.fixture
async def bare(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[Bare]:
    async with session_ground(swept_databases, nats_url) as ground:
        nats = await connect(nats_url, "queue")
        try:
            yield Bare(ground, SessionDuties(ground.database, nats, ground.duties, SessionRoom()))
        finally:
            failpoints.arm("")
            await nats.close()


@pytest.mark.parametrize("point", POINTS)
async def test_a_death_after_a_worker_fell_silent(bare: Bare, point: str) -> None:
    held = await bare.held()
    await bare.save(replace(held, lease_expires_at=held.created_at - timedelta(seconds=1)))
    await bare.die_at(point)
    lapsed = await bare.item()
    # Nobody gets the session until its calls are settled for certain.
    assert (lapsed.state, lapsed.settle_due, lapsed.token_sha256) == ("queued", True, None)
    await bare.duties.round()
    settled = await bare.item()
    assert (settled.state, settled.settle_due) == ("queued", False)
    assert bare.ground.settled() == 1 + POINTS.index(point)
    assert len(await bare.items()) == 1


@pytest.mark.parametrize("point", POINTS)
async def test_a_death_after_an_item_ended(bare: Bare, point: str) -> None:
    held = await bare.held()
    await bare.save(session_item.end(held, held.created_at, settle=True))
    await bare.die_at(point)
    assert [each.state for each in await bare.items()] == ["stopped"]
    await bare.duties.round()
    await bare.duties.round()
    assert sorted(each.state for each in await bare.items()) == ["queued", "stopped"]


async def test_two_replicas_follow_one_item_up_once(bare: Bare, nats_url: str) -> None:
    held = await bare.held()
    await bare.save(session_item.end(held, held.created_at))
    ended = await bare.item()
    for _ in range(2):
        # Both read it as it was before either wrote.
        await bare.duties._follow_up(ended)
    assert sorted(each.state for each in await bare.items()) == ["queued", "stopped"]
