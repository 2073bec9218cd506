"""Shapes of the HTTP agent protocol."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from .shapes import JUDGED, MAX_TEXT_LENGTH, AnyObject, Rendered, Shape

MAX_SYSTEM_LENGTH = 100_000


class StepTool(Shape):
    """A tool that the caller runs."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: Annotated[str, Field(max_length=16_384)]
    input_schema: AnyObject


class StepResult(Shape):
    """What became of one call: `result` where `ok`, else `error`."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    ok: bool
    result: Annotated[Any, JUDGED] = None
    error: Annotated[str, Field(max_length=MAX_TEXT_LENGTH)] | None = None


class StepTake(Shape):
    """One step of a conversation, with either `message` or `tool_results`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "session_id": "20261018T210512-k3f9/order-status#0",
                    "system": "You answer questions about orders.",
                    "tools": [
                        {
                            "name": "get_order",
                            "description": "Reads one order.",
                            "input_schema": {
                                "type": "object",
                                "properties": {"order_id": {"type": "string"}},
                                "required": ["order_id"],
                                "additionalProperties": False,
                            },
                        }
                    ],
                    "message": "Where is my order O-17?",
                }
            ]
        }
    )

    session_id: Annotated[str, Field(min_length=1, max_length=1000)]
    system: Annotated[str, Field(max_length=MAX_SYSTEM_LENGTH)] | None = None
    tools: Annotated[list[StepTool], Field(max_length=128)] | None = None
    message: Annotated[str, Field(max_length=MAX_TEXT_LENGTH)] | None = None
    tool_results: Annotated[list[StepResult], Field(max_length=1000)] | None = None
    step: Annotated[int, Field(ge=0, le=2**53)] | None = None


class StepAnswer(Rendered):
    """What the agent says, or which of the caller's tools it calls; one of the two is there."""

    reply: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
