"""Shapes of sessions and their events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from .shapes import JUDGED, JUDGED_EVENT, AnyObject, Metadata, MetadataPatch, Page, Rendered, Shape

MAX_EVENTS_PER_REQUEST = 1000
AGENT_ID = {"type": "string", "minLength": 1, "maxLength": 128}
AGENT_OBJECT = {
    "type": "object",
    "required": ["type", "id"],
    "properties": {
        "type": {"enum": ["agent", "agent_with_overrides"]},
        "id": AGENT_ID,
        "version": {"type": "integer", "minimum": 1},
    },
}
CONTENT = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "maxItems": 1000, "items": {"type": "object", "required": ["type"]}},
    ]
}
AgentReference = Annotated[Any, JUDGED, WithJsonSchema({"anyOf": [AGENT_ID, AGENT_OBJECT]})]
Content = Annotated[Any, JUDGED, WithJsonSchema(CONTENT)]
InitialEvents = Annotated[
    Any,
    JUDGED,
    WithJsonSchema(
        {"anyOf": [{"type": "array", "maxItems": 50, "items": {"type": "object"}}, {"type": "null"}]},
    ),
]
Engine = Annotated[
    Any, JUDGED, WithJsonSchema({"anyOf": [{"type": "string", "maxLength": 64}, {"type": "object"}, {"type": "null"}]})
]
Budget = Annotated[
    Any,
    JUDGED,
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "object",
                    "required": ["type", "max_list_cost"],
                    "properties": {
                        "type": {"const": "limit"},
                        "max_list_cost": {
                            "type": "object",
                            "required": ["amount", "currency"],
                            "properties": {"amount": {"type": "string"}, "currency": {"const": "USD"}},
                        },
                    },
                },
                {"type": "null"},
            ]
        }
    ),
]
Title = Annotated[str, Field(max_length=500)]


class SessionCreate(Shape):
    """A new session. Without an environment it runs in the workspace's default one."""

    model_config = ConfigDict(
        json_schema_extra={
            "required": ["agent"],
            "examples": [{"agent": "AGENT_ID", "title": "A first try"}],
        }
    )

    agent: AgentReference = None
    environment_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    title: Title | None = None
    metadata: Metadata | None = None
    resources: Annotated[list[AnyObject], Field(max_length=500)] | None = None
    vault_ids: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=50)] | None = None
    loop_engine: Engine = None
    loop_engine_options: AnyObject | None = None
    initial_events: InitialEvents = None
    budget: Budget = None


class SessionUpdate(Shape):
    """What may change: what is left out stays, metadata merges."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "A better name"}]})

    title: Title | None = None
    metadata: MetadataPatch | None = None
    budget: Budget = None
    agent: AnyObject | None = None
    vault_ids: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=50)] | None = None


class Session(Rendered):
    """A session. `status` has more words locally than in the published shape."""

    id: str
    type: Literal["session"]
    agent: dict[str, Any]
    environment_id: str
    title: str | None
    status: Literal["idle", "running", "rescheduling", "requires_action", "terminated", "timed_out"]
    metadata: dict[str, str]
    resources: list[dict[str, Any]]
    vault_ids: list[str]
    loop_engine: str
    loop_engine_options: dict[str, Any] | None = None
    usage: dict[str, Any]
    stats: dict[str, Any]
    outcome_evaluations: list[dict[str, Any]]
    created_at: str
    updated_at: str
    archived_at: str | None


class SessionPage(Page):
    """A page of sessions."""

    data: list[Session]


class DeletedSession(Rendered):
    """What is left of a deleted session."""

    id: str
    type: Literal["session_deleted"]


class EventsSend(Shape):
    """Client events, appended all or none: `user.*` types and `system.message`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"events": [{"type": "user.message", "content": "Hello"}]}]}
    )

    events: Annotated[
        list[
            Annotated[
                Any,
                JUDGED_EVENT,
                WithJsonSchema({"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}),
            ]
        ],
        Field(min_length=1, max_length=MAX_EVENTS_PER_REQUEST),
    ]


class MessageSend(Shape):
    """A user message, and whether to follow its turn."""

    model_config = ConfigDict(
        json_schema_extra={
            "required": ["content"],
            "examples": [{"content": "Hello", "stream": True}],
        }
    )

    content: Content = None
    stream: bool | None = None


class Event(Rendered):
    """One event of a session's log."""

    id: str
    type: str
    seq: int
    created_at: str
    processed_at: str | None


class SentEvents(Rendered):
    """The stored events, in order; `accepted` and `steer` where a steer came."""

    data: list[Event]


class EventPage(Page):
    """A page of a log."""

    data: list[Event]
