"""Agents: what a definition may say, how an update changes it, and what a version is.

    document = validate_definition(body, published=False)           # creation
    expected, patch = take_precondition(body)                       # update
    changed = merge_definition(stored, patch, published=False)
    if not changed.same_as(stored): …save a new version…

A merged definition is judged as a whole, so a patch that changes one side of a coupled
pair is refused for the pair that it would produce. Local callers must give a system
prompt; published-contract callers may go without, and the platform's default applies.
"""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import orjson

from services.sessions.domain import shape
from services.sessions.domain.errors import AgentArchived, AgentVersionConflict, InvalidModel
from services.sessions.domain.gateway import validate_gateway_session
from services.sessions.domain.guardrails import validate_guardrails
from services.sessions.domain.loop_engine import EngineChoice, read_choice
from services.sessions.domain.mcp_servers import validate_mcp_servers
from services.sessions.domain.metadata import merge_metadata, validate_metadata
from services.sessions.domain.model import Model, merge_model, validate_model
from services.sessions.domain.roster import Multiagent, merge_multiagent, stamp_self, validate_multiagent
from services.sessions.domain.session_errors import InvalidRequest, UnsupportedCapability
from services.sessions.domain.tools import check_mcp_consistency, validate_tools

FIELDS = (
    "name",
    "description",
    "model",
    "model_config",
    "system",
    "tools",
    "mcp_servers",
    "skills",
    "metadata",
    "multiagent",
    "execution_identity",
    "loop_engine",
    "loop_engine_options",
    "guardrails",
    "gateway_session",
)
PRECONDITIONS = ("version", "expected_version")
SKILL_TYPES = ("anthropic", "custom")
SERVICE_ACCOUNT = {"type": "service_account"}
LATEST_SKILL = "latest"

MAX_NAME_CHARACTERS = 256
MAX_DESCRIPTION_CHARACTERS = 2048
MAX_SYSTEM_CHARACTERS = 100_000
MAX_SKILLS = 20
MAX_SKILL_ID_CHARACTERS = 128
MAX_SKILL_VERSION_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class AgentDocument:
    """A sound definition, with defaults filled in."""

    name: str
    description: str | None
    system: str | None
    tools: list[dict[str, Any]]
    mcp_servers: list[dict[str, Any]]
    skills: list[dict[str, Any]]
    metadata: dict[str, str]
    multiagent: Multiagent | None
    execution_identity: dict[str, str]
    model: Model
    # The engine of its sessions, where the agent chooses one; a document without says nothing of it.
    loop_engine: str | None = None
    loop_engine_options: dict[str, Any] | None = None
    # What is checked of inputs and answers, and what sessions of the gateway are begun with; left out likewise.
    guardrails: dict[str, Any] | None = None
    gateway_session: dict[str, Any] | None = None

    @classmethod
    def from_json(cls, document: str, model: str) -> "AgentDocument":
        """The definition that was stored; fields that an older build didn't store get their defaults."""
        stored = orjson.loads(document)
        return cls(
            name=stored["name"],
            description=stored.get("description"),
            system=stored.get("system"),
            tools=stored.get("tools", []),
            mcp_servers=stored.get("mcp_servers", []),
            skills=stored.get("skills", []),
            metadata=stored.get("metadata", {}),
            multiagent=stored.get("multiagent"),
            execution_identity=stored.get("execution_identity", SERVICE_ACCOUNT),
            model=orjson.loads(model),
            loop_engine=stored.get("loop_engine"),
            loop_engine_options=stored.get("loop_engine_options"),
            guardrails=stored.get("guardrails"),
            gateway_session=stored.get("gateway_session"),
        )

    @property
    def engine(self) -> EngineChoice | None:
        """The engine that the agent chooses."""
        return None if self.loop_engine is None else EngineChoice(self.loop_engine, self.loop_engine_options or {})

    def document_json(self) -> str:
        """Everything but the model, rendered once: reads pass this text through."""
        said = {name: getattr(self, name) for name in self.__slots__ if name != "model"}
        for name in _LEFT_OUT_IF_NONE:
            if said[name] is None:
                del said[name]
        return orjson.dumps(said).decode()

    def model_json(self) -> str:
        """The model as `{id, speed, effort?}`."""
        return orjson.dumps(self.model).decode()

    @property
    def model_id(self) -> str:
        """The bare id of the model."""
        return self.model["id"]

    def same_as(self, other: "AgentDocument") -> bool:
        """Whether both say the same, whatever the order of their keys."""
        # Rendered, because Python holds True equal to 1 and 1 equal to 1.0.
        return _canonical(self) == _canonical(other)

    def saved_as(self, agent_id: str, version: int) -> "AgentDocument":
        """The definition as this version of this agent: entries that mean the agent itself name the version."""
        return (
            self
            if self.multiagent is None
            else replace(self, multiagent=stamp_self(self.multiagent, agent_id, version))
        )


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """One stored version, with the state of its agent."""

    id: str
    version: int
    # Rendered JSON, as `AgentDocument.document_json` and `model_json` make it.
    document: str
    model: str
    model_id: str
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None

    def definition(self) -> AgentDocument:
        """The parsed definition."""
        return AgentDocument.from_json(self.document, self.model)

    def require_active(self) -> None:
        """Refuses an archived agent."""
        if self.archived_at is not None:
            raise AgentArchived(
                f"The agent {self.id} is archived and takes no changes and no new sessions.", agent_id=self.id
            )

    def require_version(self, expected: int | None) -> None:
        """Refuses where the caller expects another version; None expects nothing."""
        if expected is not None and expected != self.version:
            raise AgentVersionConflict(
                f"The agent {self.id} is at version {self.version}, not {expected}. Read it again and repeat the"
                " change on top.",
                agent_id=self.id,
                expected_version=expected,
                current_version=self.version,
            )


def validate_definition(definition: dict[str, Any], *, published: bool) -> AgentDocument:
    """The document of a new agent, or a refusal that names the field."""
    shape.known_only(definition, "", FIELDS)
    for field in ("name", "model"):
        if definition.get(field) is None:
            kind = InvalidModel if field == "model" else InvalidRequest
            raise kind(f"{field} is required.", field=field)
    document = AgentDocument(
        name=shape.label(definition["name"], "name", maximum=MAX_NAME_CHARACTERS),
        description=validate_description(definition.get("description")),
        system=validate_system(definition.get("system"), published=published),
        tools=validate_tools(definition.get("tools")),
        mcp_servers=validate_mcp_servers(definition.get("mcp_servers")),
        skills=validate_skills(definition.get("skills")),
        metadata=validate_metadata(definition.get("metadata")),
        multiagent=validate_multiagent(definition.get("multiagent")),
        execution_identity=validate_execution_identity(definition.get("execution_identity")),
        model=validate_model(definition["model"], definition.get("model_config")),
        **_engine_fields(read_choice(definition)),
        guardrails=validate_guardrails(definition.get("guardrails")),
        gateway_session=validate_gateway_session(definition.get("gateway_session")),
    )
    check_mcp_consistency(document.tools, document.mcp_servers)
    return document


def take_precondition(patch: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
    """The version that an update expects, under either name, and the patch without it."""
    given = {name: patch[name] for name in PRECONDITIONS if name in patch}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidRequest(f"{name} must be a whole number from 1 on, or be left out.", field=name)
    if len(set(given.values())) > 1:
        raise InvalidRequest(
            "version and expected_version are two names of one precondition and must not differ. Send one of them.",
            field="expected_version",
        )
    rest = {name: value for name, value in patch.items() if name not in PRECONDITIONS}
    shape.known_only(rest, "", (*FIELDS, *PRECONDITIONS))
    return next(iter(given.values()), None), rest


def merge_definition(stored: AgentDocument, patch: dict[str, Any], *, published: bool) -> AgentDocument:
    """The definition after a patch: left out keeps, null clears, lists replace, metadata merges."""
    shape.known_only(patch, "", FIELDS)
    merged = replace(stored, model=merge_model(stored.model, patch), **_replaced(stored, patch, published))
    check_mcp_consistency(merged.tools, merged.mcp_servers)
    return merged


def validate_description(value: Any, field: str = "description") -> str | None:
    """A description; null and the empty string both mean none."""
    return None if value is None else shape.text(value, field, maximum=MAX_DESCRIPTION_CHARACTERS) or None


def validate_system(value: Any, field: str = "system", *, published: bool) -> str | None:
    """A system prompt; only a published-contract caller may have none."""
    if value is not None:
        shape.text(value, field, maximum=MAX_SYSTEM_CHARACTERS)
    if value is None or not value.strip():
        if not published:
            raise InvalidRequest(f"{field} is required: a system prompt that is more than whitespace.", field=field)
        return None
    return value


def validate_skills(value: Any, field: str = "skills") -> list[dict[str, Any]]:
    """The stored form of a `skills` array; null is an empty one, a missing version is the latest."""
    skills: list[dict[str, Any]] = []
    seen: set[str] = set()
    for index, entry in enumerate(shape.entries(value, field, maximum=MAX_SKILLS)):
        path = f"{field}.{index}"
        shape.mapping(entry, path, ("type", "skill_id", "version"))
        kind = shape.one_of(entry.get("type"), f"{path}.type", SKILL_TYPES)
        skill_id = shape.label(entry.get("skill_id"), f"{path}.skill_id", maximum=MAX_SKILL_ID_CHARACTERS)
        version = entry.get("version")
        if version is not None:
            shape.label(version, f"{path}.version", maximum=MAX_SKILL_VERSION_CHARACTERS)
        if skill_id in seen:
            raise InvalidRequest(f"{path}.skill_id repeats {skill_id}.", field=f"{path}.skill_id")
        seen.add(skill_id)
        skills.append({"type": kind, "skill_id": skill_id, "version": version or LATEST_SKILL})
    return skills


def validate_execution_identity(value: Any, field: str = "execution_identity") -> dict[str, str]:
    """Who a run acts as: only the platform's own service account."""
    if value is None:
        return SERVICE_ACCOUNT
    if isinstance(value, dict) and value.get("type") == "aws_role":
        raise UnsupportedCapability(
            f"{field} of type aws_role can't be assumed by this platform; use service_account or leave it out.",
            field=f"{field}.type",
        )
    shape.mapping(value, field, ("type",))
    return {"type": shape.one_of(value.get("type"), f"{field}.type", ("service_account",))}


def _replaced(stored: AgentDocument, patch: dict[str, Any], published: bool) -> dict[str, Any]:
    validators = {
        "name": _replacement_name,
        "description": validate_description,
        "system": lambda value: _replacement_system(value, published),
        "tools": validate_tools,
        "mcp_servers": validate_mcp_servers,
        "skills": validate_skills,
        "metadata": lambda value: merge_metadata(stored.metadata, value),
        "multiagent": lambda value: merge_multiagent(stored.multiagent, value),
        "execution_identity": validate_execution_identity,
        "guardrails": validate_guardrails,
        "gateway_session": validate_gateway_session,
    }
    replaced = {name: validate(patch[name]) for name, validate in validators.items() if name in patch}
    return replaced | _replaced_engine(stored, patch)


def _replaced_engine(stored: AgentDocument, patch: dict[str, Any]) -> dict[str, Any]:
    if "loop_engine" not in patch and patch.get("loop_engine_options") is None:
        return {}
    return _engine_fields(read_choice(patch, stored.engine))


def _engine_fields(choice: EngineChoice | None) -> dict[str, Any]:
    return _NO_ENGINE | (choice.to_fields() if choice is not None else {})


_NO_ENGINE: dict[str, Any] = {"loop_engine": None, "loop_engine_options": None}
_LEFT_OUT_IF_NONE = (*_NO_ENGINE, "guardrails", "gateway_session")


def _replacement_name(value: Any) -> str:
    if value is None or value == "":
        raise InvalidRequest("name cannot be cleared: an agent always has one. Leave it out to keep it.", field="name")
    return shape.label(value, "name", maximum=MAX_NAME_CHARACTERS)


def _replacement_system(value: Any, published: bool) -> str | None:
    if not published and (value is None or (isinstance(value, str) and not value.strip())):
        raise InvalidRequest(
            "system cannot be cleared: the agent needs a non-empty system prompt. Leave it out to keep it.",
            field="system",
        )
    return validate_system(value, published=published)


def _canonical(document: AgentDocument) -> bytes:
    return orjson.dumps(asdict(document), option=orjson.OPT_SORT_KEYS)
