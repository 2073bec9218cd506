"""Public JSON of work items; the same for every caller."""

from __future__ import annotations

import orjson

from managed_agents.worker.v1.queue_pb2 import GetQueueStatsResponse, WorkItem


def render_work_item(item: WorkItem) -> bytes:
    """One item, with what it is to do as the runner wrote it."""
    return orjson.dumps(
        {
            "id": item.id,
            "type": "work_item",
            "session_id": item.session_id,
            "environment_id": item.environment_id,
            "kind": item.kind,
            "payload": orjson.Fragment(item.payload_json),
            "status": item.status,
            "claimed_by": item.claimed_by or None,
            "claimed_at": item.claimed_at or None,
            "lease_expires_at": item.lease_expires_at or None,
            "attempt": item.attempt,
            "created_at": item.created_at,
            "accepted_at": item.accepted_at or None,
            "stopped_at": item.stopped_at or None,
            "ended_at": item.ended_at or None,
            "end_code": item.end_code or None,
        }
    )


def render_lease(lease_expires_at: str) -> bytes:
    """A lease that holds."""
    return b'{"ok":true,"lease_expires_at":"%b"}' % lease_expires_at.encode()


TAKEN = b'{"ok":true}'


def render_counts(stats: GetQueueStatsResponse) -> dict[str, int]:
    """How many items there are of each status."""
    return {
        "pending": stats.pending,
        "claimed": stats.claimed,
        "completed": stats.completed,
        "failed": stats.failed,
        "stopped": stats.stopped,
    }
