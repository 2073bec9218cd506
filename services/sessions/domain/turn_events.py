"""The events that the service itself writes around a turn."""

from datetime import datetime
from typing import Any

import orjson

from services.sessions.domain.cost import read_spend
from services.sessions.domain.session_state import CallKind, PendingCall, SessionState, TokenUsage

# What coordinators call threads by; runners offer these tools to nobody else.
START_THREAD, SEND_TO_THREAD = "start_thread", "send_to_thread"
THREAD_TOOLS = (START_THREAD, SEND_TO_THREAD)
NO_USAGE = TokenUsage()
# More than any one result may tell.
MAX_WEB_REQUESTS = 1_000
# What a call gets as its result where an interrupt came before the answer.
INTERRUPTED_TEXT = "The call was not executed: the turn was interrupted."
# What a runner writes into the `executor` of a call that a worker of the environment runs.
WORKER = "worker"
WORKER_RESULT = "user.tool_result"


def thread_fields(state: SessionState) -> dict[str, Any]:
    """Names the primary thread."""
    return {"session_thread_id": state.thread_id, "agent_name": state.agent_name}


def usage_fields(state: SessionState) -> dict[str, Any]:
    """A snapshot of what the session spent."""
    usage = state.usage
    budget = orjson.loads(state.budget) if state.budget else None
    cents = read_spend(state.spend).cents
    return {
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_input_tokens": usage.cache_read_input_tokens,
            "cache_creation": {
                "ephemeral_5m_input_tokens": usage.cache_creation_5m_input_tokens,
                "ephemeral_1h_input_tokens": usage.cache_creation_1h_input_tokens,
            },
            "active_seconds": round(state.active_seconds, 3),
            **({} if cents is None else {"list_cost": cents}),
            "budget": budget,
            "server_tool_use": {
                "web_search_requests": usage.web_search_requests,
                "web_fetch_requests": usage.web_fetch_requests,
            },
        },
        "budget": budget,
    }


def idle_fields(stop_reason: dict[str, Any], stop_details: Any) -> dict[str, Any]:
    """Why a turn stopped, where published clients look for it; metadata is rendered last."""
    fields: dict[str, Any] = {"stop_reason": stop_reason}
    if stop_details is not None:
        fields["stop_details"] = stop_details
    return fields


def interrupted_result(call: PendingCall) -> tuple[str, dict[str, Any]]:
    """The result of a call that nobody will execute any more, with its type."""
    return error_result(call.event_id, call.block_id, call.server_name, INTERRUPTED_TEXT, by_worker=call.by_worker)


def error_result(
    event_id: str, block_id: str, server_name: str, text: str, *, by_worker: bool = False
) -> tuple[str, dict[str, Any]]:
    """A result that the service writes in a tool's place; with the name of a server, that of a tool of its.

    In a worker's place it writes what the worker would have: by that alone workers know that nothing is left to do.
    """
    of_call = (
        {"mcp_tool_use_id": event_id, "mcp_server_name": server_name} if server_name else {"tool_use_id": event_id}
    )
    fields = of_call | {
        "content": [{"type": "text", "text": text}],
        "is_error": True,
        "metadata": {"tool_use_id": block_id},
    }
    own = WORKER_RESULT if by_worker else "agent.tool_result"
    return "agent.mcp_tool_result" if server_name else own, fields


def lost_runner_error(attempts: int) -> dict[str, Any]:
    """What a session says when its turn was lost with one runner after another."""
    message = f"The turn was given up after {attempts} runners in a row stopped answering while they ran it."
    return {
        "error": {"type": "turn_attempts_exhausted", "message": message, "retry_status": "unknown"},
        "content": [{"type": "text", "text": message}],
    }


def is_thread_call(fields: dict[str, Any]) -> bool:
    """Whether an agent.tool_use starts a thread or sends to one: only coordinators are allowed tools of these names."""
    return fields.get("name") in THREAD_TOOLS and fields.get("evaluated_permission") == "allow"


def parked_call(event_id: str, event_type: str, fields: dict[str, Any]) -> PendingCall:
    """What has to be remembered of a call that waits for a client."""
    kind = CallKind.CUSTOM if event_type == "agent.custom_tool_use" else CallKind.CONFIRMATION
    by_worker = event_type == "agent.tool_use" and fields.get("executor") == WORKER
    if kind is CallKind.CONFIRMATION and is_thread_call(fields):
        kind = CallKind.THREAD
    elif by_worker and fields.get("evaluated_permission") == "allow":
        kind = CallKind.WORKER
    content = fields.get("content")
    block = content[0] if isinstance(content, list) and content and isinstance(content[0], dict) else {}
    server_name = str(fields.get("mcp_server_name") or "") if event_type == "agent.mcp_tool_use" else ""
    block_id = str(block.get("id") or event_id)
    return PendingCall(event_id, block_id, kind, server_name=server_name, by_worker=by_worker)


def active_seconds(state: SessionState, now: datetime) -> float:
    """Seconds in which a turn ran, up to now."""
    running = (now - state.running_since).total_seconds() if state.running_since else 0.0
    return state.active_seconds + max(0.0, running)


def web_requests(fields: dict[str, Any]) -> TokenUsage:
    """The requests to the web that a tool's result says it cost."""
    metadata = fields.get("metadata")
    told = metadata.get("server_tool_use") if isinstance(metadata, dict) else None
    if not isinstance(told, dict):
        return NO_USAGE
    return TokenUsage(
        web_search_requests=_count(told.get("web_search_requests")),
        web_fetch_requests=_count(told.get("web_fetch_requests")),
    )


def _count(value: Any) -> int:
    return value if type(value) is int and 0 < value <= MAX_WEB_REQUESTS else 0
