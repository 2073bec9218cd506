"""What replicas of the queue tell each other over core NATS. Whatever is lost, a sweep finds.

Subjects: `worker.enqueued.<environment_id>` with the items that became pending there, and `worker.ended.<replica>` with
the id of an item whose end somebody awaits on that replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import orjson

from kit.nats import Nats
from kit.telemetry import log
from services.worker.queue.domain.item import Item, Status
from services.worker.queue.operations.desk import Settled

ENQUEUED = "worker.enqueued"
ENDED = "worker.ended"
MOST_AT_ONCE = 200


class Hints:
    """Tells what this replica committed, and hears what others did."""

    def __init__(
        self,
        nats: Nats,
        replica: str,
        *,
        pending: Callable[[Item], None],
        ended: Callable[[str], Awaitable[None]],
    ) -> None:
        """`pending` takes an item of another replica, `ended` the id of one that ended there."""
        self._nats = nats
        self._replica = replica
        self._on_pending = pending
        self._on_ended = ended
        self._pending: dict[str, list[Item]] = {}
        self._ended: list[Item] = []
        self._task: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Hears the others for the life of the process."""
        await self._nats.subscribe_eventually(f"{ENQUEUED}.*", self._hear_pending)
        await self._nats.subscribe_eventually(f"{ENDED}.{self._replica}", self._hear_ended)

    def tell(self, settled: Settled) -> None:
        """Tells of a committed change, if others may care."""
        item = settled.item
        if item.status is Status.PENDING:
            self._pending.setdefault(item.environment_id, []).append(item)
        elif item.is_ended and item.waiter not in ("", self._replica):
            self._ended.append(item)
        else:
            return
        if self._task is None:
            self._task = asyncio.create_task(self._send(), name="hints")

    async def stop(self) -> None:
        """Sends what is left."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _send(self) -> None:
        try:
            while self._pending or self._ended:
                pending, self._pending = self._pending, {}
                ended, self._ended = self._ended, []
                for environment_id, items in pending.items():
                    for first in range(0, len(items), MOST_AT_ONCE):
                        rows = [as_told(item) for item in items[first : first + MOST_AT_ONCE]]
                        body = orjson.dumps({"replica": self._replica, "items": rows})
                        await self._nats.publish(f"{ENQUEUED}.{environment_id}", body)
                for item in ended:
                    await self._nats.publish(f"{ENDED}.{item.waiter}", item.id.encode())
        finally:
            self._task = None

    async def _hear_pending(self, message: Any) -> None:
        try:
            told = orjson.loads(message.data)
            if told["replica"] == self._replica:
                return
            items = [_item(row) for row in told["items"]]
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            # Of another version; the sweep finds the items.
            log.debug("a hint was not understood", subject=message.subject)
            return
        for item in items:
            self._on_pending(item)

    async def _hear_ended(self, message: Any) -> None:
        await self._on_ended(message.data.decode("utf-8", "replace"))


def as_told(item: Item) -> list[Any]:
    """What a hint says of an item."""
    return [
        item.id,
        item.workspace_id,
        item.environment_id,
        item.session_id,
        item.kind,
        item.revision,
        item.attempt,
        item.created_at,
        item.queue_until,
        item.wait_until,
        item.waiter,
    ]


def _item(row: list[Any]) -> Item:
    item_id, workspace_id, environment_id, session_id, kind, revision, attempt, created, queue, wait, waiter = row
    return Item(
        id=item_id,
        workspace_id=workspace_id,
        environment_id=environment_id,
        session_id=session_id,
        kind=kind,
        status=Status.PENDING,
        revision=revision,
        attempt=attempt,
        created_at=datetime.fromisoformat(created),
        queue_until=datetime.fromisoformat(queue) if queue else None,
        wait_until=datetime.fromisoformat(wait) if wait else None,
        waiter=waiter,
    )
