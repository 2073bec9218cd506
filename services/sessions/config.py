"""What the sessions service reads from its environment."""

from kit.config import BaseServiceSettings, Field
from kit.cost_profile import read_cost_profile
from services.sessions.domain.cost import Prices


class Settings(BaseServiceSettings):
    """Settings of one replica."""

    # How long a turn is held without a renewal.
    lease_seconds: float = Field(default=10.0, gt=0.1, le=600)
    sweep_seconds: float = Field(default=1.0, gt=0.01, le=60)
    database_connections: int = Field(default=12, ge=4, le=100)
    # List prices of models: JSON, or the path of a file that holds it. Read once, when the replica starts.
    cost_profile: str = ""

    def prices(self) -> Prices:
        """The operator's price list; ConfigError where it is not usable."""
        return Prices(read_cost_profile(self.cost_profile))
