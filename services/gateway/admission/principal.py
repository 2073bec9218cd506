"""Who calls: what a request is known by once it is authenticated."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    # Of a worker that came with the sessions token of a work item: what the token was made for, and its digest.
    session_id: str = ""
    work_id: str = ""
    token_sha256: bytes = field(default=b"", repr=False)
    # Whether that attempt is over: it may be told so, and nothing else.
    has_lost: bool = False
    # One that came by the cookie of a browser, which reaches the session gateway of one agent.
    is_browser: bool = False
    # Of a browser: when its cookie ends, in seconds since 1970.
    expires_at: float = 0.0


ANONYMOUS = Principal("anonymous", DEFAULT_WORKSPACE)
CONFIGURED = Principal("key_config_env", DEFAULT_WORKSPACE)
# Nobody yet: the key may stand in the body. It may do nothing until that is found.
UNPROVEN = Principal("unproven", "", "worker")
