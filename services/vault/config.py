"""Settings of the vault process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kit.clock import SystemClock
from kit.config import BaseServiceSettings, ConfigError, SecretStr, load, reveal
from kit.telemetry import register_secret
from services.vault.domain.master_keys import MasterKeys, SecretKeys
from services.vault.store.keyfile import Keyfile


class VaultSettings(BaseServiceSettings):
    """`secret_key`, or the file that holds it, perhaps with versions: what the master key is derived from.

    `former_secret_key` is one that was used before: it opens what was sealed with it.
    `oauth_refresh` is `on` or `off`: whether OAuth tokens of credentials are renewed.
    """

    secret_key: SecretStr | None = None
    secret_key_file: Path | None = None
    former_secret_key: SecretStr | None = None
    oauth_refresh: str = "on"

    def refreshes(self) -> bool:
        """Whether OAuth tokens are renewed; ConfigError where that is not clear."""
        if self.oauth_refresh not in ("on", "off"):
            raise ConfigError(f"MANAGED_AGENTS_OAUTH_REFRESH is {self.oauth_refresh!r}; accepted: on, off.")
        return self.oauth_refresh == "on"

    def master_keys(self) -> MasterKeys:
        """Where the master key comes from; ConfigError where from nowhere, ValueError for a short secret."""
        former = reveal(self.former_secret_key) if self.former_secret_key is not None else None
        register_secret(former)
        if self.secret_key is not None:
            secret = reveal(self.secret_key)
            register_secret(secret)
            return SecretKeys(secret, former)
        if self.secret_key_file is not None:
            return Keyfile(self.secret_key_file, SystemClock(), former)
        raise ConfigError("Set MANAGED_AGENTS_SECRET_KEY or MANAGED_AGENTS_SECRET_KEY_FILE: the vault seals with it.")


def load_settings() -> VaultSettings:
    """Reads the environment."""
    return load(VaultSettings)


def model_environment() -> Mapping[str, str]:
    """Where the first settings document and `${NAME}` references are read from."""
    return os.environ
