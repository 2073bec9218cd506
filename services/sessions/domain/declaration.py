"""Where an environment's sessions run, as its owner declared it.

Two spellings are taken. The flat one says `hosting_type`, `sandbox_provider`, `network` and
`packages`; the published one nests `networking` and `packages` in `config` under a type.
Both may come together as long as they agree. A declaration names a backend fail-closed:
what this platform can't serve is refused and never lowered to `local`.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from services.sessions.domain import shape
from services.sessions.domain.errors import InvalidEnvironmentConfig, UnsupportedHostingType
from services.sessions.domain.network import Network, completed, read_network
from services.sessions.domain.session_errors import InvalidRequest, UnknownField, UnsupportedCapability

HOSTING_TYPES = ("local", "docker", "kubernetes", "self_hosted")
CONFIG_TYPES = ("cloud", "self_hosted")
WORKER_PROTOCOLS = ("tool", "session")
PACKAGE_MANAGERS = ("apt", "cargo", "gem", "go", "npm", "pip")

MAX_PROVIDER_CHARACTERS = 128
MAX_PACKAGES = 1000

_CONFIG_FIELDS = (
    "type",
    "networking",
    "packages",
    "hosting_type",
    "sandbox_provider",
    "network",
    "worker_protocol",
)
_DECLARED = ("hosting_type", "sandbox_provider", "worker_protocol")


@dataclass(frozen=True, slots=True)
class Declaration:
    """Where sessions shall run, as it was said."""

    # The published type; None where only the flat spelling was used.
    type: str | None = None
    hosting_type: str | None = None
    sandbox_provider: str | None = None
    worker_protocol: str | None = None
    network: Network | None = None

    @classmethod
    def from_json(cls, config: str) -> "Declaration":
        """The declaration that was stored, or a refusal where it can't be read."""
        try:
            stored = orjson.loads(config)
        except ValueError:
            raise InvalidEnvironmentConfig(
                "The stored config of the environment is not JSON.", field="config"
            ) from None
        if not isinstance(stored, dict):
            raise InvalidEnvironmentConfig("The stored config of the environment is not a JSON object.", field="config")
        for name in ("type", *_DECLARED):
            if not isinstance(stored.get(name), str | None):
                raise InvalidEnvironmentConfig(f"The stored {name} of the environment is not a string.", field=name)
        return cls(
            network=_stored_network(stored.get("network")),
            **{name: stored.get(name) for name in ("type", *_DECLARED)},
        )

    def to_json(self) -> str:
        """The declaration as it is stored, without what was not declared."""
        return orjson.dumps({name: value for name, value in asdict(self).items() if value is not None}).decode()

    def reported_hosting_type(self) -> str:
        """As declared, or what the rest of the declaration means."""
        return self.hosting_type or self.type or self.sandbox_provider or "local"

    def backend(self, workspace_provider: str) -> str:
        """The name of the sandbox provider; whether it is registered is for the registry to say."""
        if self.sandbox_provider is not None:
            return self.sandbox_provider
        if self.hosting_type is not None:
            return require_hosting_type(self.hosting_type)
        if self.type is not None:
            return "self_hosted" if self.type == "self_hosted" else workspace_provider
        return "local"

    def protocol(self) -> str | None:
        """How workers get the work of a self-hosted environment; None for every other one."""
        if not self.is_self_hosted():
            return None
        return self.worker_protocol or ("session" if self.type == "self_hosted" else "tool")

    def is_self_hosted(self) -> bool:
        """Whether the work is done by an operator's own workers."""
        if self.sandbox_provider is not None:
            return self.sandbox_provider == "self_hosted"
        return "self_hosted" in (self.hosting_type, self.type)


def require_hosting_type(value: Any, field: str = "hosting_type") -> str:
    """A hosting type that this platform serves."""
    if isinstance(value, str) and value in HOSTING_TYPES:
        return value
    reason = "names machines that this platform doesn't own" if value == "cloud" else "is not known"
    raise UnsupportedHostingType(
        f"{field} {reason if isinstance(value, str) else 'must be a string'}. Accepted: {', '.join(HOSTING_TYPES)}."
        ' For the platform\'s own sandbox send config {"type": "cloud"}.',
        field=field,
    )


def no_packages() -> dict[str, list[str]]:
    """The published form of an empty package list."""
    return {manager: [] for manager in PACKAGE_MANAGERS}


def declare(body: dict[str, Any], stored: Declaration) -> Declaration:
    """What a request declares, in either spelling or both, on top of what is stored."""
    config = body.get("config")
    if config is not None and not isinstance(config, dict):
        raise InvalidEnvironmentConfig("config must be a JSON object.", field="config")
    config = config or {}
    shape.known_only(config, "config", _CONFIG_FIELDS)
    for source in (body, config):
        _refuse_packages(source.get("packages"), "packages" if source is body else "config.packages")
    kind = config.get("type")
    if kind is not None and kind not in CONFIG_TYPES:
        raise InvalidEnvironmentConfig(f"config.type must be one of {', '.join(CONFIG_TYPES)}.", field="config.type")
    given = {name: _agreed(_spellings(name, body, config)) for name in _DECLARED if name in body or name in config}
    network = _agreed(_network_spellings(body, config))
    merged = replace(
        _settled(stored, kind, given), network=completed(network, stored.network) if network else stored.network
    )
    _check(merged, given.get("worker_protocol"))
    # Kept, since the shape at creation decides it whatever spelling a later update uses.
    return replace(merged, worker_protocol=merged.protocol())


def _settled(stored: Declaration, kind: str | None, given: dict[str, Any]) -> Declaration:
    """The stored declaration without what a new one makes stale, under what is given."""
    hosting_type = given.get("hosting_type")
    if kind is not None and (kind == "self_hosted") != stored.is_self_hosted():
        stored = Declaration()
    elif hosting_type is not None and hosting_type != stored.reported_hosting_type():
        # A provider chosen for another hosting type must not go on deciding where sessions run.
        same_side = (hosting_type == "self_hosted") == stored.is_self_hosted()
        stored = Declaration(type=stored.type if same_side else None)
    return replace(stored, **({"type": kind} if kind else {}), **given)


def _check(declared: Declaration, worker_protocol: str | None) -> None:
    hosting_type, kind = declared.hosting_type, declared.type
    if kind is not None and hosting_type is not None and (kind == "self_hosted") != (hosting_type == "self_hosted"):
        raise InvalidEnvironmentConfig(
            f"hosting_type {hosting_type} and config.type {kind} contradict each other; send one of them.",
            field="hosting_type",
        )
    if worker_protocol is not None and not declared.is_self_hosted():
        raise InvalidRequest(
            "worker_protocol only applies to self_hosted environments; leave it out.", field="worker_protocol"
        )


def _spellings(name: str, body: dict[str, Any], config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for source, path in ((body, name), (config, f"config.{name}")):
        if name in source:
            yield path, None if source[name] is None else _READERS[name](source[name], path)


def _network_spellings(body: dict[str, Any], config: dict[str, Any]) -> Iterator[tuple[str, Network]]:
    for source, name, path, flat in (
        (body, "network", "network", True),
        (config, "network", "config.network", True),
        (config, "networking", "config.networking", False),
    ):
        if source.get(name) is not None:
            yield path, read_network(source[name], path, flat=flat)


def _agreed(spellings: Iterator[tuple[str, Any]]) -> Any:
    first: tuple[str, Any] | None = None
    for path, value in spellings:
        if first is not None and value != first[1]:
            raise InvalidEnvironmentConfig(
                f"{first[0]} and {path} are two spellings of one setting and must not differ. Send one of them.",
                field=path,
            )
        first = first or (path, value)
    return first[1] if first else None


def _provider(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidEnvironmentConfig(f"{field} must be the name of a sandbox provider.", field=field)
    return shape.label(value, field, maximum=MAX_PROVIDER_CHARACTERS)


def _worker_protocol(value: Any, field: str) -> str:
    return shape.one_of(value, field, WORKER_PROTOCOLS)


_READERS = {
    "hosting_type": require_hosting_type,
    "sandbox_provider": _provider,
    "worker_protocol": _worker_protocol,
}


def _refuse_packages(value: Any, field: str) -> None:
    """Takes the empty forms; this build installs nothing into a sandbox."""
    if value is None:
        return
    lists = [(field, value)]
    if isinstance(value, dict):
        shape.known_only(value, field, ("type", *PACKAGE_MANAGERS))
        if value.get("type") is not None:
            shape.one_of(value["type"], f"{field}.type", ("packages",))
        lists = [(f"{field}.{manager}", value.get(manager)) for manager in PACKAGE_MANAGERS]
    for path, packages in lists:
        if shape.entries(packages, path, maximum=MAX_PACKAGES):
            raise UnsupportedCapability(
                f"{path} can't be installed: this build prepares no packages in sandboxes. Leave the list empty.",
                field=path,
            )


def _stored_network(value: Any) -> Network | None:
    if value is None:
        return None
    try:
        return completed(read_network(value, "network", flat=False))
    except (InvalidRequest, UnknownField):
        raise InvalidEnvironmentConfig(
            "The stored network policy of the environment can't be read.", field="network"
        ) from None
