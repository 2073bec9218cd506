"""What the sessions service reads from its environment."""

from kit.config import BaseServiceSettings, Field


class Settings(BaseServiceSettings):
    """Settings of one replica."""

    # How long a turn is held without a renewal.
    lease_seconds: float = Field(default=10.0, gt=0.1, le=600)
    sweep_seconds: float = Field(default=1.0, gt=0.01, le=60)
    database_connections: int = Field(default=12, ge=4, le=100)
