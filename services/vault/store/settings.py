"""Rows of `settings`, `effective_settings` and `master_key_checks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from kit.postgres import Tx


@dataclass(frozen=True, slots=True)
class SettingsRow:
    """A saved document without its secrets, and the secrets, sealed."""

    revision: int
    document: dict[str, Any]
    secrets: bytes


class SettingsStore:
    """The settings document of the transaction's workspace."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def load(self) -> SettingsRow | None:
        """The saved document, if there is one."""
        return await self._tx.maybe_one(
            "SELECT revision, document, secrets FROM settings WHERE workspace_id = %(workspace_id)s", row=SettingsRow
        )

    async def load_effective(self) -> SettingsRow | None:
        """The last document that was saved as a sound one, if there is one."""
        return await self._tx.maybe_one(
            "SELECT revision, document, secrets FROM effective_settings WHERE workspace_id = %(workspace_id)s",
            row=SettingsRow,
        )

    async def put_in_effect(self, revision: int, document: dict[str, Any], secrets: bytes) -> None:
        """Keep what was just saved as the document in effect."""
        await self._tx.execute(
            """
            INSERT INTO effective_settings (workspace_id, revision, document, secrets)
            VALUES (%(workspace_id)s, %(revision)s, %(document)s, %(secrets)s)
            ON CONFLICT (workspace_id) DO UPDATE
               SET revision = EXCLUDED.revision, document = EXCLUDED.document, secrets = EXCLUDED.secrets,
                   updated_at = now()
            """,
            {"revision": revision, "document": Jsonb(document), "secrets": secrets},
        )

    async def insert(self, document: dict[str, Any], secrets: bytes) -> bool:
        """Saves the first document as revision 1; False where another was first."""
        return (
            await self._tx.execute(
                """
            INSERT INTO settings (workspace_id, revision, document, secrets)
            VALUES (%(workspace_id)s, 1, %(document)s, %(secrets)s)
            ON CONFLICT (workspace_id) DO NOTHING
            """,
                {"document": Jsonb(document), "secrets": secrets},
            )
            == 1
        )

    async def replace(self, revision: int, document: dict[str, Any], secrets: bytes) -> bool:
        """Saves the successor of `revision`; False where that is not the current one."""
        return (
            await self._tx.execute(
                """
            UPDATE settings
               SET revision = revision + 1, document = %(document)s, secrets = %(secrets)s, updated_at = now()
             WHERE workspace_id = %(workspace_id)s AND revision = %(revision)s
            """,
                {"revision": revision, "document": Jsonb(document), "secrets": secrets},
            )
            == 1
        )


class MasterKeyStore:
    """The one row that only the right master key opens."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def find(self) -> bytes | None:
        """The stored check; None in a database that nothing was sealed for yet, be it without any table."""
        (table,) = await self._tx.one("SELECT to_regclass('master_key_checks')::text")
        if table is None:
            return None
        found = await self._tx.maybe_one("SELECT sealed FROM master_key_checks WHERE id = 1")
        return None if found is None else bytes(found[0])

    async def load_or_insert(self, sealed: bytes) -> bytes:
        """The stored check; `sealed` becomes it where there is none yet."""
        await self._tx.execute(
            "INSERT INTO master_key_checks (id, sealed) VALUES (1, %(sealed)s) ON CONFLICT (id) DO NOTHING",
            {"sealed": sealed},
        )
        (stored,) = await self._tx.one("SELECT sealed FROM master_key_checks WHERE id = 1")
        return stored
