"""What can be chosen in each area of the settings document, and what this build lacks.

One table says both: what readers are shown as descriptors, and what a candidate is held to.
An adapter with a reason is known and can't be chosen. Options are described by the small part
of JSON Schema that `problem_of` checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kit import http_engine
from services.vault.domain.faults import Faults, joined

DEFAULT_MAX_STEPS, LONGEST_MAX_STEPS = 25, 1000
# Ten years: whoever wants to wait longer sets no bound.
LONGEST_WAIT_SECONDS = 315_360_000
NO_DEFAULT_FOR_WORKERS = (
    "workers serve environments of their own: create one with hosting_type self_hosted, and name it in sessions"
)
NO_CHOICE = "an installation always keeps files"
NO_MEMORY = "no memory is part of this build"
NO_SQLITE = "the platform keeps its state in PostgreSQL"
NO_EXECUTABLE = "it has no executable adapter"

BUILTIN_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "default_max_steps": {
            "type": "integer",
            "minimum": 1,
            "maximum": LONGEST_MAX_STEPS,
            "default": DEFAULT_MAX_STEPS,
            "description": "Model requests that one turn may make.",
        },
        "requires_action_timeout_seconds": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": LONGEST_WAIT_SECONDS,
            "default": None,
            "description": "How long a session waits for answers before it is ended; null: for ever.",
        },
        "approval_mode": {
            "type": "string",
            "enum": ["interactive"],
            "default": "interactive",
            "description": "Who answers a gated call: a person. Answers by the platform belong to the engine pi.",
        },
    }
)

# What `kit.http_engine` judges, told in the same words.
HTTP_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "url": {
            "type": "string",
            "description": "Where each step is posted; sessions that name none are posted there.",
        },
        "headers": {
            "type": ["object", "null"],
            "default": None,
            "description": "Headers of each step. One that is a secret names a credential of the session's vaults as"
            " ${NAME}, and is never shown again.",
        },
        "max_rounds": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": http_engine.MOST_ROUNDS,
            "default": http_engine.DEFAULT_ROUNDS,
            "description": "Rounds of tool calls that one turn may make.",
        },
        "timeout_seconds": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": http_engine.LONGEST_TIMEOUT_SECONDS,
            "default": http_engine.DEFAULT_TIMEOUT_SECONDS,
            "description": "How long the agent may take for one step.",
        },
        "requires_action_timeout_seconds": BUILTIN_OPTIONS["requires_action_timeout_seconds"],
    }
)

LOCAL_FILES_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "base_path": {
            "type": "string",
            "enum": ["files"],
            "default": "files",
            "description": "Folder below the data directory. It stays where it is: rows name what lies in it.",
        }
    }
)

S3_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "bucket": {
            "type": "string",
            "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$",
            "description": "An existing bucket; files that are kept elsewhere are not moved into it.",
        },
        "region": {
            "type": ["string", "null"],
            "pattern": r"^[A-Za-z0-9-]{1,64}$",
            "default": "us-east-1",
            "description": "Region that requests are signed for.",
        },
        "endpoint": {
            "type": ["string", "null"],
            "pattern": r"^https?://[A-Za-z0-9.\[\]:_-]{1,255}(/[A-Za-z0-9._/-]*)?$",
            "default": None,
            "description": "Address of the server, such as https://storage.example.com; null: the provider's own.",
        },
        "prefix": {
            "type": ["string", "null"],
            "pattern": r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,255}$",
            "default": None,
            "description": "What every key begins with.",
        },
        "access_key_id": {
            "type": ["string", "null"],
            "pattern": r"^[\x21-\x7e]{1,256}$",
            "default": None,
            "description": "Who asks; null: the identity that the environment or the machine gives.",
        },
        "secret_access_key": {
            "type": ["string", "null"],
            "pattern": r"^[\x21-\x7e]{1,1024}$",
            "default": None,
            "writeOnly": True,
            "description": "Sealed, and never shown again.",
        },
    }
)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One choice of an area. `reason` says why it can't be chosen here."""

    id: str
    label: str
    reason: str = ""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def descriptor(self) -> dict[str, Any]:
        """As readers are shown it. Nothing here needs a restart: what is saved is in effect with the next turn."""
        described: dict[str, Any] = {
            "id": self.id,
            "label": self.label,
            "status": "unavailable" if self.reason else "available",
            "restart_policy": "none",
            "options_schema": {
                "type": "object",
                "properties": {name: dict(schema) for name, schema in self.options.items()},
                "additionalProperties": False,
            },
        }
        return described | ({"reason": self.reason} if self.reason else {})


ADAPTERS: Mapping[str, tuple[Adapter, ...]] = MappingProxyType(
    {
        "model": (
            Adapter("demo", "Built-in demo model"),
            Adapter("anthropic", "Anthropic"),
            Adapter("openai", "OpenAI, or whoever speaks its protocol at base_url"),
        ),
        "loop_engine": (
            Adapter("builtin", "Default", options=BUILTIN_OPTIONS),
            Adapter("pi", "Pi", "the adapter for a locally installed engine is not part of this build"),
            Adapter("http", "HTTP agent protocol", options=HTTP_OPTIONS),
            Adapter("harness", "Harness", NO_EXECUTABLE),
            Adapter("codex", "Codex", NO_EXECUTABLE),
            Adapter("claude", "Claude", NO_EXECUTABLE),
        ),
        "storage.metadata": (Adapter("postgres", "PostgreSQL"), Adapter("sqlite", "SQLite", NO_SQLITE)),
        "storage.artifacts": (
            Adapter("local", "Local folder", options=LOCAL_FILES_OPTIONS),
            Adapter("s3", "A bucket of whoever speaks the S3 protocol", options=S3_OPTIONS),
            Adapter("none", "No files", NO_CHOICE),
        ),
        "memory": (Adapter("none", "No memory"), Adapter("sqlite", "SQLite", NO_MEMORY)),
        "sandbox": (
            Adapter("local", "On the runner's host"),
            Adapter("docker", "Docker", "no provider for Docker is part of this build"),
            Adapter("kubernetes", "Kubernetes", "no provider for Kubernetes is part of this build"),
            Adapter("self_hosted", "Outside workers", NO_DEFAULT_FOR_WORKERS),
            Adapter("remote", "Remote worker API", "no provider for remote workers is part of this build"),
        ),
    }
)


def default_of(area: str) -> str:
    """What is chosen where nobody chose."""
    return ADAPTERS[area][0].id


def find(area: str, name: Any) -> Adapter | None:
    """The adapter of that name, available or not."""
    return next((adapter for adapter in ADAPTERS[area] if adapter.id == name), None)


def choose(area: str, field_name: str, value: Mapping[str, Any], faults: Faults) -> Adapter:
    """The adapter that an area's object names; the default, and a fault, where it names none that is there."""
    default = ADAPTERS[area][0]
    named = value.get(field_name)
    adapter = find(area, named)
    if adapter is not None and not adapter.reason:
        return adapter
    available = ", ".join(each.id for each in ADAPTERS[area] if not each.reason)
    if adapter is None:
        faults.add(joined(area, field_name), f"must be one of {available}")
    else:
        faults.add(joined(area, field_name), f"is {adapter.id}, which can't be used: {adapter.reason}; use {available}")
    return default


def read_options(area: str, adapter: Adapter, value: Any, faults: Faults) -> dict[str, Any]:
    """The options of an adapter that are sound, and faults for the others."""
    path = joined(area, "options")
    options = faults.object_at({} if value is None else value, path, set(adapter.options))
    sound = {}
    for name, given in options.items():
        if problem := problem_of(adapter.options[name], given):
            faults.add(joined(path, name), problem)
        else:
            sound[name] = given
    return sound


def problem_of(schema: Mapping[str, Any], value: Any) -> str:
    """What is wrong with an option's value; empty for a sound one."""
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if value is None and "null" in kinds:
        return ""
    if "enum" in schema:
        return "" if value in schema["enum"] else f"must be one of {', '.join(schema['enum'])}"
    if "pattern" in schema:
        sound = isinstance(value, str) and re.fullmatch(schema["pattern"], value) is not None
        return "" if sound else f"must be a string that matches {schema['pattern']}{_or_null(kinds)}"
    low, high = schema["minimum"], schema["maximum"]
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return ""
    return f"must be a whole number from {low} to {high}{_or_null(kinds)}"


def _or_null(kinds: list[str]) -> str:
    return ", or null" if "null" in kinds else ""


def descriptors() -> dict[str, list[dict[str, Any]]]:
    """Every adapter by area."""
    return {area: [adapter.descriptor() for adapter in adapters] for area, adapters in ADAPTERS.items()}
