"""The secrets of a runner's sessions: one object for each session that anybody here works for.

It lives as long as a turn or a sandbox of its session holds it, so what was opened is
forgotten with the last of them.
"""

import hashlib
import os
from typing import Any
from weakref import WeakValueDictionary

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.secrets.session import Owner, SessionSecrets


class SecretsRegistry:
    """All sessions' of this runner."""

    def __init__(self, vault: Any, *, runner_id: str, shared_secret: str | None = None) -> None:
        """`vault` is the stub of InjectionService; runners with the same `shared_secret` make the same placeholders."""
        self._vault = vault
        self._runner_id = runner_id
        seed = shared_secret.encode() if shared_secret else os.urandom(32)
        self._key = hashlib.sha256(b"placeholders\0" + seed).digest()
        self._sessions: WeakValueDictionary[str, SessionSecrets] = WeakValueDictionary()

    def begin_turn(self, grant: TurnGrant) -> SessionSecrets | None:
        """The secrets for a turn; None for a session without vaults. Threads share those of their session."""
        if not grant.session.vault_ids:
            return None
        owner = Owner(grant.workspace_id, grant.root_session_id or grant.session.id, tuple(grant.session.vault_ids))
        secrets = self._sessions.get(owner.session_id)
        if secrets is None or secrets.owner != owner:
            secrets = self._sessions[owner.session_id] = SessionSecrets(self._vault, owner, self._runner_id, self._key)
        secrets.begin_turn()
        return secrets

    def of(self, session_id: str) -> SessionSecrets | None:
        """The secrets of a session that has a turn here; None for one without vaults."""
        return self._sessions.get(session_id)

    def forget(self, workspace_id: str = "") -> None:
        """Ask the vault again for a workspace's secrets, or for everybody's."""
        for secrets in list(self._sessions.values()):
            if not workspace_id or secrets.owner.workspace_id == workspace_id:
                secrets.forget()
