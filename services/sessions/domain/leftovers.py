"""What a turn that is given up left open in the log, and the events that close it.

A runner closes these itself where another one goes on with the turn; where nobody does,
the service has to: a model request gets its end, a call gets a result that says what
became of it. Nothing is ever run again.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.turn_events import WORKER, error_result

UNKNOWN_TEXT = (
    "work_outcome_unknown: the platform lost the process that ran this call, so whether it took effect is not known."
)
ENDED_TEXT = (
    "Interrupted: the session was ended while this call was open. It was stopped, or never began; it may have taken"
    " effect in part."
)
_CALLS = ("agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use")
_ANSWERS = {
    "agent.tool_result": "tool_use_id",
    "agent.mcp_tool_result": "mcp_tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
    "user.tool_result": "tool_use_id",
}
_NO_USAGE = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 0,
}


def closing_events(tail: Sequence[LoggedEvent], text: str = UNKNOWN_TEXT) -> list[tuple[str, dict[str, Any]]]:
    """Types and fields of the events that close what `tail`, the newest context events in order, leaves open.

    `text` is what the results of open calls say.
    """
    request_id, calls = "", dict[str, tuple[str, str, bool]]()
    for event in tail:
        if event.type == "span.model_request_start":
            request_id = event.id
        elif event.type == "span.model_request_end":
            request_id = ""
        elif event.type in _CALLS:
            calls[event.id] = _described(event)
        elif event.type in _ANSWERS:
            answered = orjson.loads(event.body).get(_ANSWERS[event.type])
            calls.pop(answered, None)
    ends = [("span.model_request_end", _request_end(request_id))] if request_id else []
    return ends + [
        error_result(event_id, block_id, server_name, text, by_worker=by_worker)
        for event_id, (block_id, server_name, by_worker) in calls.items()
    ]


def _described(event: LoggedEvent) -> tuple[str, str, bool]:
    """The model's id of a call, the MCP server whose tool it is, and whether a worker runs it."""
    body = orjson.loads(event.body)
    content = body.get("content") or [{}]
    server_name = body.get("mcp_server_name") if event.type == "agent.mcp_tool_use" else None
    return str(content[0].get("id") or event.id), str(server_name or ""), body.get("executor") == WORKER


def _request_end(start_id: str) -> dict[str, Any]:
    return {"model_request_start_id": start_id, "model_usage": _NO_USAGE, "is_error": True}
