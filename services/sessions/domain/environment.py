"""Environments: what was declared, and which backend that resolves to.

What is stored is the declaration (`declaration`); the backend is resolved from it whenever
a session needs one. A record that can't be read is reported as such and as closed, takes
no session, and can be repaired by an update that declares anew.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from services.sessions.domain import shape
from services.sessions.domain.declaration import Declaration, declare, no_packages
from services.sessions.domain.errors import EnvironmentArchived, InvalidEnvironmentConfig, UnsupportedHostingType
from services.sessions.domain.metadata import Metadata, merge_metadata, validate_metadata
from services.sessions.domain.network import CLOSED, Network, completed, flat_form
from services.sessions.domain.session_errors import InvalidRequest, SandboxProviderNotRegistered

DEFAULT_ENVIRONMENT_ID = "env_default"
LOCAL_PROVIDER, SELF_HOSTED = "local", "self_hosted"
# What sessions of this build can run in.
PROVIDERS = (LOCAL_PROVIDER, SELF_HOSTED)
DEFAULT_NAME = "Default"
DEFAULT_CONFIG = '{"hosting_type":"local"}'
SCOPES = ("organization", "account")
UNREADABLE = "unknown"

MAX_NAME_CHARACTERS = 256
MAX_DESCRIPTION_CHARACTERS = 2048

FIELDS = (
    "name",
    "description",
    "metadata",
    "scope",
    "config",
    "hosting_type",
    "sandbox_provider",
    "network",
    "packages",
    "worker_protocol",
)
# Any of these in an update says where sessions run, so it may replace a record that can't be read.
_REPLACEMENTS = ("config", "hosting_type", "sandbox_provider")


@dataclass(frozen=True, slots=True)
class ResolvedEnvironment:
    """What a session runs in. `network` and `packages` are in the published form."""

    hosting_type: str
    sandbox_provider: str
    network: Network
    packages: dict[str, list[str]]
    worker_protocol: str | None

    def to_json(self) -> str:
        """`{hosting_type, sandbox_provider, network, packages, worker_protocol}`."""
        return orjson.dumps(self).decode()


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """What a read says about where sessions run, even of a record that can't be read."""

    config: dict[str, Any]
    hosting_type: str
    sandbox_provider: str
    network: Network
    worker_protocol: str


@dataclass(frozen=True, slots=True)
class Environment:
    """One stored environment."""

    id: str
    name: str
    description: str | None
    # JSON object of string pairs.
    metadata: str
    # The declaration as JSON; not necessarily readable.
    config: str
    scope: str
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None

    def require_active(self) -> None:
        """Refuses an archived environment."""
        if self.archived_at is not None:
            raise EnvironmentArchived(
                f"The environment {self.id} is archived and takes no changes and no new sessions.",
                environment_id=self.id,
            )

    def resolve(self, workspace_provider: str = "local") -> ResolvedEnvironment:
        """The backend of a session in this environment, or the refusal that the session answers with."""
        return resolve(self.id, self.config, workspace_provider)

    def report(self, workspace_provider: str = "local") -> EnvironmentReport:
        """What to tell about it; a record that can't be read is told as such, and as closed."""
        try:
            declared = Declaration.from_json(self.config)
        except (InvalidEnvironmentConfig, UnsupportedHostingType):
            return EnvironmentReport(_cloud(dict(CLOSED)), UNREADABLE, "", dict(CLOSED), "")
        network = completed(declared.network)
        try:
            provider = _provider(self.id, declared, workspace_provider)
        except UnsupportedHostingType:
            provider = ""
        return EnvironmentReport(
            config={"type": "self_hosted"} if declared.is_self_hosted() else _cloud(network),
            hosting_type=declared.reported_hosting_type(),
            sandbox_provider=provider,
            network=flat_form(network),
            worker_protocol=declared.protocol() or "",
        )


@dataclass(frozen=True, slots=True)
class EnvironmentDefinition:
    """The sound content of a creation or an update."""

    name: str
    description: str | None
    metadata: Metadata
    config: str
    scope: str


def resolve(environment_id: str, config: str, workspace_provider: str = "local") -> ResolvedEnvironment:
    """What a stored declaration means, or the refusal that sessions answer with.

    `workspace_provider` is the provider of the workspace's settings: it serves the default
    environment, and whoever asks for the platform's own sandbox without naming one.
    """
    declared = Declaration.from_json(config)
    return ResolvedEnvironment(
        hosting_type=declared.reported_hosting_type(),
        sandbox_provider=_provider(environment_id, declared, workspace_provider),
        network=completed(declared.network),
        packages=no_packages(),
        worker_protocol=declared.protocol(),
    )


def resolve_registered(
    environment_id: str, config: str, workspace_provider: str, providers: Collection[str]
) -> ResolvedEnvironment:
    """What a stored declaration means, where one of `providers` can honour it."""
    resolved = resolve(environment_id, config, workspace_provider)
    if resolved.sandbox_provider not in providers:
        raise SandboxProviderNotRegistered(
            f"Environment {environment_id} needs the sandbox provider {resolved.sandbox_provider}, which this build"
            f" does not have. Registered: {', '.join(sorted(providers))}.",
            field="environment_id",
            sandbox_provider=resolved.sandbox_provider,
        )
    return resolved


def validate_environment(body: dict[str, Any]) -> EnvironmentDefinition:
    """The content of a new environment, or a refusal that names the field."""
    shape.known_only(body, "", FIELDS)
    if body.get("name") is None:
        raise InvalidRequest("name is required.", field="name")
    return EnvironmentDefinition(
        name=shape.label(body["name"], "name", maximum=MAX_NAME_CHARACTERS),
        description=_description(body.get("description")),
        metadata=validate_metadata(body.get("metadata")),
        config=declare(body, Declaration()).to_json(),
        scope=_scope(body.get("scope"), SCOPES[0]),
    )


def merge_environment(stored: Environment, body: dict[str, Any]) -> EnvironmentDefinition:
    """The content after an update: left out keeps, null clears the description, metadata merges."""
    shape.known_only(body, "", FIELDS)
    name, scope = body.get("name"), body.get("scope")
    if name == "":
        raise InvalidRequest("name cannot be cleared: an environment always has one.", field="name")
    return EnvironmentDefinition(
        name=stored.name if name is None else shape.label(name, "name", maximum=MAX_NAME_CHARACTERS),
        description=_description(body["description"]) if "description" in body else stored.description,
        metadata=merge_metadata(orjson.loads(stored.metadata), body["metadata"], empty_deletes=True)
        if "metadata" in body
        else orjson.loads(stored.metadata),
        config=declare(body, _base(stored, body)).to_json(),
        scope=_scope(scope, stored.scope),
    )


def content_of(stored: Environment) -> EnvironmentDefinition:
    """What is stored, in the form to compare an update with."""
    try:
        config = Declaration.from_json(stored.config).to_json()
    except (InvalidEnvironmentConfig, UnsupportedHostingType):
        config = stored.config
    return EnvironmentDefinition(stored.name, stored.description, orjson.loads(stored.metadata), config, stored.scope)


def _provider(environment_id: str, declared: Declaration, workspace_provider: str) -> str:
    return workspace_provider if environment_id == DEFAULT_ENVIRONMENT_ID else declared.backend(workspace_provider)


def _cloud(network: Network) -> dict[str, Any]:
    return {"type": "cloud", "networking": network, "packages": {"type": "packages"} | no_packages()}


def _base(stored: Environment, body: dict[str, Any]) -> Declaration:
    try:
        return Declaration.from_json(stored.config)
    except (InvalidEnvironmentConfig, UnsupportedHostingType):
        if any(body.get(name) is not None for name in _REPLACEMENTS):
            return Declaration()
        raise InvalidEnvironmentConfig(
            f"The stored config of the environment {stored.id} can't be read, so nothing can be changed on top of it."
            " Send a whole config with the update.",
            field="config",
        ) from None


def _description(value: Any) -> str | None:
    return None if value is None else shape.text(value, "description", maximum=MAX_DESCRIPTION_CHARACTERS)


def _scope(value: Any, otherwise: str) -> str:
    return otherwise if value is None else shape.one_of(value, "scope", SCOPES)
