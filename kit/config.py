"""Settings from the environment, all faults told at once.

    class Settings(BaseServiceSettings):
        sessions_address: str

    settings = load(Settings)

Every variable begins with `MANAGED_AGENTS_`. Nothing but a `config.py` reads the environment; the rest of a service
gets its settings passed. Values that may hold a password or a key are `SecretStr`, so that a logged settings object
shows none.
"""

from pathlib import Path
from typing import TypeVar

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "MANAGED_AGENTS_"


class ConfigError(Exception):
    """The environment does not describe a process that can run."""


class BaseServiceSettings(BaseSettings):
    """What every process understands; each service adds its own fields."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True)

    log_level: str = "info"
    data_dir: Path = Path(".managed-agents")
    listen: str = ""
    database_url: SecretStr | None = None
    nats_url: SecretStr | None = None
    internal_token_file: Path | None = None
    supervisor_fd: int | None = None
    grace_seconds: float = 20.0

    def internal_token(self) -> str | None:
        """The token that calls between services carry; None where no file is configured."""
        if self.internal_token_file is None:
            return None
        return read_secret_file(self.internal_token_file, f"{PREFIX}INTERNAL_TOKEN_FILE")

    def database_dsn(self) -> str:
        """The DSN of the service's own role."""
        return self._required("database_url")

    def nats_server(self) -> str:
        """The URL of NATS, with its token."""
        return self._required("nats_url")

    def listen_address(self) -> str:
        """Where the process binds its gRPC server."""
        return self._required("listen")

    def _required(self, name: str) -> str:
        value = getattr(self, name)
        if not value:
            raise ConfigError(f"{PREFIX}{name.upper()} is not set, and this process can't run without it.")
        return reveal(value)


S = TypeVar("S", bound=BaseSettings)


def load(settings: type[S]) -> S:
    """Read the environment. ConfigError lists each variable that is missing or wrong."""
    try:
        return settings()
    except ValidationError as error:
        lines = [f"  {_variable(settings, fault['loc'])}: {fault['msg']}" for fault in error.errors()]
        raise ConfigError("The environment is not usable:\n" + "\n".join(lines)) from None


def read_secret_file(path: Path, variable: str) -> str:
    """The stripped content of a file that holds one secret."""
    try:
        value = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{variable} names {path}, which can't be read: {error.strerror}.") from None
    if not value:
        raise ConfigError(f"{variable} names {path}, which is empty.")
    return value


def reveal(value: str | SecretStr) -> str:
    """The text of a setting that may be wrapped."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _variable(settings: type[BaseSettings], location: tuple[int | str, ...]) -> str:
    name = str(location[0]) if location else ""
    field = settings.model_fields.get(name)
    alias = field.validation_alias if field is not None else None
    return alias if isinstance(alias, str) else f"{settings.model_config.get('env_prefix', '')}{name}".upper()
