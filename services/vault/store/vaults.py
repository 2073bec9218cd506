"""The table `vaults`."""

from __future__ import annotations

from datetime import datetime
from typing import LiteralString

import orjson

from kit.postgres import Tx
from services.vault.domain.errors import VaultNotFound
from services.vault.domain.vault import Vault, VaultContent
from services.vault.store.paging import Position

_SELECT: LiteralString = """
SELECT id, display_name, metadata, created_at, updated_at, archived_at
FROM vaults WHERE workspace_id = %(workspace_id)s
"""


class VaultStore:
    """Vaults of the workspace that the transaction belongs to."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def insert(self, vault_id: str, content: VaultContent, now: datetime) -> Vault:
        """Saves a new vault."""
        await self._tx.execute(
            """
            INSERT INTO vaults (workspace_id, id, display_name, metadata, created_at, updated_at)
            VALUES (%(workspace_id)s, %(id)s, %(display_name)s, %(metadata)s, %(now)s, %(now)s)
            """,
            {"id": vault_id, "now": now} | _values(content),
        )
        return await self.live(vault_id)

    async def find(self, vault_id: str) -> Vault | None:
        """The vault, archived or not."""
        return await self._tx.maybe_one(_SELECT + " AND id = %(id)s", {"id": vault_id}, row=Vault)

    async def live(self, vault_id: str) -> Vault:
        """The vault; an archived one is as good as none."""
        found = await self.find(vault_id)
        if found is None or found.archived_at is not None:
            raise not_found(vault_id)
        return found

    async def lock(self, vault_id: str) -> Vault:
        """The vault, archived or not, locked until the transaction ends."""
        found = await self._tx.maybe_one(_SELECT + " AND id = %(id)s FOR NO KEY UPDATE", {"id": vault_id}, row=Vault)
        if found is None:
            raise not_found(vault_id)
        return found

    async def lock_live(self, vault_id: str) -> Vault:
        """The same for a vault that is not archived."""
        found = await self.lock(vault_id)
        if found.archived_at is not None:
            raise not_found(vault_id)
        return found

    async def save(self, vault_id: str, content: VaultContent, now: datetime) -> Vault:
        """Replaces the content of a vault that is locked."""
        await self._tx.execute(
            """
            UPDATE vaults SET display_name = %(display_name)s, metadata = %(metadata)s, updated_at = %(now)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL
            """,
            {"id": vault_id, "now": now} | _values(content),
        )
        return await self.live(vault_id)

    async def archive(self, vault_id: str, now: datetime) -> Vault:
        """Archives a vault that is locked; one that is archived keeps the time at which it was."""
        await self._tx.execute(
            """
            UPDATE vaults SET archived_at = %(now)s, updated_at = %(now)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL
            """,
            {"id": vault_id, "now": now},
        )
        return await self.lock(vault_id)

    async def delete(self, vault_id: str) -> None:
        """Removes the vault with everything in it."""
        deleted = await self._tx.execute(
            "DELETE FROM vaults WHERE workspace_id = %(workspace_id)s AND id = %(id)s", {"id": vault_id}
        )
        if not deleted:
            raise not_found(vault_id)

    async def states(self, vault_ids: list[str]) -> dict[str, bool]:
        """For each of these that exists, whether it is archived."""
        found = await self._tx.all(
            """
            SELECT id, archived_at IS NOT NULL FROM vaults
            WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s)
            """,
            {"ids": vault_ids},
        )
        return dict(found)

    async def with_variables(self, vault_ids: list[str]) -> list[str]:
        """Those of these that hold environment variables which are not archived."""
        found = await self._tx.all(
            """
            SELECT DISTINCT vault_id FROM credentials
            WHERE workspace_id = %(workspace_id)s AND vault_id = ANY(%(ids)s) AND type = 'environment_variable'
              AND archived_at IS NULL
            """,
            {"ids": vault_ids},
        )
        return [vault_id for (vault_id,) in found]

    async def page(self, position: Position, *, limit: int, include_archived: bool) -> list[Vault]:
        """Vaults beside the position: from newer to older, or back from there."""
        values = position.values() | {"limit": limit, "include_archived": include_archived}
        scoped: LiteralString = _SELECT + " AND (%(include_archived)s OR archived_at IS NULL)"
        return await self._tx.all(scoped + position.condition(), values, row=Vault)


def not_found(vault_id: str) -> VaultNotFound:
    """The refusal, the same for whatever is no live vault of the workspace."""
    return VaultNotFound(f"Vault not found: {vault_id}", vault_id=vault_id)


def _values(content: VaultContent) -> dict[str, str]:
    return {"display_name": content.display_name, "metadata": orjson.dumps(content.metadata).decode()}
