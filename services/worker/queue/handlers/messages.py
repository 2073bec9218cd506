"""Items as messages."""

from __future__ import annotations

from datetime import datetime

from kit.clock import rfc3339
from managed_agents.worker.v1 import queue_pb2
from services.worker.queue.domain.item import Item


def moment(at: datetime | None) -> str:
    """A moment, or empty where there is none."""
    return rfc3339(at) if at is not None else ""


def item_message(item: Item, payload: bytes) -> queue_pb2.WorkItem:
    """An item with what it is to do."""
    return queue_pb2.WorkItem(
        id=item.id,
        session_id=item.session_id,
        environment_id=item.environment_id,
        kind=item.kind,
        payload_json=payload,
        status=item.status,
        claimed_by=item.holder or "",
        claimed_at=moment(item.claimed_at),
        lease_expires_at=moment(item.lease_expires_at) if not item.is_ended else "",
        attempt=item.attempt,
        created_at=moment(item.created_at),
        accepted_at=moment(item.accepted_at),
        stopped_at=moment(item.stopped_at),
        ended_at=moment(item.ended_at),
        end_code=item.end_code or "",
    )
