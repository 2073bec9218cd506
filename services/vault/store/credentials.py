"""The table `credentials`: everything of a credential, its secrets sealed beside it.

The lease on a renewal is two columns of the row. It is taken and given back in transactions
of their own, so nothing is locked while a token endpoint answers, and whoever dies with it
holds it no longer than its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import orjson

from kit.postgres import Tx
from services.vault.domain.credential import Content, Credential, Definition
from services.vault.domain.errors import CredentialNotFound
from services.vault.store.paging import Position

_SELECT: LiteralString = """
SELECT id, vault_id, display_name, type, key, networking, in_header, in_body, expires_at, refresh, metadata,
       value_hint, secret_version, last_used_at, rotated_at, created_at, updated_at, archived_at
FROM credentials WHERE workspace_id = %(workspace_id)s
"""


@dataclass(frozen=True, slots=True)
class RefreshState:
    """What is known of the renewal of a credential."""

    secret_version: int
    is_held: bool
    failed_at: datetime | None
    archived: bool


class CredentialStore:
    """Credentials of the workspace that the transaction belongs to."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def insert(
        self, credential_id: str, vault_id: str, definition: Definition, sealed: bytes, hint: str, now: datetime
    ) -> Credential:
        """Saves a new credential; a taken key violates `credentials_live_key`."""
        await self._tx.execute(
            """
            INSERT INTO credentials (
                workspace_id, id, vault_id, display_name, type, key, networking, in_header, in_body, expires_at,
                refresh, metadata, sealed, value_hint, secret_version, created_at, updated_at
            )
            VALUES (
                %(workspace_id)s, %(id)s, %(vault_id)s, %(display_name)s, %(type)s, %(key)s, %(networking)s,
                %(in_header)s, %(in_body)s, %(expires_at)s, %(refresh)s, %(metadata)s, %(sealed)s, %(hint)s, 1, %(now)s,
                %(now)s
            )
            """,
            {
                "id": credential_id,
                "vault_id": vault_id,
                "type": definition.type,
                "key": definition.key,
                "sealed": sealed,
                "hint": hint,
                "now": now,
            }
            | _values(definition.content),
        )
        return await self.load(vault_id, credential_id)

    async def load(self, vault_id: str, credential_id: str) -> Credential:
        """The credential, archived or not."""
        found = await self._tx.maybe_one(
            _SELECT + " AND vault_id = %(vault_id)s AND id = %(id)s",
            {"id": credential_id, "vault_id": vault_id},
            row=Credential,
        )
        if found is None:
            raise not_found(credential_id)
        return found

    async def lock(self, vault_id: str, credential_id: str) -> Credential:
        """The same, locked until the transaction ends."""
        found = await self._tx.maybe_one(
            _SELECT + " AND vault_id = %(vault_id)s AND id = %(id)s FOR NO KEY UPDATE",
            {"id": credential_id, "vault_id": vault_id},
            row=Credential,
        )
        if found is None:
            raise not_found(credential_id)
        return found

    async def live_of(self, vault_ids: list[str]) -> list[Credential]:
        """What is usable in these vaults: in the order of the vaults, then of creation."""
        found = await self._tx.all(
            _SELECT + " AND vault_id = ANY(%(vault_ids)s) AND archived_at IS NULL ORDER BY created_at, id LIMIT 2000",
            {"vault_ids": vault_ids},
            row=Credential,
        )
        places = {vault_id: place for place, vault_id in reversed(list(enumerate(vault_ids)))}
        return sorted(found, key=lambda credential: places[credential.vault_id])

    async def sealed(self, credential_id: str) -> tuple[bytes, int] | None:
        """The sealed secrets and their version; None where they are erased."""
        found = await self._tx.maybe_one(
            """
            SELECT sealed, secret_version FROM credentials
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL
            """,
            {"id": credential_id},
        )
        return None if found is None else (bytes(found[0]), found[1])

    async def count_live(self, vault_id: str) -> int:
        """How many the vault holds."""
        (count,) = await self._tx.one(
            """
            SELECT count(*) FROM credentials
            WHERE workspace_id = %(workspace_id)s AND vault_id = %(vault_id)s AND archived_at IS NULL
            """,
            {"vault_id": vault_id},
        )
        return count

    async def has_live_key(self, vault_id: str, key: str) -> bool:
        """Whether a live credential is found by this key."""
        return None is not await self._tx.maybe_one(
            """
            SELECT 1 FROM credentials
            WHERE workspace_id = %(workspace_id)s AND vault_id = %(vault_id)s AND key = %(key)s AND archived_at IS NULL
            """,
            {"vault_id": vault_id, "key": key},
        )

    async def save(self, credential: Credential, content: Content, now: datetime) -> None:
        """Replaces what may change of a locked credential, apart from its secrets."""
        await self._tx.execute(
            """
            UPDATE credentials
            SET display_name = %(display_name)s, networking = %(networking)s, in_header = %(in_header)s,
                in_body = %(in_body)s, expires_at = %(expires_at)s, refresh = %(refresh)s, metadata = %(metadata)s,
                updated_at = %(now)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL
            """,
            {"id": credential.id, "now": now} | _values(content),
        )

    async def replace_secret(
        self, credential_id: str, sealed: bytes, hint: str, *, rotated_at: datetime | None, now: datetime
    ) -> None:
        """Puts new secrets in the place of the former ones; what was known of renewals is forgotten."""
        await self._tx.execute(
            """
            UPDATE credentials
            SET sealed = %(sealed)s, value_hint = %(hint)s, secret_version = secret_version + 1, updated_at = %(now)s,
                rotated_at = coalesce(%(rotated_at)s, rotated_at), refresh_holder = NULL, refresh_until = NULL,
                refresh_failed_at = NULL, refresh_failed_since = NULL
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL
            """,
            {"id": credential_id, "sealed": sealed, "hint": hint, "rotated_at": rotated_at, "now": now},
        )

    async def set_expiry(self, credential_id: str, expires_at: datetime | None) -> None:
        """When the token of a locked credential ends."""
        await self._tx.execute(
            """
            UPDATE credentials SET expires_at = %(expires_at)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL
            """,
            {"id": credential_id, "expires_at": expires_at},
        )

    async def mark_used(self, credential_ids: list[str], now: datetime, *, grain_seconds: float = 0.0) -> None:
        """Notes a use; one that was noted within the grain is left as it is."""
        await self._tx.execute(
            """
            UPDATE credentials SET last_used_at = %(now)s
            WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s) AND archived_at IS NULL
              AND (last_used_at IS NULL OR last_used_at <= %(now)s::timestamptz - make_interval(secs => %(grain)s))
            """,
            {"ids": credential_ids, "now": now, "grain": grain_seconds},
        )

    async def archive(self, credential_id: str, now: datetime) -> None:
        """Ends a locked credential and erases its secrets."""
        await self._tx.execute(
            """
            UPDATE credentials
            SET archived_at = %(now)s, updated_at = %(now)s, sealed = NULL, value_hint = '', refresh_holder = NULL,
                refresh_until = NULL
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL
            """,
            {"id": credential_id, "now": now},
        )

    async def archive_all(self, vault_id: str, now: datetime) -> list[str]:
        """Ends all that a locked vault holds; their ids."""
        ended = await self._tx.all(
            """
            UPDATE credentials
            SET archived_at = %(now)s, updated_at = %(now)s, sealed = NULL, value_hint = '', refresh_holder = NULL,
                refresh_until = NULL
            WHERE workspace_id = %(workspace_id)s AND vault_id = %(vault_id)s AND archived_at IS NULL
            RETURNING id
            """,
            {"vault_id": vault_id, "now": now},
        )
        return sorted(row[0] for row in ended)

    async def delete(self, credential_id: str) -> None:
        """Removes a locked credential."""
        await self._tx.execute(
            "DELETE FROM credentials WHERE workspace_id = %(workspace_id)s AND id = %(id)s", {"id": credential_id}
        )

    async def page(self, vault_id: str, position: Position, *, limit: int, include_archived: bool) -> list[Credential]:
        """Credentials of a vault beside the position: from newer to older, or back from there."""
        values = {"vault_id": vault_id, "limit": limit, "include_archived": include_archived} | position.values()
        scoped: LiteralString = (
            _SELECT + " AND vault_id = %(vault_id)s AND (%(include_archived)s OR archived_at IS NULL)"
        )
        return await self._tx.all(scoped + position.condition(), values, row=Credential)

    async def take_refresh(self, credential_id: str, holder: str, version: int, seconds: float) -> bool:
        """Takes the lease on a renewal of this version of the secret; False where another holds it or it is past."""
        taken = await self._tx.execute(
            """
            UPDATE credentials
            SET refresh_holder = %(holder)s, refresh_until = clock_timestamp() + make_interval(secs => %(seconds)s)
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL
              AND secret_version = %(version)s
              AND (refresh_until IS NULL OR refresh_until < clock_timestamp())
            """,
            {"id": credential_id, "holder": holder, "version": version, "seconds": seconds},
        )
        return taken == 1

    async def refresh_state(self, credential_id: str) -> RefreshState | None:
        """How a renewal stands."""
        return await self._tx.maybe_one(
            """
            SELECT secret_version, coalesce(refresh_until >= clock_timestamp(), false) AS is_held,
                   refresh_failed_at AS failed_at, archived_at IS NOT NULL AS archived
            FROM credentials WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            """,
            {"id": credential_id},
            row=RefreshState,
        )

    async def fail_refresh(self, credential_id: str, holder: str, now: datetime) -> bool | None:
        """Gives the lease back after a failure: whether it is the first since a token came. None: it was lost."""
        found = await self._tx.maybe_one(
            """
            UPDATE credentials
            SET refresh_holder = NULL, refresh_until = NULL, refresh_failed_at = %(now)s,
                refresh_failed_since = coalesce(refresh_failed_since, %(now)s)
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND refresh_holder = %(holder)s
            RETURNING refresh_failed_since = %(now)s
            """,
            {"id": credential_id, "holder": holder, "now": now},
        )
        return None if found is None else found[0]

    async def drop_refresh(self, credential_id: str, holder: str) -> None:
        """Gives the lease back with nothing done."""
        await self._tx.execute(
            """
            UPDATE credentials SET refresh_holder = NULL, refresh_until = NULL
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND refresh_holder = %(holder)s
            """,
            {"id": credential_id, "holder": holder},
        )


def not_found(credential_id: str) -> CredentialNotFound:
    """The refusal, the same for whatever is no credential of the vault."""
    return CredentialNotFound(f"Credential not found: {credential_id}", credential_id=credential_id)


def _values(content: Content) -> dict[str, Any]:
    return {
        "display_name": content.display_name,
        "networking": orjson.dumps(content.networking.document()).decode() if content.networking else None,
        "in_header": content.in_header,
        "in_body": content.in_body,
        "expires_at": content.expires_at,
        "refresh": content.refresh.encode() if content.refresh else None,
        "metadata": orjson.dumps(content.metadata).decode(),
    }
