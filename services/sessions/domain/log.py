"""Entries of a session's log, and the one place that renders their public JSON.

A body is rendered once, at append. Its keys stand in a fixed order: `id`, `type`, `seq`,
`created_at`, `processed_at`, then the fields of the type, `metadata` last. Nothing after
this takes a body apart again on its way to a reader; only the time at which a queued
input was read is put in later, in the place that `UNREAD` marks.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from kit.clock import rfc3339

# Events that shape what the model sees; the rest of a log tells people and programs how it went.
CONTEXT_TYPES = frozenset(
    {
        "user.message",
        "user.define_outcome",
        "user.tool_confirmation",
        "user.custom_tool_result",
        "user.tool_result",
        "system.message",
        "agent.message",
        "agent.thinking",
        "agent.tool_use",
        "agent.tool_result",
        "agent.mcp_tool_use",
        "agent.mcp_tool_result",
        "agent.custom_tool_use",
        "agent.thread_context_compacted",
        "agent.thread_message_received",
        # Which inputs the model is kept from.
        "session.guardrail_blocked",
        # How far the outcome is: whether the next thing to do is to measure it.
        "span.outcome_evaluation_start",
        "span.outcome_evaluation_ongoing",
        "span.outcome_evaluation_end",
        # Which inputs an answer had read (`context_seq`), and whether a request has no end: a
        # runner rebuilds its context, and what a crash left open, from these.
        "span.model_request_start",
        "span.model_request_end",
    }
)

# How the body of an input that no model request has read tells so.
UNREAD = '"processed_at":null'

_ENVELOPE_KEYS = frozenset({"id", "type", "seq", "created_at", "processed_at"})


@dataclass(frozen=True, slots=True)
class Draft:
    """An event before it has a place in the log. `fields` is a JSON object."""

    id: str
    type: str
    fields: bytes = b"{}"
    # True for what a session's log shows of other threads: its own context has none of that.
    posted: bool = False


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event with its place in the log and its public JSON."""

    id: str
    seq: int
    type: str
    created_at: datetime
    body: bytes
    posted: bool = False

    @property
    def in_context(self) -> bool:
        """Whether the event shapes the model's context."""
        return self.type in CONTEXT_TYPES and not self.posted


class MalformedFields(ValueError):
    """The fields of an event are not a JSON object, or claim a key of the envelope."""


def read_fields(fields: bytes) -> dict[str, Any]:
    """The fields of a draft from another process, checked to be safe to splice into a body."""
    try:
        value = orjson.loads(fields)
    except orjson.JSONDecodeError as error:
        raise MalformedFields(f"the fields are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedFields("the fields are not a JSON object")
    if taken := _ENVELOPE_KEYS & value.keys():
        raise MalformedFields(f"the fields hold {', '.join(sorted(taken))}, which the log itself sets")
    return value


def render(draft: Draft, seq: int, now: datetime, *, read: bool = True) -> LoggedEvent:
    """Gives a draft its place and its body; `read` is false for an input that has to wait."""
    moment = rfc3339(now)
    processed = f'"processed_at":"{moment}"' if read else UNREAD
    head = f'{{"id":"{draft.id}","type":"{draft.type}","seq":{seq},"created_at":"{moment}",{processed}'.encode()
    inner = draft.fields.strip()[1:-1].strip()
    body = head + b"," + inner + b"}" if inner else head + b"}"
    return LoggedEvent(draft.id, seq, draft.type, now, body, draft.posted)
