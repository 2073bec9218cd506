"""What a session may be made of: the checks on the bodies of create and update.

Everything here judges a request by itself. What it refers to (agent, environment) is
judged by the handler, still before anything is written.
"""

from dataclasses import dataclass, field
from typing import Any

from services.sessions.domain.content import check_keys, check_text
from services.sessions.domain.inbound import ClientEvent, validate_events
from services.sessions.domain.metadata import validate_metadata
from services.sessions.domain.overrides import AgentReference, parse_agent_reference
from services.sessions.domain.resources import ResourceRequest, read_resources
from services.sessions.domain.session_errors import (
    ImmutableField,
    InvalidRequest,
    LoopEngineInvalid,
    LoopEngineNotSupported,
)

DEFAULT_ENVIRONMENT_ID = "env_default"
MAX_TITLE_CHARACTERS = 1000
MAX_VAULT_IDS = 50
MAX_ID_CHARACTERS = 256

BUILTIN_ENGINE = "builtin"
# Engines that the contract knows, with why this build can't run them.
_UNAVAILABLE_ENGINES = {
    "pi": "the adapter for a locally installed engine is not part of this build",
    "http": "the adapter for remote agents is not part of this build",
    "harness": "it has no executable adapter",
    "codex": "it has no executable adapter",
    "claude": "it has no executable adapter",
}

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
    loop_engine: str
    # True where the caller sent a budget, which is judged once the model is known.
    has_budget: bool
    budget: Any
    initial_events: list[ClientEvent]
    # In the order in which credentials are looked up; whether they exist is vault's to say.
    vault_ids: list[str] = field(default_factory=list)
    resources: list[ResourceRequest] = field(default_factory=list)


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


def read_new_session(body: Any, *, published: bool, default_engine: str = BUILTIN_ENGINE) -> NewSession:
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
        loop_engine=admit_loop_engine(body.get("loop_engine"), body.get("loop_engine_options"), default_engine),
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


def admit_loop_engine(requested: Any, options: Any, default_engine: str) -> str:
    """Returns the engine that the session is frozen on; an unavailable one is never replaced."""
    if isinstance(requested, dict) and "provider" in requested and requested.keys() <= {"provider", "options"}:
        if options is not None and requested.get("options") is not None:
            raise InvalidRequest(
                "loop_engine_options and loop_engine.options can't both be sent.", field="loop_engine_options"
            )
        options = requested.get("options", options)
        requested = requested["provider"]
    engine = default_engine if requested is None else requested
    if isinstance(engine, str) and engine in _UNAVAILABLE_ENGINES:
        raise LoopEngineNotSupported(
            f"loop_engine {engine} can't be used: {_UNAVAILABLE_ENGINES[engine]}. Available: {BUILTIN_ENGINE}.",
            field="loop_engine",
        )
    if engine != BUILTIN_ENGINE:
        raise LoopEngineInvalid(f"loop_engine must be {BUILTIN_ENGINE}, or left out.", field="loop_engine")
    if options not in (None, {}):
        raise InvalidRequest("loop_engine_options must be empty: builtin takes none.", field="loop_engine_options")
    return BUILTIN_ENGINE


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
