"""Settings of the queue process."""

from kit.config import BaseServiceSettings, load


class QueueSettings(BaseServiceSettings):
    """Nothing beyond what every process has."""


def load_settings() -> QueueSettings:
    """Reads the environment."""
    return load(QueueSettings)
