"""Public JSON of the session protocol; the same for every caller."""

from __future__ import annotations

import base64

import orjson

from managed_agents.worker.v1 import session_work_pb2 as pb

from .splice import object_of, raw, text, text_or_null


def render_work(work: pb.SessionWork, sessions_token: str = "") -> bytes:
    """One item; with its secret where it was just handed out."""
    return object_of(
        (
            b'"id":%b,"type":"work"' % text(work.id),
            b'"environment_id":%b' % text(work.environment_id),
            b'"data":{"type":"session","id":%b}' % text(work.session_id),
            b'"state":%b' % text(work.state),
            b'"metadata":%b' % raw(work.metadata_json, b"{}"),
            b'"secret":%b' % text_or_null(secret_of(sessions_token)),
            b'"created_at":%b' % text(work.created_at),
            b'"acknowledged_at":%b' % text_or_null(work.acknowledged_at),
            b'"started_at":%b' % text_or_null(work.started_at),
            b'"latest_heartbeat_at":%b' % text_or_null(work.latest_heartbeat_at),
            b'"stop_requested_at":%b' % text_or_null(work.stop_requested_at),
            b'"stopped_at":%b' % text_or_null(work.stopped_at),
            b'"attempt":%d' % work.attempt,
        )
    )


def secret_of(sessions_token: str) -> str:
    """How a worker is given the token: base64url of a JSON object, without padding."""
    if not sessions_token:
        return ""
    payload = orjson.dumps({"sessions_token": sessions_token})
    return base64.urlsafe_b64encode(payload).rstrip(b"=").decode()


def render_lease(lease: pb.WorkLease) -> bytes:
    """The answer to a heartbeat."""
    return orjson.dumps(
        {
            "type": "work_heartbeat",
            "last_heartbeat": lease.last_heartbeat,
            "lease_extended": lease.lease_extended,
            "state": lease.state,
            "ttl_seconds": lease.ttl_seconds,
        }
    )


def render_stats(stats: pb.GetWorkStatsResponse) -> bytes:
    """How full a queue is."""
    return orjson.dumps(
        {
            "type": "work_queue_stats",
            "depth": stats.depth,
            "pending": stats.pending,
            "oldest_queued_at": stats.oldest_queued_at or None,
            "workers_polling": stats.workers_polling,
        }
    )
