"""Which agents an agent may call: the `multiagent` part of a definition.

Two shapes: `coordinator` with one roster, and `multiagent_20261001` with a roster for
subagents, one for workflows, and an advisor. What is stored names each agent with a
version, decided when the agent itself is saved. An entry that means the agent itself
always names the version being saved. Rosters are one level deep.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from services.sessions.domain import shape
from services.sessions.domain.session_errors import InvalidRequest

COORDINATOR = "coordinator"
MEMBERS = "multiagent_20261001"
KINDS = (COORDINATOR, MEMBERS)
MAX_AGENTS = 20
MAX_ID_CHARACTERS = 256
MAX_MODEL_CHARACTERS = 256
MAX_VERSION = 2**31 - 1

_ROSTERS = ("subagents", "workflows")
_ENABLED = {"type": "enabled"}
_DISABLED = {"type": "disabled"}

Multiagent = dict[str, Any]
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RosterReference:
    """An agent that a roster names; no version stands for the newest."""

    field: str
    agent_id: str
    version: int | None


@dataclass(frozen=True, slots=True)
class RosterAgent:
    """What is known of an agent that a roster names."""

    agent_id: str
    version: int
    archived: bool
    has_roster: bool


def validate_multiagent(value: Any, field: str = "multiagent") -> Multiagent | None:
    """The sound form of `multiagent` with entries still to be resolved; null is none."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object or null.", field=field)
    kind = shape.one_of(value.get("type"), f"{field}.type", KINDS)
    if kind == COORDINATOR:
        shape.known_only(value, field, ("type", "agents"))
        agents = _roster(value.get("agents"), f"{field}.agents", advisors=True)
        if not agents:
            raise InvalidRequest(f"{field}.agents must name 1 to {MAX_AGENTS} agents.", field=f"{field}.agents")
        return {"type": COORDINATOR, "agents": agents}
    shape.known_only(value, field, ("type", *_ROSTERS, "advisor"))
    rosters = {name: _member(value.get(name), f"{field}.{name}") for name in _ROSTERS}
    return {"type": MEMBERS} | rosters | {"advisor": _advisor(value.get("advisor"), f"{field}.advisor")}


def is_plain_coordinator(multiagent: Multiagent) -> bool:
    """Whether a roster has nothing but agents that take threads: no advisor, no workflows."""
    return multiagent["type"] == COORDINATOR and all(entry["type"] == "agent" for entry in multiagent["agents"])


def merge_multiagent(stored: Multiagent | None, patch: Any, field: str = "multiagent") -> Multiagent | None:
    """The value after an update: replaced, but for the member form, which merges level by level."""
    if stored and isinstance(patch, dict) and stored["type"] == patch.get("type") == MEMBERS:
        patch = _merge_members(stored, patch)
    return validate_multiagent(patch, field)


def references(multiagent: Multiagent | None, own_id: str, field: str = "multiagent") -> list[RosterReference]:
    """The other agents that have to be looked up before the roster can be saved."""
    found: list[RosterReference] = []
    for path, roster in _rosters(multiagent, field):
        for index, entry in enumerate(roster):
            if entry["type"] == "agent" and entry["id"] != own_id:
                found.append(RosterReference(f"{path}.{index}", entry["id"], entry.get("version")))
    return found


def resolve(multiagent: Multiagent, own_id: str, own_version: int, known: list[RosterAgent | None]) -> Multiagent:
    """The roster with a version on each entry; `known` answers `references`, in its order."""
    answers = dict(zip(references(multiagent, own_id), known, strict=True))
    versions = {reference: _usable(reference, answer) for reference, answer in answers.items()}
    order = iter(versions.values())

    def stamp(entry: Entry) -> Entry:
        return entry if entry["type"] != "agent" or entry["id"] == own_id else entry | {"version": next(order)}

    return stamp_self(_each_entry(multiagent, stamp), own_id, own_version)


def stamp_self(multiagent: Multiagent, own_id: str, own_version: int) -> Multiagent:
    """The roster with this version on the entry that means the agent itself."""

    def stamp(entry: Entry) -> Entry:
        means_self = entry["type"] == "self" or (entry["type"] == "agent" and entry["id"] == own_id)
        return {"type": "agent", "id": own_id, "version": own_version} if means_self else entry

    stamped = _each_entry(multiagent, stamp)
    for path, roster in _rosters(stamped, "multiagent"):
        if sum(1 for entry in roster if entry.get("id") == own_id) > 1:
            raise InvalidRequest(f"{path} names the agent itself more than once.", field=path)
    return stamped


def _usable(reference: RosterReference, agent: RosterAgent | None) -> int:
    if agent is None:
        version = f" at version {reference.version}" if reference.version else ""
        raise InvalidRequest(
            f"{reference.field} names the agent {reference.agent_id}{version}, which does not exist.",
            field=reference.field,
        )
    if agent.archived:
        raise InvalidRequest(
            f"{reference.field} names the agent {agent.agent_id}, which is archived.", field=reference.field
        )
    if agent.has_roster:
        raise InvalidRequest(
            f"{reference.field} names the agent {agent.agent_id}, which has a roster itself; rosters are one level"
            " deep.",
            field=reference.field,
        )
    return agent.version


def _rosters(multiagent: Multiagent | None, field: str) -> Iterator[tuple[str, list[Entry]]]:
    if multiagent is None:
        return
    if multiagent["type"] == COORDINATOR:
        yield f"{field}.agents", multiagent["agents"]
        return
    for name in _ROSTERS:
        if multiagent[name]["type"] == "enabled":
            yield f"{field}.{name}.predefined_agents", multiagent[name]["predefined_agents"]


def _each_entry(multiagent: Multiagent, change: Callable[[Entry], Entry]) -> Multiagent:
    if multiagent["type"] == COORDINATOR:
        return multiagent | {"agents": [change(entry) for entry in multiagent["agents"]]}
    changed = {
        name: multiagent[name]
        | {"predefined_agents": [change(entry) for entry in multiagent[name]["predefined_agents"]]}
        for name in _ROSTERS
        if multiagent[name]["type"] == "enabled"
    }
    return multiagent | changed


def _roster(value: Any, field: str, *, advisors: bool) -> list[Entry]:
    roster: list[Entry] = []
    seen: set[str] = set()
    for index, entry in enumerate(shape.entries(value, field, maximum=MAX_AGENTS)):
        path = f"{field}.{index}"
        read = _entry(entry, path, advisors=advisors)
        key = read.get("id", read["type"])
        if key in seen:
            raise InvalidRequest(f"{path} repeats an entry of {field}; entries are distinct.", field=path)
        seen.add(key)
        roster.append(read)
    return roster


def _entry(entry: Any, path: str, *, advisors: bool) -> Entry:
    if isinstance(entry, str):
        return {"type": "agent", "id": shape.label(entry, path, maximum=MAX_ID_CHARACTERS)}
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{path} must be the id of an agent or an object.", field=path)
    kind = shape.one_of(
        entry.get("type"), f"{path}.type", ("agent", "self", "advisor") if advisors else ("agent", "self")
    )
    if kind == "self":
        shape.known_only(entry, path, ("type",))
        return {"type": "self"}
    if kind == "advisor":
        shape.known_only(entry, path, ("type", "model"))
        return {"type": "advisor", "model": _advisor_model(entry.get("model"), f"{path}.model")}
    shape.known_only(entry, path, ("type", "id", "version"))
    read = {"type": "agent", "id": shape.label(entry.get("id"), f"{path}.id", maximum=MAX_ID_CHARACTERS)}
    if entry.get("version") is None:
        return read
    return read | {"version": shape.whole(entry["version"], f"{path}.version", minimum=1, maximum=MAX_VERSION)}


def _member(value: Any, field: str) -> Entry:
    given = dict(_ENABLED) if value is None else value
    if not isinstance(given, dict):
        raise InvalidRequest(f"{field} must be an object or null.", field=field)
    if shape.one_of(given.get("type"), f"{field}.type", ("enabled", "disabled")) == "disabled":
        shape.known_only(given, field, ("type",))
        return dict(_DISABLED)
    shape.known_only(given, field, ("type", "inline_agents", "predefined_agents"))
    inline = _inline_agents(given.get("inline_agents"), f"{field}.inline_agents")
    roster = _roster(given.get("predefined_agents"), f"{field}.predefined_agents", advisors=False)
    if inline["type"] == "disabled" and not roster:
        raise InvalidRequest(
            f"{field} has neither inline nor predefined agents; name some, or disable {field}.",
            field=f"{field}.predefined_agents",
        )
    return {"type": "enabled", "inline_agents": inline, "predefined_agents": roster}


def _inline_agents(value: Any, field: str) -> Entry:
    if value is None:
        return dict(_ENABLED)
    shape.mapping(value, field, ("type",))
    return {"type": shape.one_of(value.get("type"), f"{field}.type", ("enabled", "disabled"))}


def _advisor(value: Any, field: str) -> Entry:
    if value is None:
        return dict(_DISABLED)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object or null.", field=field)
    if shape.one_of(value.get("type"), f"{field}.type", ("enabled", "disabled")) == "disabled":
        shape.known_only(value, field, ("type",))
        return dict(_DISABLED)
    shape.known_only(value, field, ("type", "model"))
    return {"type": "enabled", "model": _advisor_model(value.get("model"), f"{field}.model")}


def _advisor_model(value: Any, field: str) -> str:
    return shape.label(value, field, maximum=MAX_MODEL_CHARACTERS)


def _merge_members(stored: Multiagent, patch: Multiagent) -> Multiagent:
    merged = {"type": MEMBERS}
    for name in (*_ROSTERS, "advisor"):
        merged[name] = _merge_level(stored[name], patch[name]) if name in patch else stored[name]
    return merged | {key: value for key, value in patch.items() if key not in merged}


def _merge_level(stored: Entry, patch: Any) -> Any:
    if not isinstance(patch, dict) or patch.get("type") != stored["type"]:
        return patch
    return stored | patch
