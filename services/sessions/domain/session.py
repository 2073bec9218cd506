"""What a session may be made of: the checks on the bodies of create and update.

Everything here judges a request by itself. What it refers to (agent, environment) is
judged by the handler, still before anything is written.
"""

from dataclasses import dataclass, field
from typing import Any

from services.sessions.domain.content import check_keys, check_text
from services.sessions.domain.inbound import ClientEvent, validate_events
from services.sessions.domain.loop_engine import EngineChoice, read_choice
from services.sessions.domain.metadata import validate_metadata
from services.sessions.domain.overrides import AgentReference, parse_agent_reference
from services.sessions.domain.resources import ResourceRequest, read_resources
from services.sessions.domain.session_errors import (
    ImmutableField,
    InvalidRequest,
)

DEFAULT_ENVIRONMENT_ID = "env_default"
MAX_TITLE_CHARACTERS = 1000
MAX_VAULT_IDS = 50
MAX_ID_CHARACTERS = 256

_CREATE_FIELDS = frozenset(
    {
        "agent",
        "environment_id",
        "title",
        "metadata",
        "resources",
        "vault_ids",
        "budget",
        "initial_events",
        "loop_engine",
        "loop_engine_options",
    }
)
_UPDATE_FIELDS = frozenset({"title", "metadata", "budget", "agent"})
_AGENT_UPDATE_FIELDS = frozenset({"tools", "mcp_servers"})


@dataclass(frozen=True, slots=True)
class NewSession:
    """A creation request whose every field is sound by itself."""

    agent: AgentReference
    environment_id: str
    title: str | None
    metadata: dict[str, str]
    # None where the request leaves it to the agent and the settings.
    loop_engine: EngineChoice | None
    # True where the caller sent a budget, which is judged once the model is known.
    has_budget: bool
    budget: Any
    initial_events: list[ClientEvent]
    # In the order in which credentials are looked up; whether they exist is vault's to say.
    vault_ids: list[str] = field(default_factory=list)
    resources: list[ResourceRequest] = field(default_factory=list)
    # Those of its vaults that hold environment variables, as vault said.
    vaults_with_variables: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SessionPatch:
    """An update request whose every field is sound by itself; absent fields are unset."""

    has_title: bool = False
    title: str | None = None
    # Merged per key: a string sets it, None deletes it; None as a whole empties the bag.
    has_metadata: bool = False
    metadata: Any = None
    has_budget: bool = False
    budget: Any = None
    # `tools` and `mcp_servers`, as sent.
    agent: dict[str, Any] | None = None


def read_new_session(body: Any, *, published: bool) -> NewSession:
    """Reads the body of a creation, or refuses it by the first field that is wrong."""
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    check_keys(body, "", _CREATE_FIELDS)
    if "agent" not in body:
        raise InvalidRequest("agent is required: an agent id or a reference object.", field="agent")
    agent = parse_agent_reference(body["agent"])
    environment_id = body.get("environment_id")
    if environment_id is None:
        environment_id = DEFAULT_ENVIRONMENT_ID
    check_text(environment_id, "environment_id", limit=MAX_ID_CHARACTERS)
    _check_title(body.get("title"))
    resources = read_resources(body.get("resources"), published=published)
    return NewSession(
        agent=agent,
        environment_id=environment_id,
        title=body.get("title"),
        metadata=validate_metadata(body.get("metadata")),
        loop_engine=read_choice(body),
        has_budget="budget" in body,
        budget=body.get("budget"),
        initial_events=(
            validate_events(body["initial_events"], initial=True, published=published)
            if "initial_events" in body
            else []
        ),
        vault_ids=_read_vault_ids(body.get("vault_ids")),
        resources=resources,
    )


def read_session_patch(body: Any) -> SessionPatch:
    """Reads the body of an update; fields that are fixed at creation are refused as such."""
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    fixed = next((name for name in body if name in _CREATE_FIELDS - _UPDATE_FIELDS), None)
    if fixed is not None:
        raise ImmutableField(
            f"{fixed} is fixed when a session is created. Accepted here: {', '.join(sorted(_UPDATE_FIELDS))}.",
            field=fixed,
        )
    check_keys(body, "", _UPDATE_FIELDS)
    _check_title(body.get("title"))
    agent = body.get("agent")
    if "agent" in body:
        if not isinstance(agent, dict):
            raise InvalidRequest("agent must be an object with tools, mcp_servers or both.", field="agent")
        check_keys(agent, "agent", _AGENT_UPDATE_FIELDS)
    return SessionPatch(
        has_title="title" in body,
        title=body.get("title"),
        has_metadata="metadata" in body,
        metadata=body.get("metadata"),
        has_budget="budget" in body,
        budget=body.get("budget"),
        agent=agent,
    )


def _check_title(value: Any) -> None:
    if value is not None:
        check_text(value, "title", blank=True, limit=MAX_TITLE_CHARACTERS)


def _read_vault_ids(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_VAULT_IDS:
        raise InvalidRequest(f"vault_ids must be an array of at most {MAX_VAULT_IDS} vault ids.", field="vault_ids")
    for index, vault_id in enumerate(value):
        check_text(vault_id, f"vault_ids.{index}", limit=MAX_ID_CHARACTERS)
    return list(value)
