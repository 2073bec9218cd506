"""Public JSON of events: the stored bytes, but for three types in the published shape."""

from __future__ import annotations

from typing import Any

import orjson

from managed_agents.sessions.v1.events_pb2 import Event

from .sessions import list_cost

PUBLISHED_TYPES = frozenset(
    {
        "user.message",
        "user.interrupt",
        "user.tool_confirmation",
        "user.custom_tool_result",
        "user.tool_result",
        "user.define_outcome",
        "system.message",
        "agent.message",
        "agent.thinking",
        "agent.tool_use",
        "agent.tool_result",
        "agent.mcp_tool_use",
        "agent.mcp_tool_result",
        "agent.custom_tool_use",
        "agent.thread_context_compacted",
        "agent.thread_message_sent",
        "agent.thread_message_received",
        "session.status_running",
        "session.status_idle",
        "session.status_rescheduled",
        "session.status_terminated",
        "session.error",
        "session.updated",
        "session.usage",
        "session.deleted",
        "session.thread_created",
        "session.thread_status_running",
        "session.thread_status_idle",
        "session.thread_status_rescheduled",
        "session.thread_status_terminated",
        "span.model_request_start",
        "span.model_request_end",
        "span.outcome_evaluation_start",
        "span.outcome_evaluation_ongoing",
        "span.outcome_evaluation_end",
    }
)
PUBLISHED_ERRORS = frozenset(
    {
        "unknown_error",
        "model_overloaded_error",
        "model_rate_limited_error",
        "model_request_failed_error",
        "mcp_connection_failed_error",
        "mcp_authentication_failed_error",
        "billing_error",
        "credential_host_unreachable_error",
        "tool_use_limit_reached_error",
        "compaction_limit_reached_error",
        "repository_authentication_error",
        "repository_forbidden_error",
        "repository_not_found_error",
        "repository_checkout_error",
        "repository_clone_error",
    }
)
_PROJECTED = ("session.error", "session.usage", "agent.thread_context_compacted")
# What published callers see of a compaction: that there was one. Its summary is a local field.
_COMPACTION_KEYS = ("id", "type", "seq", "created_at", "processed_at", "session_thread_id")
# Errors that end their session; after any other it may be sent a new prompt.
_TERMINAL = frozenset({"requires_action_timeout"})


def is_published(event_type: str) -> bool:
    """Whether the published client knows the type; it mistakes unknown ones for others."""
    return event_type in PUBLISHED_TYPES


def render_event(event: Event, *, published: bool) -> bytes:
    """One event; the very object of the stored body where nothing differs."""
    if not published or event.type not in _PROJECTED:
        return event.body
    body = orjson.loads(event.body)
    if event.type == "session.error":
        body["error"] = _published_error(body.get("error") or {})
    elif event.type == "agent.thread_context_compacted":
        body = {key: body[key] for key in _COMPACTION_KEYS if key in body}
    else:
        body["usage"] = _published_usage(body.get("usage") or {})
    return orjson.dumps(body)


def _published_error(error: dict[str, Any]) -> dict[str, Any]:
    known = error.get("type") in PUBLISHED_ERRORS
    is_retrying = error.get("retry_status") == "retryable"
    kind = "retrying" if is_retrying else "terminal" if error.get("type") in _TERMINAL else "exhausted"
    return {
        **error,
        "type": error["type"] if known else "unknown_error",
        "message": error.get("message", ""),
        "retry_status": {"type": kind},
    }


def _published_usage(usage: dict[str, Any]) -> dict[str, Any]:
    cost = usage.get("list_cost")
    if isinstance(cost, int):
        usage["list_cost"] = list_cost(cost, published=True)
    return usage
