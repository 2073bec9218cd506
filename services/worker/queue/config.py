"""Settings of the queue process."""

from kit.config import BaseServiceSettings, Field, load


class QueueSettings(BaseServiceSettings):
    """What the queue understands beyond what every process does."""

    sessions_address: str
    # How long a worker that serves a session may be silent before it loses it.
    session_work_seconds: int = Field(60, ge=1, le=600)


def load_settings() -> QueueSettings:
    """Reads the environment."""
    return load(QueueSettings)
