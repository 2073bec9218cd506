"""What most sessions are made from, in one read: an agent's newest version and an environment."""

from typing import LiteralString

from kit.postgres import Tx
from services.sessions.domain.agent import AgentVersion
from services.sessions.domain.environment import DEFAULT_ENVIRONMENT_ID, Environment

_STATEMENT: LiteralString = """
SELECT a.id, a.version, a.document, a.model, a.model_id, a.created_at, a.updated_at, a.archived_at,
       e.id, e.name, e.description, e.metadata, e.config, e.scope, e.created_at, e.updated_at, e.archived_at
FROM agents a CROSS JOIN environments e
WHERE a.workspace_id = %(workspace_id)s AND a.id = %(agent_id)s
  AND e.workspace_id = %(workspace_id)s AND e.id = %(environment_id)s
"""
_AGENT_WIDTH = 8


class Origins:
    """Reads of the workspace that the transaction belongs to."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def newest(self, agent_id: str, environment_id: str) -> tuple[AgentVersion, Environment] | None:
        """Both, or None where one of them is missing: the single reads tell which.

        The environment is kept from being deleted or changed until the transaction ends: a change
        is told to the sessions that are there. The default one never is deleted, so it needs no
        lock, at which all creations would meet.
        """
        held: LiteralString = "" if environment_id == DEFAULT_ENVIRONMENT_ID else "FOR SHARE OF e"
        found = await self._tx.maybe_one(_STATEMENT + held, {"agent_id": agent_id, "environment_id": environment_id})
        if found is None:
            return None
        return AgentVersion(*found[:_AGENT_WIDTH]), Environment(*found[_AGENT_WIDTH:])
