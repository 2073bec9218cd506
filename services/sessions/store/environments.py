"""The table `environments`.

Each workspace has `env_default`. Its row comes to be the first time somebody needs it, so
a workspace costs nothing before that; two who need it at once get the same row.
"""

from datetime import datetime

import orjson

from kit.postgres import Tx
from services.sessions.domain.environment import (
    DEFAULT_CONFIG,
    DEFAULT_ENVIRONMENT_ID,
    DEFAULT_NAME,
    SCOPES,
    Environment,
    EnvironmentDefinition,
)
from services.sessions.domain.errors import EnvironmentInUse, EnvironmentNotFound


class EnvironmentStore:
    """Environments of the workspace that the transaction belongs to."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def insert(self, environment_id: str, content: EnvironmentDefinition, now: datetime) -> Environment:
        """Saves a new environment."""
        return await self._tx.one(
            """
            INSERT INTO environments (
                workspace_id, id, created_at, updated_at, name, description, metadata, config, scope
            )
            VALUES (
                %(workspace_id)s, %(id)s, %(now)s, %(now)s, %(name)s, %(description)s, %(metadata)s, %(config)s,
                %(scope)s
            )
            RETURNING id, name, description, metadata, config, scope, created_at, updated_at, archived_at
            """,
            {"id": environment_id, "now": now} | _columns(content),
            row=Environment,
        )

    async def load(self, environment_id: str) -> Environment:
        """The environment; the workspace's default is made if it isn't there yet."""
        found = await self._tx.maybe_one(
            """
            SELECT id, name, description, metadata, config, scope, created_at, updated_at, archived_at
            FROM environments WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            """,
            {"id": environment_id},
            row=Environment,
        )
        return await self._present(found, environment_id)

    async def load_for_session(self, environment_id: str) -> Environment:
        """The environment, kept from being deleted or changed until the transaction that adds a session ends."""
        found = await self._tx.maybe_one(
            """
            SELECT id, name, description, metadata, config, scope, created_at, updated_at, archived_at
            FROM environments WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            FOR SHARE
            """,
            {"id": environment_id},
            row=Environment,
        )
        return await self._present(found, environment_id)

    async def load_for_update(self, environment_id: str) -> Environment:
        """The environment, locked until the transaction ends."""
        found = await self._tx.maybe_one(
            """
            SELECT id, name, description, metadata, config, scope, created_at, updated_at, archived_at
            FROM environments WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            FOR NO KEY UPDATE
            """,
            {"id": environment_id},
            row=Environment,
        )
        return await self._present(found, environment_id)

    async def save(self, environment_id: str, content: EnvironmentDefinition, now: datetime) -> Environment:
        """Replaces the content of an environment that isn't archived."""
        found = await self._tx.maybe_one(
            """
            UPDATE environments
            SET updated_at = %(now)s, name = %(name)s, description = %(description)s, metadata = %(metadata)s,
                config = %(config)s, scope = %(scope)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL
            RETURNING id, name, description, metadata, config, scope, created_at, updated_at, archived_at
            """,
            {"id": environment_id, "now": now} | _columns(content),
            row=Environment,
        )
        return await self._present(found, environment_id)

    async def archive(self, environment_id: str, now: datetime) -> Environment:
        """Archives the environment; one that is archived keeps the time at which it was."""
        found = await self._tx.maybe_one(
            """
            UPDATE environments SET archived_at = coalesce(archived_at, %(now)s)
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            RETURNING id, name, description, metadata, config, scope, created_at, updated_at, archived_at
            """,
            {"id": environment_id, "now": now},
            row=Environment,
        )
        return await self._present(found, environment_id)

    async def lock_for_deletion(self, environment_id: str) -> None:
        """Waits for sessions that are being made in it, and keeps others from it until the transaction ends."""
        found = await self._tx.maybe_one(
            "SELECT id FROM environments WHERE workspace_id = %(workspace_id)s AND id = %(id)s FOR UPDATE",
            {"id": environment_id},
        )
        if found is None:
            raise _not_found(environment_id)

    async def delete_unused(self, environment_id: str) -> None:
        """Deletes an environment that no session names; lock it first."""
        deleted = await self._tx.execute(
            """
            DELETE FROM environments
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
              AND NOT EXISTS (
                SELECT 1 FROM sessions
                WHERE workspace_id = %(workspace_id)s AND environment_id = %(id)s AND deleted_at IS NULL
              )
            """,
            {"id": environment_id},
        )
        if not deleted:
            raise EnvironmentInUse(
                f"The environment {environment_id} has sessions. Delete them first, or archive the environment.",
                environment_id=environment_id,
            )

    async def page(
        self, *, limit: int, before: tuple[datetime, str] | None, include_archived: bool
    ) -> list[Environment]:
        """Environments from newest to oldest, beginning behind `before`."""
        created_at, environment_id = before or (None, "")
        return await self._tx.all(
            """
            SELECT id, name, description, metadata, config, scope, created_at, updated_at, archived_at
            FROM environments
            WHERE workspace_id = %(workspace_id)s
              AND (%(include_archived)s OR archived_at IS NULL)
              AND (created_at, id) < (coalesce(%(before_created_at)s::timestamptz, 'infinity'), %(before_id)s)
            ORDER BY created_at DESC, id DESC
            LIMIT %(limit)s
            """,
            {
                "limit": limit,
                "include_archived": include_archived,
                "before_created_at": created_at,
                "before_id": environment_id,
            },
            row=Environment,
        )

    async def _present(self, found: Environment | None, environment_id: str) -> Environment:
        if found is not None:
            return found
        if environment_id != DEFAULT_ENVIRONMENT_ID:
            raise _not_found(environment_id)
        return await self._tx.one(
            """
            INSERT INTO environments (
                workspace_id, id, created_at, updated_at, name, config, scope
            )
            VALUES (%(workspace_id)s, %(id)s, now(), now(), %(name)s, %(config)s, %(scope)s)
            ON CONFLICT ON CONSTRAINT environments_pk DO UPDATE SET id = excluded.id
            RETURNING id, name, description, metadata, config, scope, created_at, updated_at, archived_at
            """,
            {"id": DEFAULT_ENVIRONMENT_ID, "name": DEFAULT_NAME, "config": DEFAULT_CONFIG, "scope": SCOPES[0]},
            row=Environment,
        )


def _columns(content: EnvironmentDefinition) -> dict[str, str | None]:
    return {
        "name": content.name,
        "description": content.description,
        "metadata": orjson.dumps(content.metadata).decode(),
        "config": content.config,
        "scope": content.scope,
    }


def _not_found(environment_id: str) -> EnvironmentNotFound:
    return EnvironmentNotFound(f"Environment not found: {environment_id}", environment_id=environment_id)
