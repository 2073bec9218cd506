"""Shapes of runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from .sessions import AGENT_ID, Content, Engine, Title
from .shapes import JUDGED, AnyObject, Metadata, Rendered, Shape

PINNED_AGENT = {
    "type": "object",
    "required": ["type", "id"],
    "properties": {"type": {"const": "agent"}, "id": AGENT_ID, "version": {"type": "integer", "minimum": 1}},
}
PinnedAgent = Annotated[Any, JUDGED, WithJsonSchema({"anyOf": [AGENT_ID, PINNED_AGENT]})]


class RunSession(Shape):
    """What the run's session is made with."""

    title: Title | None = None
    metadata: Metadata | None = None
    resources: Annotated[list[AnyObject], Field(max_length=500)] | None = None
    vault_ids: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=50)] | None = None
    loop_engine: Engine = None
    loop_engine_options: AnyObject | None = None


class RunCreate(Shape):
    """One turn of a new session. `max_wait_seconds` bounds the answer of `wait`, never the turn."""

    model_config = ConfigDict(
        json_schema_extra={
            "required": ["agent", "input"],
            "examples": [{"agent": "AGENT_ID", "input": "Write a haiku into poem.txt.", "max_wait_seconds": 60}],
        }
    )

    agent: PinnedAgent = None
    input: Content = None
    response_mode: Literal["wait", "sse", "async"] | None = None
    max_wait_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] | None = None
    session: RunSession | None = None


class Run(Rendered):
    """A run: its result, or where it is to be read while it goes on."""

    run_id: str
    session_id: str
    status: str
