"""Which processes make the platform, where each listens, and what each may know.

A process gets the common variables, its own address, the addresses of the others, and of the secrets only its own:
a database role for whoever owns tables, the operator's environment and the master key for the vault, the API key for
the gateway. The runner, which works for agents, gets neither database nor keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli import config
from cli.config import PREFIX
from cli.data_folder import DataFolder


@dataclass(frozen=True, slots=True)
class Process:
    """One process to run. `listen` is empty for the gateway, which is asked over HTTP."""

    name: str
    module: str
    environment: Mapping[str, str] = field(repr=False)
    listen: str = ""


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses of what all processes stand on: one database URL for each role, and NATS."""

    databases: Mapping[str, str] = field(repr=False)
    nats: str = field(repr=False)


# In the order of their stop: who serves others ends after them.
_SERVICES = {
    "gateway": "services.gateway",
    "scheduler": "services.scheduler",
    "runner": "services.worker.runner",
    "queue": "services.worker.queue",
    "sessions": "services.sessions",
    "vault": "services.vault",
}
_ROLE_OF = {"sessions": "sessions", "vault": "vault", "scheduler": "scheduler", "queue": "worker"}
ROLES = tuple(_ROLE_OF.values())


def processes(folder: DataFolder, servers: Servers, *, host: str, port: int, runners: int) -> list[Process]:
    """Every process of the platform, in stop order."""
    found = []
    for service, module in _SERVICES.items():
        for number in range(1, (runners if service == "runner" else 1) + 1):
            name = service if number == 1 else f"{service}-{number}"
            listen = "" if service == "gateway" else _socket(folder.run, name)
            environment = _environment(service, folder, servers, host=host, port=port)
            if listen:
                environment[f"{PREFIX}LISTEN"] = listen
            found.append(Process(name, module, environment, listen))
    return found


def _socket(run: Path, name: str) -> str:
    return f"unix:{run / f'{name}.sock'}"


def _environment(service: str, folder: DataFolder, servers: Servers, *, host: str, port: int) -> dict[str, str]:
    own = {
        "DATA_DIR": str(folder.path),
        "INTERNAL_TOKEN_FILE": str(folder.internal_token),
        "NATS_URL": servers.nats,
    }
    for other in _SERVICES:
        if other != "gateway":
            own[f"{other.upper()}_ADDRESS"] = _socket(folder.run, other)
    if service in _ROLE_OF:
        own["DATABASE_URL"] = servers.databases[_ROLE_OF[service]]
    if service == "sessions" and (prices := config.cost_profile()):
        own["COST_PROFILE"] = prices
    if service == "gateway":
        own |= {"HOST": host, "PORT": str(port)}
        if key := config.api_key():
            own["API_KEY"] = key
    named = {PREFIX + name: value for name, value in own.items()}
    if service == "vault":
        # The folder's own key is only read where no other is named.
        keys = {f"{PREFIX}SECRET_KEY_FILE": str(folder.secret_key), **config.secret_key()}
        return {**config.everything(), **named, **keys}
    return {**config.common(), **named}
