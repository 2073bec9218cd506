"""Settings of the queue process."""

from kit.config import BaseServiceSettings, Field, load


class QueueSettings(BaseServiceSettings):
    """What the queue understands beyond what every process does."""

    sessions_address: str
    # How long a worker that serves a session may be silent before it loses it.
    session_work_seconds: int = Field(60, ge=1, le=600)
    # How long a worker that runs one item may be silent before it loses it.
    work_lease_seconds: float = Field(60.0, gt=0, le=3600)
    # How much longer the result of one that was silent is waited for.
    work_silence_seconds: float = Field(30.0, gt=0, le=3600)
    # How long items that ended can be looked at.
    work_keep_seconds: float = Field(86_400.0, ge=3600)
    # How often what no hint told of is looked for, while somebody waits.
    work_sweep_seconds: float = Field(1.0, gt=0, le=60)


def load_settings() -> QueueSettings:
    """Reads the environment."""
    return load(QueueSettings)
