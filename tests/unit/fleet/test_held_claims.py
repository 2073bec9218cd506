"""A claim that is held open for longer than a lease still gives an item that can be accepted."""

import asyncio
from typing import Any

from kit.testing import await_until
from services.worker.fleet.tool.queue import WorkQueue


class HoldingPlatform:
    """Answers a claim after a while, with a lease that is shorter than that."""

    async def call(self, method: str, path: str, body: Any, *, seconds: float) -> dict[str, Any]:
        await asyncio.sleep(0.1)
        return {
            "id": "work_1",
            "session_id": "sess_1",
            "kind": "exec",
            "payload": {},
            "claimed_at": "2026-11-01T00:00:00.000000Z",
            "lease_expires_at": "2026-11-01T00:00:00.050000Z",
        }


async def test_the_lease_of_a_held_claim_has_not_gone_by_when_it_comes() -> None:
    item = await WorkQueue(HoldingPlatform(), worker_id="w", environment_id=None, key=None).claim(25)  # type: ignore[arg-type]
    assert item is not None and item.lease_seconds == 0.05
    assert not item.lapsed
    await await_until(lambda: item.lapsed, timeout=2)
