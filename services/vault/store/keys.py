"""Rows of `api_keys`, `worker_keys` and `key_generation`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from kit.postgres import Tx


@dataclass(frozen=True, slots=True)
class ApiKeyRow:
    """An API key without its digest."""

    id: str
    workspace_id: str
    name: str
    role: str
    owner_name: str
    key_prefix: str
    created_at: datetime
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class WorkerKeyRow:
    """A worker key without its digest."""

    id: str
    environment_id: str
    name: str
    metadata: str
    key_prefix: str
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    last_seen_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class PrincipalRow:
    """Whose key has a digest; `id` is null where nobody's has, and the generation as of the same moment."""

    generation: int
    id: str | None
    workspace_id: str | None
    role: str | None
    owner_name: str | None
    environment_id: str | None
    expires_at: datetime | None
    sha256: bytes | None


class KeyRegister:
    """What holds over the keys of all workspaces."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def advance(self) -> None:
        """Begin a change of keys: others wait until it is committed, and then see another generation."""
        await self._tx.execute(
            """
            -- platform-wide: one counter a platform
            UPDATE key_generation SET generation = generation + 1 WHERE id = 1
            """
        )

    async def standing(self) -> tuple[int, bool]:
        """The generation, and whether there is any API key."""
        return await self._tx.one(
            """
            -- platform-wide: one key of any workspace turns authentication on
            SELECT generation, EXISTS (SELECT FROM api_keys) FROM key_generation WHERE id = 1
            """
        )

    async def has_admin(self, workspace_id: str) -> bool:
        """Whether somebody may manage all keys."""
        found = await self._tx.for_workspace(workspace_id).maybe_one(
            "SELECT id FROM api_keys WHERE workspace_id = %(workspace_id)s AND role = 'admin' LIMIT 1"
        )
        return found is not None

    async def find(self, sha256: bytes) -> PrincipalRow:
        """Whose key has this digest, if anybody's that can be used has."""
        return await self._tx.one(
            """
            -- platform-wide: the digest of a key names its workspace
            SELECT g.generation, k.id, k.workspace_id, k.role, k.owner_name, k.environment_id, k.expires_at, k.sha256
            FROM key_generation g LEFT JOIN (
                SELECT id, workspace_id, role, owner_name, NULL AS environment_id, NULL::timestamptz AS expires_at,
                       sha256
                FROM api_keys WHERE sha256 = %(sha256)s
                UNION ALL
                SELECT id, workspace_id, 'worker', name, environment_id, expires_at, sha256
                FROM worker_keys
                WHERE sha256 = %(sha256)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
            ) k ON true
            WHERE g.id = 1
            LIMIT 1
            """,
            {"sha256": sha256},
            row=PrincipalRow,
        )

    async def note_uses(self, ids: Sequence[str], times: Sequence[datetime]) -> None:
        """Keep the newest use of each key. What another gateway notes at this moment is left to it."""
        params = {"ids": list(ids), "times": list(times)}
        await self._tx.execute(
            """
            -- platform-wide: the gateway tells the uses of many workspaces at once
            UPDATE api_keys k SET last_used_at = u.used_at
            FROM unnest(%(ids)s::text[], %(times)s::timestamptz[]) AS u (id, used_at)
            WHERE k.id = u.id AND (k.last_used_at IS NULL OR k.last_used_at < u.used_at)
              AND k.id IN (
                  SELECT id FROM api_keys WHERE id = ANY(%(ids)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
              )
            """,
            params,
        )
        await self._tx.execute(
            """
            -- platform-wide: the gateway tells the uses of many workspaces at once
            UPDATE worker_keys k SET last_seen_at = u.used_at
            FROM unnest(%(ids)s::text[], %(times)s::timestamptz[]) AS u (id, used_at)
            WHERE k.id = u.id AND (k.last_seen_at IS NULL OR k.last_seen_at < u.used_at)
              AND k.id IN (
                  SELECT id FROM worker_keys WHERE id = ANY(%(ids)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
              )
            """,
            params,
        )


class ApiKeyStore:
    """The API keys of the transaction's workspace."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def insert(self, key: ApiKeyRow, sha256: bytes) -> None:
        """Keep a new key."""
        await self._tx.execute(
            """
            INSERT INTO api_keys (workspace_id, id, name, role, owner_name, key_prefix, sha256, created_at)
            VALUES (%(workspace_id)s, %(id)s, %(name)s, %(role)s, %(owner_name)s, %(key_prefix)s, %(sha256)s,
                    %(created_at)s)
            """,
            {
                "id": key.id,
                "name": key.name,
                "role": key.role,
                "owner_name": key.owner_name,
                "key_prefix": key.key_prefix,
                "sha256": sha256,
                "created_at": key.created_at,
            },
        )

    async def list(self, *, limit: int, after_id: str) -> list[ApiKeyRow]:
        """A page, newest first."""
        return await self._tx.all(
            """
            SELECT id, workspace_id, name, role, owner_name, key_prefix, created_at, last_used_at FROM api_keys
            WHERE workspace_id = %(workspace_id)s AND (%(after_id)s = '' OR id < %(after_id)s)
            ORDER BY id DESC LIMIT %(limit)s
            """,
            {"limit": limit, "after_id": after_id},
            row=ApiKeyRow,
        )

    async def count(self) -> int:
        """How many there are."""
        (count,) = await self._tx.one("SELECT count(*) FROM api_keys WHERE workspace_id = %(workspace_id)s")
        return count

    async def delete(self, key_id: str) -> bool:
        """Remove a key; False where there is none."""
        removed = await self._tx.execute(
            "DELETE FROM api_keys WHERE workspace_id = %(workspace_id)s AND id = %(id)s", {"id": key_id}
        )
        return removed == 1


class WorkerKeyStore:
    """The worker keys of an environment in the transaction's workspace."""

    def __init__(self, tx: Tx, environment_id: str) -> None:
        self._tx = tx
        self._environment_id = environment_id

    async def insert(self, key: WorkerKeyRow, sha256: bytes) -> None:
        """Keep a new key."""
        await self._tx.execute(
            """
            INSERT INTO worker_keys (workspace_id, environment_id, id, name, metadata, key_prefix, sha256, created_at,
                                     updated_at, expires_at)
            VALUES (%(workspace_id)s, %(environment_id)s, %(id)s, %(name)s, %(metadata)s, %(key_prefix)s, %(sha256)s,
                    %(created_at)s, %(created_at)s, %(expires_at)s)
            """,
            {
                "environment_id": self._environment_id,
                "id": key.id,
                "name": key.name,
                "metadata": key.metadata,
                "key_prefix": key.key_prefix,
                "sha256": sha256,
                "created_at": key.created_at,
                "expires_at": key.expires_at,
            },
        )

    async def list(self, *, limit: int, after_id: str) -> list[WorkerKeyRow]:
        """A page, newest first."""
        return await self._tx.all(
            """
            SELECT id, environment_id, name, metadata, key_prefix, created_at, updated_at, expires_at, last_seen_at,
                   revoked_at
            FROM worker_keys
            WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s
              AND (%(after_id)s = '' OR id < %(after_id)s)
            ORDER BY id DESC LIMIT %(limit)s
            """,
            {"environment_id": self._environment_id, "limit": limit, "after_id": after_id},
            row=WorkerKeyRow,
        )

    async def count(self) -> int:
        """How many there are."""
        (count,) = await self._tx.one(
            """
            SELECT count(*) FROM worker_keys
            WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s
            """,
            {"environment_id": self._environment_id},
        )
        return count

    async def revoke(self, key_id: str, now: datetime) -> WorkerKeyRow | None:
        """End a key, if there is one; one that has ended stays as it is."""
        return await self._tx.maybe_one(
            """
            UPDATE worker_keys
            SET updated_at = CASE WHEN revoked_at IS NULL THEN %(now)s ELSE updated_at END,
                revoked_at = coalesce(revoked_at, %(now)s)
            WHERE workspace_id = %(workspace_id)s AND environment_id = %(environment_id)s AND id = %(id)s
            RETURNING id, environment_id, name, metadata, key_prefix, created_at, updated_at, expires_at, last_seen_at,
                      revoked_at
            """,
            {"environment_id": self._environment_id, "id": key_id, "now": now},
            row=WorkerKeyRow,
        )
