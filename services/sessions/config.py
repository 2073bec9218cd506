"""What the sessions service reads from its environment."""

from datetime import timedelta
from pathlib import Path

from kit.config import BaseServiceSettings, ConfigError, Field
from kit.cost_profile import read_cost_profile
from services.sessions.domain.cost import Prices


class Settings(BaseServiceSettings):
    """Settings of one replica."""

    # How long a turn is held without a renewal.
    lease_seconds: float = Field(default=10.0, gt=0.1, le=600)
    sweep_seconds: float = Field(default=1.0, gt=0.01, le=60)
    database_connections: int = Field(default=12, ge=4, le=100)
    # Where the settings are that bound how long sessions wait for answers; left out, they wait for ever.
    vault_address: str = ""
    # The provider behind web_search, as runners are told of it; without one, agents can't enable the tool.
    web_search_url: str = ""
    # `model`: runners measure outcomes with the session's model. `off`: a declaration is refused.
    outcome_grader: str = "model"
    # How long bytes may lie without a file that names them, and how often those are looked for.
    blob_grace_seconds: float = Field(default=3600.0, ge=0, le=604_800)
    blob_sweep_seconds: float = Field(default=600.0, gt=0.01, le=86_400)
    # What the files of one workspace may have together; left out, they are not counted.
    storage_quota_bytes: int | None = Field(default=None, ge=1)
    # List prices of models: JSON, or the path of a file that holds it. Read once, when the replica starts.
    cost_profile: str = ""

    def files_folder(self) -> Path:
        """Where bytes are kept that the settings of their workspace don't send elsewhere."""
        return self.data_dir / "files"

    def blob_grace(self) -> timedelta:
        """How long bytes may lie without a file that names them."""
        return timedelta(seconds=self.blob_grace_seconds)

    def prices(self) -> Prices:
        """The operator's price list; ConfigError where it is not usable."""
        return Prices(read_cost_profile(self.cost_profile))

    def has_search(self) -> bool:
        """Whether agents may enable web_search."""
        return bool(self.web_search_url)

    def has_grader(self) -> bool:
        """Whether outcomes can be measured; ConfigError where the setting is neither of its words."""
        if self.outcome_grader not in ("model", "off"):
            raise ConfigError("MANAGED_AGENTS_OUTCOME_GRADER should be model or off")
        return self.outcome_grader == "model"
