"""The tables `agents` and `agent_versions`.

An agent's row holds its newest version as well, so a read is one row. Versions are only
ever added, in the statement that moves the agent on, and that statement names the version
that it expects: of two writers one moves it, the other is told.
"""

from datetime import datetime

from kit.postgres import Tx
from services.sessions.domain.agent import AgentDocument, AgentVersion
from services.sessions.domain.errors import AgentNotFound, AgentVersionConflict, AgentVersionNotFound
from services.sessions.domain.roster import RosterAgent, RosterReference


class AgentStore:
    """Agents of the workspace that the transaction belongs to."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def insert(self, agent_id: str, document: AgentDocument, now: datetime) -> AgentVersion:
        """Saves version 1 of a new agent."""
        return await self._tx.one(
            """
            WITH first_version AS (
                INSERT INTO agent_versions (workspace_id, agent_id, version, created_at, document, model, model_id)
                VALUES (%(workspace_id)s, %(id)s, 1, %(now)s, %(document)s, %(model)s, %(model_id)s)
            )
            INSERT INTO agents (workspace_id, id, created_at, version, updated_at, document, model, model_id)
            VALUES (%(workspace_id)s, %(id)s, %(now)s, 1, %(now)s, %(document)s, %(model)s, %(model_id)s)
            RETURNING id, version, document, model, model_id, created_at, updated_at, archived_at
            """,
            {"id": agent_id, "now": now} | _rendered(document),
            row=AgentVersion,
        )

    async def load_some(self, agent_ids: list[str]) -> dict[str, AgentVersion]:
        """The newest versions of those of the agents that there are."""
        found = await self._tx.all(
            """
            SELECT id, version, document, model, model_id, created_at, updated_at, archived_at
            FROM agents WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s) LIMIT %(limit)s
            """,
            {"ids": agent_ids, "limit": len(agent_ids)},
            row=AgentVersion,
        )
        return {agent.id: agent for agent in found}

    async def load(self, agent_id: str) -> AgentVersion:
        """The newest version."""
        return present((await self.load_some([agent_id])).get(agent_id), agent_id)

    async def load_version(self, agent_id: str, version: int = 0) -> AgentVersion:
        """The named version; 0 stands for the newest."""
        if version == 0:
            return await self.load(agent_id)
        found = await self._tx.maybe_one(
            """
            SELECT a.id, coalesce(v.version, 0) AS version, coalesce(v.document, '') AS document,
                   coalesce(v.model, '') AS model, coalesce(v.model_id, '') AS model_id, a.created_at,
                   coalesce(v.created_at, a.updated_at) AS updated_at, a.archived_at
            FROM agents AS a
            LEFT JOIN agent_versions AS v
                ON v.workspace_id = a.workspace_id AND v.agent_id = a.id AND v.version = %(version)s
            WHERE a.workspace_id = %(workspace_id)s AND a.id = %(id)s
            """,
            {"id": agent_id, "version": version},
            row=AgentVersion,
        )
        if present(found, agent_id).version != version:
            raise AgentVersionNotFound(
                f"The agent {agent_id} has no version {version}.", agent_id=agent_id, version=version
            )
        return present(found, agent_id)

    async def load_for_update(self, agent_id: str) -> AgentVersion:
        """The newest version, with its agent locked until the transaction ends."""
        found = await self._tx.maybe_one(
            """
            SELECT id, version, document, model, model_id, created_at, updated_at, archived_at
            FROM agents WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            FOR NO KEY UPDATE
            """,
            {"id": agent_id},
            row=AgentVersion,
        )
        return present(found, agent_id)

    async def save_version(self, current: AgentVersion, document: AgentDocument, now: datetime) -> AgentVersion:
        """Adds the version after `current`; refused where the agent has moved on or was archived meanwhile."""
        saved = await self._tx.maybe_one(
            """
            WITH moved AS (
                UPDATE agents
                SET version = version + 1, updated_at = %(now)s, document = %(document)s, model = %(model)s,
                    model_id = %(model_id)s
                WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND version = %(version)s
                  AND archived_at IS NULL
                RETURNING id, version, document, model, model_id, created_at, updated_at, archived_at
            ), kept AS (
                INSERT INTO agent_versions (workspace_id, agent_id, version, created_at, document, model, model_id)
                SELECT %(workspace_id)s, id, version, updated_at, document, model, model_id FROM moved
            )
            SELECT id, version, document, model, model_id, created_at, updated_at, archived_at FROM moved
            """,
            {"id": current.id, "version": current.version, "now": now} | _rendered(document),
            row=AgentVersion,
        )
        if saved is None:
            raise AgentVersionConflict(
                f"The agent {current.id} was changed by another request. Read it again and repeat the change on top.",
                agent_id=current.id,
            )
        return saved

    async def archive(self, agent_id: str, now: datetime) -> AgentVersion:
        """Archives the agent; one that is archived keeps the time at which it was."""
        found = await self._tx.maybe_one(
            """
            UPDATE agents SET archived_at = coalesce(archived_at, %(now)s)
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            RETURNING id, version, document, model, model_id, created_at, updated_at, archived_at
            """,
            {"id": agent_id, "now": now},
            row=AgentVersion,
        )
        return present(found, agent_id)

    async def page(
        self,
        *,
        limit: int,
        before: tuple[datetime, str] | None,
        include_archived: bool,
        created_from: datetime | None,
        created_to: datetime | None,
    ) -> list[AgentVersion]:
        """Agents from newest to oldest, beginning behind `before`."""
        statement = _PAGE_OF_ALL if include_archived else _PAGE_OF_ACTIVE
        created_at, agent_id = before or (None, "")
        return await self._tx.all(
            statement,
            {
                "limit": limit,
                "before_created_at": created_at,
                "before_id": agent_id,
                "created_from": created_from,
                "created_to": created_to,
            },
            row=AgentVersion,
        )

    async def versions(self, agent_id: str, *, limit: int, before: int | None) -> list[AgentVersion]:
        """Versions from newest to oldest, beginning below `before`."""
        found = await self._tx.all(
            """
            SELECT a.id, coalesce(v.version, 0) AS version, coalesce(v.document, '') AS document,
                   coalesce(v.model, '') AS model, coalesce(v.model_id, '') AS model_id, a.created_at,
                   coalesce(v.created_at, a.updated_at) AS updated_at, a.archived_at
            FROM agents AS a
            LEFT JOIN agent_versions AS v
                ON v.workspace_id = a.workspace_id AND v.agent_id = a.id
                AND v.version < coalesce(%(before)s::integer, 2147483647)
            WHERE a.workspace_id = %(workspace_id)s AND a.id = %(id)s
            ORDER BY v.version DESC NULLS LAST
            LIMIT %(limit)s
            """,
            {"id": agent_id, "limit": limit, "before": before},
            row=AgentVersion,
        )
        present(found[0] if found else None, agent_id)
        # An agent without a version in this range answers as one row without a version.
        return [version for version in found if version.version]

    async def roster(self, references: list[RosterReference]) -> list[RosterAgent | None]:
        """What is known of the agents that a roster names, in the order of the references."""
        if not references:
            return []
        found = await self._tx.all(
            """
            SELECT r.position, a.id, v.version, a.archived_at IS NOT NULL, v.document::json ->> 'multiagent' IS NOT NULL
            FROM unnest(%(ids)s::text[], %(versions)s::integer[]) WITH ORDINALITY AS r (id, version, position)
            JOIN agents AS a ON a.workspace_id = %(workspace_id)s AND a.id = r.id
            JOIN agent_versions AS v
                ON v.workspace_id = a.workspace_id AND v.agent_id = a.id AND v.version = coalesce(r.version, a.version)
            ORDER BY r.position
            LIMIT %(limit)s
            """,
            {
                "ids": [reference.agent_id for reference in references],
                "versions": [reference.version for reference in references],
                "limit": len(references),
            },
        )
        known: list[RosterAgent | None] = [None] * len(references)
        for position, agent_id, version, archived, has_roster in found:
            known[position - 1] = RosterAgent(agent_id, version, archived, has_roster)
        return known


_PAGE_OF_ACTIVE = """
    SELECT id, version, document, model, model_id, created_at, updated_at, archived_at
    FROM agents
    WHERE workspace_id = %(workspace_id)s AND archived_at IS NULL
      AND (created_at, id) < (coalesce(%(before_created_at)s::timestamptz, 'infinity'), %(before_id)s)
      AND created_at >= coalesce(%(created_from)s::timestamptz, '-infinity')
      AND created_at <= coalesce(%(created_to)s::timestamptz, 'infinity')
    ORDER BY created_at DESC, id DESC
    LIMIT %(limit)s
"""

_PAGE_OF_ALL = """
    SELECT id, version, document, model, model_id, created_at, updated_at, archived_at
    FROM agents
    WHERE workspace_id = %(workspace_id)s
      AND (created_at, id) < (coalesce(%(before_created_at)s::timestamptz, 'infinity'), %(before_id)s)
      AND created_at >= coalesce(%(created_from)s::timestamptz, '-infinity')
      AND created_at <= coalesce(%(created_to)s::timestamptz, 'infinity')
    ORDER BY created_at DESC, id DESC
    LIMIT %(limit)s
"""


def _rendered(document: AgentDocument) -> dict[str, str]:
    return {"document": document.document_json(), "model": document.model_json(), "model_id": document.model_id}


def present(found: AgentVersion | None, agent_id: str) -> AgentVersion:
    """What was found, or the refusal where it was nothing."""
    if found is None:
        raise AgentNotFound(f"Agent not found: {agent_id}", agent_id=agent_id)
    return found
