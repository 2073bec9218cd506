"""Settings of the scheduler process."""

from kit.config import BaseServiceSettings, load


class SchedulerSettings(BaseServiceSettings):
    """Nothing beyond what every process has."""


def load_settings() -> SchedulerSettings:
    """Reads the environment."""
    return load(SchedulerSettings)
