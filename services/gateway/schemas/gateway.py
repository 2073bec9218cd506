"""Shapes of the session gateway, and of what it publishes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from .sessions import CONTENT
from .shapes import JUDGED, Rendered, Shape

Identifier = Annotated[str, Field(min_length=1, max_length=256)]
Message = Annotated[Any, JUDGED, WithJsonSchema(CONTENT)]


class InputResponse(Shape):
    """What a person said to one `input-requested`: a decision, or the answer to a question."""

    requestId: Identifier
    optionId: Literal["approve", "deny"] | None = None
    text: Annotated[str, Field(max_length=100_000)] | None = None


class GatewaySend(Shape):
    """Exactly one of `message`, `inputResponses` and `turnId`. `turnId` cancels."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"message": "Summarise the report."},
                {"sessionId": "SESSION_ID", "message": [{"type": "text", "text": "And the next one."}]},
                {"sessionId": "SESSION_ID", "inputResponses": [{"requestId": "REQUEST_ID", "optionId": "approve"}]},
                {"turnId": "RUN_ID"},
            ]
        }
    )

    message: Message = None
    inputResponses: Annotated[list[InputResponse], Field(min_length=1, max_length=100)] | None = None
    sessionId: Identifier | None = None
    turnId: Identifier | None = None


class GatewayCancel(Shape):
    """Nothing has to be sent; `turnId` cancels only that run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"turnId": "RUN_ID"}]})

    turnId: Identifier | None = None


class Cancellation(Rendered):
    """What was found: `cancelling` ends as `cancelled`, `over` had ended before."""

    sessionId: str
    turnId: str | None
    status: Literal["cancelling", "over"]


class GatewayRun(Rendered):
    """One run, and the configuration that was frozen onto it."""

    runId: str
    turnId: str
    sessionId: str
    agentId: str
    status: Literal["running", "waiting", "completed", "failed", "cancelled"]
    configuration: dict[str, Any]
    traceId: str | None
    startedAt: str


class TicketCreate(Shape):
    """A ticket for one browser. `user` names the person whose sessions it will see: no other's."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "user-17", "seconds": 3600}]})

    user: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    seconds: Annotated[int, Field(ge=60, le=86_400)] = Field(
        default=3600, description="How long the cookie will be good for."
    )


class Ticket(Rendered):
    """To be handed to the browser, which exchanges it once, within a minute, for its cookie."""

    ticket: str
    expiresAt: str


class TicketExchange(Shape):
    """The ticket that a page was handed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ticket": "TICKET"}]})

    ticket: Annotated[str, Field(min_length=1, max_length=4096)]


class BrowserSession(Rendered):
    """The cookie is set; `expiresAt` tells until when it is good."""

    expiresAt: str
    user: str | None


class Publish(Shape):
    """The version to publish; the newest where left out."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"version": 1}]})

    version: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None


class Publication(Rendered):
    """Which version the session gateway runs. `published_at` is null where none was ever published."""

    type: Literal["agent_publication"]
    agent_id: str
    version: int
    published_at: str | None
    published_by: str | None
