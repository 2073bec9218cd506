"""Who calls: what a request is known by once it is authenticated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DEFAULT_WORKSPACE = "wrkspc_default"

Role = Literal["admin", "member", "read_only", "worker"]


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, whose rows the call may see, and what it may do with them."""

    id: str
    workspace_id: str
    role: Role = "admin"
    owner_name: str = ""
    # Of a worker: the one environment that it reaches.
    environment_id: str = ""


ANONYMOUS = Principal("anonymous", DEFAULT_WORKSPACE)
CONFIGURED = Principal("key_config_env", DEFAULT_WORKSPACE)
