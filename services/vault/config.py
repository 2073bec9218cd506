"""Settings of the vault process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kit.config import BaseServiceSettings, ConfigError, SecretStr, load, read_secret_file


class VaultSettings(BaseServiceSettings):
    """`secret_key` or the file that holds it: the operator's secret that the master key is derived from."""

    secret_key: SecretStr | None = None
    secret_key_file: Path | None = None

    def master_secret(self) -> str:
        """The operator's secret; ConfigError where none is given."""
        if self.secret_key is not None:
            return self.secret_key.get_secret_value()
        if self.secret_key_file is not None:
            return read_secret_file(self.secret_key_file, "MANAGED_AGENTS_SECRET_KEY_FILE")
        raise ConfigError("Set MANAGED_AGENTS_SECRET_KEY or MANAGED_AGENTS_SECRET_KEY_FILE: the vault seals with it.")


def load_settings() -> VaultSettings:
    """Reads the environment."""
    return load(VaultSettings)


def model_environment() -> Mapping[str, str]:
    """Where the first settings document and `${NAME}` references are read from."""
    return os.environ
