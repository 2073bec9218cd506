"""Shapes of agents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from .sessions import Engine
from .shapes import JUDGED, AnyObject, Description, Label, Metadata, MetadataPatch, Page, Rendered, Shape

MODEL_OBJECT = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 256},
        "speed": {"enum": ["standard", "fast", "extended"]},
        "effort": {
            "anyOf": [
                {"enum": ["low", "medium", "high", "xhigh", "max"]},
                {
                    "type": "object",
                    "required": ["type"],
                    "properties": {"type": {"enum": ["low", "medium", "high", "xhigh", "max"]}},
                    "additionalProperties": False,
                },
            ]
        },
    },
    "additionalProperties": False,
}
Model = Annotated[
    Any, JUDGED, WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1, "maxLength": 256}, MODEL_OBJECT]})
]
ModelObject = Annotated[Any, JUDGED, WithJsonSchema({"anyOf": [MODEL_OBJECT, {"type": "null"}]})]
System = Annotated[str, Field(max_length=100_000)]
Tools = Annotated[list[AnyObject], Field(max_length=256)]
Servers = Annotated[list[AnyObject], Field(max_length=20)]
Skills = Annotated[list[AnyObject], Field(max_length=20)]
Version = Annotated[int, Field(ge=1, le=2_147_483_647)]


class _Definition(Shape):
    description: Description | None = None
    model: Model = None
    # `model_config` is pydantic's own name; only the spelling outside matters.
    settings_of_model: ModelObject = Field(default=None, alias="model_config")
    system: System | None = None
    tools: Tools | None = None
    mcp_servers: Servers | None = None
    skills: Skills | None = None
    multiagent: AnyObject | None = None
    execution_identity: AnyObject | None = None
    guardrails: AnyObject | None = Field(
        default=None, description="Checks on what goes in and out: `input` and `output`."
    )
    gateway_session: AnyObject | None = Field(
        default=None, description="What sessions of the session gateway are begun with."
    )
    loop_engine: Engine = None
    loop_engine_options: AnyObject | None = None


class AgentCreate(_Definition):
    """A new agent."""

    model_config = ConfigDict(
        json_schema_extra={
            "required": ["name", "model"],
            "examples": [
                {
                    "name": "assistant",
                    "model": "default",
                    "system": "You are helpful.",
                    "tools": [{"type": "agent_toolset_20260401"}],
                }
            ],
        }
    )

    name: Label
    metadata: Metadata | None = None


class AgentUpdate(_Definition):
    """A partial definition: what is left out stays, null clears, lists replace, metadata merges."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"system": "You are brief.", "metadata": {"tier": "1"}}]})

    name: Annotated[str, Field(max_length=256)] | None = None
    metadata: MetadataPatch | None = None
    version: Version = Field(default=1, description="Fails with 409 where the agent is at another version.")
    expected_version: Version = Field(default=1, description="The local spelling of `version`.")


class Agent(Rendered):
    """One version of an agent. `model` is the id locally, an object in the published shape."""

    id: str
    type: Literal["agent"]
    name: str
    description: str | None
    model: str | dict[str, Any]
    system: str | None
    tools: list[dict[str, Any]]
    mcp_servers: list[dict[str, Any]]
    skills: list[dict[str, Any]]
    metadata: dict[str, str]
    loop_engine: str | None = None
    loop_engine_options: dict[str, Any] | None = None
    status: Literal["active", "archived"]
    version: int
    created_at: str
    updated_at: str
    archived_at: str | None


class AgentPage(Page):
    """A page of agents, or of versions of one."""

    data: list[Agent]
