"""Settings of the gateway; read here and nowhere else."""

from __future__ import annotations

import re
from typing import Literal

from kit.config import BaseServiceSettings, ConfigError, Field, SecretStr

# A scheme, a host, and no port where it is the scheme's own: that is how a browser says it.
_ORIGIN = re.compile(r"(?!http://.*:80$|https://.*:443$)https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
DEFAULT_VERSIONS = ("2023-06-01", "2026-10-21")


class GatewaySettings(BaseServiceSettings):
    """Everything that the environment may tell the gateway."""

    host: str = "127.0.0.1"
    port: int = Field(default=3000, ge=0, le=65535)
    api_key: SecretStr | None = None
    sessions_address: str
    vault_address: str
    runner_address: str
    # Only asked for their health; left out where they don't run.
    scheduler_address: str = ""
    queue_address: str = ""
    # Comma-separated in the environment.
    anthropic_versions: str = ",".join(DEFAULT_VERSIONS)
    cors_origins: str = ""
    # `on` or `off`; empty: on while requests need a key.
    inbound_rate_limit: str = ""
    # Requests of one credential in a minute.
    inbound_rate_limit_read: int = Field(default=1200, ge=1)
    inbound_rate_limit_write: int = Field(default=300, ge=1)
    # Seconds that open requests and streams get when the process stops.
    shutdown_seconds: float = Field(default=10.0, gt=0, le=300)
    # Seconds that one call to a service may take.
    call_seconds: float = Field(default=15.0, gt=0, le=300)

    def supported_versions(self) -> frozenset[str]:
        """The `anthropic-version` values that are admitted."""
        return frozenset(_split(self.anthropic_versions))

    def rate_limit_mode(self) -> Literal["on", "off"] | None:
        """Whether inbound requests are limited; None: while requests need a key."""
        match self.inbound_rate_limit:
            case "on" | "off" as mode:
                return mode
            case "":
                return None
        raise ConfigError("MANAGED_AGENTS_INBOUND_RATE_LIMIT should be `on` or `off`, or left out.")

    def addresses(self) -> dict[str, str]:
        """Where each service listens, by its name."""
        return {
            "sessions": self.sessions_address,
            "vault": self.vault_address,
            "scheduler": self.scheduler_address,
            "queue": self.queue_address,
            "runner": self.runner_address,
        }

    def allowed_origins(self) -> tuple[str, ...]:
        """Origins whose pages may call the API, as browsers spell them; none by default."""
        origins = tuple(each.lower().removesuffix("/") for each in _split(self.cors_origins))
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    "MANAGED_AGENTS_CORS_ORIGINS should be origins with commas between them, such as"
                    f" https://app.example.com or http://localhost:5173; {origin[:100]!r} is none."
                )
        return origins


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
