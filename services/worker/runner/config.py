"""Settings of a runner, from the environment."""

from kit.config import BaseServiceSettings, Field, load


class RunnerSettings(BaseServiceSettings):
    """What a runner understands beyond what every process does."""

    sessions_address: str
    vault_address: str
    # Where work for self-hosted environments goes; without it there is none.
    queue_address: str = ""
    # Turns that are held at once.
    runner_capacity: int = Field(64, ge=1, le=10_000)
    # As the sessions service grants them; renewals keep to it.
    lease_seconds: float = Field(10.0, ge=0.5, le=600)
    # Memory for contexts that are kept between turns.
    runner_context_cache_bytes: int = Field(64 * 1024 * 1024, ge=0)
    # How long running steps may take to end when the process is asked to stop.
    runner_drain_seconds: float = Field(8.0, ge=0, le=600)
    # Attempts and first pause for a model vendor that is busy or out of reach.
    model_attempts: int = Field(6, ge=1, le=50)
    model_retry_seconds: float = Field(1.0, gt=0, le=60)
    # What the models take, in tokens, where the table of known models is wrong; 0 leaves it to the table.
    context_window_tokens: int = Field(0, ge=0, le=100_000_000)
    # The provider behind web_search, which speaks the JSON interface of SearXNG; without one there is no such tool.
    web_search_url: str = ""
    # How long an MCP server may take to be connected to, its tools listed, and how long for one call.
    mcp_connect_seconds: float = Field(15.0, gt=0, le=300)
    mcp_call_seconds: float = Field(300.0, gt=0, le=3600)
    # How long a tool call of a self-hosted environment waits for a worker that takes it.
    work_queue_seconds: float = Field(900.0, gt=0, le=86_400)
    # `auto`, `bubblewrap`, `landlock` or `process`.
    sandbox_kind: str = "auto"


def load_settings() -> RunnerSettings:
    """Read the environment."""
    return load(RunnerSettings)
