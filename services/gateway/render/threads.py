"""Public JSON of threads, and of the roster that a session's coordinator may start them with."""

from __future__ import annotations

from typing import Any

import orjson

from managed_agents.sessions.v1.threads_pb2 import SessionThread

from .agents import render_session_agent
from .sessions import LOCAL_STATUS, PUBLISHED_STATUS
from .splice import object_of, text, text_or_null


def render_thread(thread: SessionThread, *, published: bool) -> bytes:
    """One thread."""
    status = (PUBLISHED_STATUS if published else LOCAL_STATUS)[thread.status]
    return object_of(
        (
            b'"id":%b,"type":"session_thread"' % text(thread.id),
            b'"session_id":' + text(thread.session_id),
            b'"parent_thread_id":' + text_or_null(thread.parent_thread_id),
            b'"workflow_run_id":null',
            b'"agent":' + render_session_agent(thread.agent, published=published),
            b'"status":' + text(status),
            b'"usage":' + orjson.dumps(_usage(thread)),
            b'"stats":{"active_seconds":%.3f,"duration_seconds":%.3f,"startup_seconds":0}'
            % (thread.active_seconds, thread.duration_seconds),
            b'"last_seq":%d' % thread.last_seq,
            b'"created_at":%b,"updated_at":%b' % (text(thread.created_at), text(thread.updated_at)),
            b'"archived_at":' + text_or_null(thread.archived_at),
        )
    )


def _usage(thread: SessionThread) -> dict[str, Any]:
    usage = thread.usage
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_creation_5m_input_tokens,
            "ephemeral_1h_input_tokens": usage.cache_creation_1h_input_tokens,
        },
        "server_tool_use": {
            "web_search_requests": usage.web_search_requests,
            "web_fetch_requests": usage.web_fetch_requests,
        },
        "active_seconds": round(thread.active_seconds, 3),
    }
