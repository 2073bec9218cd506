"""How a session refers to its agent, and what it may replace for itself.

Three forms: the agent's id, `{type: agent, id, version?}` and
`{type: agent_with_overrides, id, version?, …}`. An override replaces its field whole:
left out it is inherited, null (or an empty list) clears it. The result is the
session's own snapshot; the agent is never touched.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from services.sessions.domain import shape
from services.sessions.domain.agent import MAX_SYSTEM_CHARACTERS, validate_skills
from services.sessions.domain.mcp_servers import validate_mcp_servers
from services.sessions.domain.model import Model, validate_model
from services.sessions.domain.roster import is_plain_coordinator
from services.sessions.domain.session_errors import (
    AgentModelRequired,
    AgentToolsClearedWithSkills,
    InvalidAgentOverrideField,
    InvalidAgentOverrides,
    InvalidAgentRef,
    InvalidRequest,
    OverriddenMcpServerNotFound,
    UnknownField,
    UnsupportedCapability,
)
from services.sessions.domain.tools import check_mcp_consistency, validate_tools
from services.sessions.domain.turn_events import THREAD_TOOLS

MAX_VERSION = 2**31 - 1
MAX_ID_CHARACTERS = 256
OVERRIDABLE_FIELDS = ("model", "system", "tools", "mcp_servers", "skills")

Document = dict[str, Any]

_REFERENCE_KEYS = frozenset({"type", "id", "version"})


@dataclass(frozen=True, slots=True)
class AgentReference:
    """Which agent a session runs, at which version, changed how."""

    agent_id: str
    # None stands for the newest.
    version: int | None = None
    # Only the fields that the caller sent.
    overrides: dict[str, Any] = field(default_factory=dict)


def parse_agent_reference(value: Any) -> AgentReference:
    """Reads `agent` of a new session, or refuses it."""
    if isinstance(value, str):
        return AgentReference(_read_id(value, "agent"))
    if not isinstance(value, dict) or value.get("type") not in ("agent", "agent_with_overrides"):
        raise InvalidAgentRef(
            "agent must be an agent id or an object of type agent or agent_with_overrides.", field="agent"
        )
    agent_id = _read_id(value.get("id"), "agent.id")
    version = value.get("version")
    if "version" in value and (type(version) is not int or not 1 <= version <= MAX_VERSION):
        raise InvalidAgentRef(f"agent.version must be a whole number from 1 to {MAX_VERSION}.", field="agent.version")
    if value["type"] == "agent":
        unknown = next((key for key in value if key not in _REFERENCE_KEYS), None)
        if unknown is not None:
            raise InvalidAgentRef(
                f"agent.{unknown} is not part of a reference of type agent; it takes id and version.",
                field=f"agent.{unknown}",
            )
        return AgentReference(agent_id, version)
    overrides = {key: item for key, item in value.items() if key not in _REFERENCE_KEYS}
    unknown = next((key for key in overrides if key not in OVERRIDABLE_FIELDS), None)
    if unknown is not None:
        raise InvalidAgentOverrides(
            f"agent.{unknown} can't be overridden by a session. Overridable: {', '.join(OVERRIDABLE_FIELDS)}.",
            field=f"agent.{unknown}",
        )
    return AgentReference(agent_id, version, overrides)


def apply_overrides(document: Document, model: Model, overrides: dict[str, Any]) -> tuple[Document, Model]:
    """Returns the agent as the session runs it: the saved fields with the overridden ones in their place.

    The agent's version is judged when it is saved; here only what the overrides make of
    it is, so one that changes one side of a coupled pair is judged on the pair.
    """
    changed = {name: _OVERRIDES[name](overrides[name]) for name in _OVERRIDES if name in overrides}
    effective = document | changed
    if "tools" in changed and not changed["tools"] and effective.get("skills"):
        raise AgentToolsClearedWithSkills(
            "agent.tools can't be cleared while the session has skills; clear agent.skills as well.",
            field="agent.tools",
        )
    declared = {server["name"] for server in effective.get("mcp_servers") or []}
    for tool in effective.get("tools") or []:
        if tool["type"] == "mcp_toolset" and tool["mcp_server_name"] not in declared:
            raise OverriddenMcpServerNotFound(
                f"agent.tools binds the MCP server {tool['mcp_server_name']}, which the session does not declare.",
                field="agent.tools",
                mcp_server_name=tool["mcp_server_name"],
            )
    if "model" in overrides:
        model = _override_model(overrides["model"])
    return effective, model


def replace_tools(document: Document, patch: dict[str, Any]) -> Document:
    """Returns the agent of a live session with its tools, its MCP servers or both replaced whole."""
    effective = dict(document)
    if "tools" in patch:
        effective["tools"] = validate_tools(patch["tools"], "agent.tools")
    if "mcp_servers" in patch:
        effective["mcp_servers"] = validate_mcp_servers(patch["mcp_servers"], "agent.mcp_servers")
    check_mcp_consistency(effective.get("tools") or [], effective.get("mcp_servers") or [])
    return effective


def refuse_unavailable(document: Document) -> None:
    """Refuses an agent that needs what no runner of this build can do, naming it."""
    multiagent = document.get("multiagent")
    if not multiagent:
        return
    if not is_plain_coordinator(multiagent):
        raise UnsupportedCapability(
            "The agent uses multiagent in a way that sessions of this build can't run. Use an agent without it.",
            field="agent.multiagent",
            capability="multiagent",
        )
    _refuse_taken_names(document)


def _refuse_taken_names(document: Document) -> None:
    for at, tool in enumerate(document.get("tools") or ()):
        if tool.get("type") == "custom" and tool.get("name") in THREAD_TOOLS:
            raise UnsupportedCapability(
                f"agent.tools.{at}.name is {tool['name']}, which a coordinator has as a tool for its threads. Rename"
                " the custom tool.",
                field=f"agent.tools.{at}.name",
                capability="multiagent",
            )


def without_effort(model: Model) -> Model:
    """The model as a session shows it: nothing here executes effort, so a snapshot doesn't claim it."""
    return {key: value for key, value in model.items() if key != "effort"}


def _override_model(value: Any) -> Model:
    if value is None:
        raise AgentModelRequired("agent.model can't be cleared: a session always runs a model.", field="agent.model")
    if isinstance(value, dict) and value.get("effort") is not None:
        raise InvalidAgentOverrideField(
            "agent.model.effort can't be overridden: no session executes it.", field="agent.model.effort"
        )
    return validate_model(value, field="agent.model")


def _override_system(value: Any) -> str | None:
    return None if value is None else shape.label(value, "agent.system", maximum=MAX_SYSTEM_CHARACTERS)


def _judged(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A malformed override is refused under its own reason; refusals with a reason of their own keep it."""

    def judged(value: Any) -> Any:
        try:
            return read(value)
        except (InvalidRequest, UnknownField) as refusal:
            raise InvalidAgentOverrideField(refusal.message, field=refusal.field) from None

    return judged


def _read_id(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value or len(value) > MAX_ID_CHARACTERS or "\x00" in value:
        raise InvalidAgentRef(f"{path} must be an agent id.", field=path)
    return value


_OVERRIDES: dict[str, Callable[[Any], Any]] = {
    "system": _judged(_override_system),
    "tools": _judged(lambda value: validate_tools(value, "agent.tools")),
    "mcp_servers": _judged(lambda value: validate_mcp_servers(value, "agent.mcp_servers")),
    "skills": _judged(lambda value: validate_skills(value, "agent.skills")),
}
