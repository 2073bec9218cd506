"""Every column that holds a sealed value, for what must reach them all: wrapping anew, and counting.

A table with such a column is entered in COLUMNS; a test compares the list with the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, LiteralString

from kit.postgres import Tx
from services.vault.domain.credential import identity
from services.vault.store.repository_tokens import row_identity


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """`key` names the columns that a row is found by, in their order; `row` names what its value is sealed for."""

    table: str
    column: str
    key: tuple[str, ...]
    # (%(prefix)s, %(limit)s): rows that begin otherwise, as (key…, value), in the order of the key after %(after)s.
    select: LiteralString
    # Replaces one value, if it is still the one that was read.
    update: LiteralString
    count: LiteralString
    row: Callable[[tuple[Any, ...]], str]


COLUMNS: tuple[SealedColumn, ...] = (
    SealedColumn(
        "master_key_checks",
        "sealed",
        ("id",),
        """
        SELECT id, sealed FROM master_key_checks
        WHERE substr(sealed, 1, length(%(prefix)s::bytea)) <> %(prefix)s AND id > coalesce(%(after_1)s::int, 0)
        ORDER BY id LIMIT %(limit)s
        """,
        "UPDATE master_key_checks SET sealed = %(fresh)s WHERE id = %(key_1)s AND sealed = %(former)s",
        """
        SELECT count(*), count(*) FILTER (WHERE substr(sealed, 1, length(%(prefix)s::bytea)) <> %(prefix)s)
        FROM master_key_checks
        """,
        lambda key: f"master_key_checks:{key[0]}",
    ),
    SealedColumn(
        "sealed_keys",
        "sealed",
        ("name",),
        """
        SELECT name, sealed FROM sealed_keys
        WHERE substr(sealed, 1, length(%(prefix)s::bytea)) <> %(prefix)s AND name > coalesce(%(after_1)s, '')
        ORDER BY name LIMIT %(limit)s
        """,
        "UPDATE sealed_keys SET sealed = %(fresh)s WHERE name = %(key_1)s AND sealed = %(former)s",
        """
        SELECT count(*), count(*) FILTER (WHERE substr(sealed, 1, length(%(prefix)s::bytea)) <> %(prefix)s)
        FROM sealed_keys
        """,
        lambda key: f"sealed_keys:{key[0]}",
    ),
    SealedColumn(
        "settings",
        "secrets",
        ("workspace_id",),
        """
        SELECT workspace_id, secrets FROM settings -- platform-wide: the master key is one for all
        WHERE substr(secrets, 1, length(%(prefix)s::bytea)) <> %(prefix)s
          AND workspace_id > coalesce(%(after_1)s, '')
        ORDER BY workspace_id LIMIT %(limit)s
        """,
        """
        UPDATE settings SET secrets = %(fresh)s -- platform-wide: the master key is one for all
        WHERE workspace_id = %(key_1)s AND secrets = %(former)s
        """,
        """
        SELECT count(*), count(*) FILTER (WHERE substr(secrets, 1, length(%(prefix)s::bytea)) <> %(prefix)s)
        FROM settings -- platform-wide: the master key is one for all
        """,
        lambda key: f"settings:{key[0]}",
    ),
    SealedColumn(
        "effective_settings",
        "secrets",
        ("workspace_id",),
        """
        SELECT workspace_id, secrets FROM effective_settings -- platform-wide: the master key is one for all
        WHERE substr(secrets, 1, length(%(prefix)s::bytea)) <> %(prefix)s
          AND workspace_id > coalesce(%(after_1)s, '')
        ORDER BY workspace_id LIMIT %(limit)s
        """,
        """
        UPDATE effective_settings SET secrets = %(fresh)s -- platform-wide: the master key is one for all
        WHERE workspace_id = %(key_1)s AND secrets = %(former)s
        """,
        """
        SELECT count(*), count(*) FILTER (WHERE substr(secrets, 1, length(%(prefix)s::bytea)) <> %(prefix)s)
        FROM effective_settings -- platform-wide: the master key is one for all
        """,
        lambda key: f"settings:{key[0]}",
    ),
    SealedColumn(
        "credentials",
        "sealed",
        ("workspace_id", "id"),
        """
        SELECT workspace_id, id, vault_id, type, key, sealed
        FROM credentials -- platform-wide: the master key is one for all
        WHERE sealed IS NOT NULL AND substr(sealed, 1, length(%(prefix)s::bytea)) <> %(prefix)s
          AND (workspace_id, id) > (coalesce(%(after_1)s, ''), coalesce(%(after_2)s, ''))
        ORDER BY workspace_id, id LIMIT %(limit)s
        """,
        """
        UPDATE credentials SET sealed = %(fresh)s -- platform-wide: the master key is one for all
        WHERE workspace_id = %(key_1)s AND id = %(key_2)s AND sealed = %(former)s
        """,
        """
        SELECT count(sealed), count(*) FILTER (WHERE substr(sealed, 1, length(%(prefix)s::bytea)) <> %(prefix)s)
        FROM credentials -- platform-wide: the master key is one for all
        """,
        lambda key: identity(key[0], key[2], key[1], key[3], key[4]),
    ),
    SealedColumn(
        "repository_tokens",
        "sealed",
        ("workspace_id", "id"),
        """
        SELECT workspace_id, id, session_id, sealed
        FROM repository_tokens -- platform-wide: the master key is one for all
        WHERE substr(sealed, 1, length(%(prefix)s::bytea)) <> %(prefix)s
          AND (workspace_id, id) > (coalesce(%(after_1)s, ''), coalesce(%(after_2)s, ''))
        ORDER BY workspace_id, id LIMIT %(limit)s
        """,
        """
        UPDATE repository_tokens SET sealed = %(fresh)s -- platform-wide: the master key is one for all
        WHERE workspace_id = %(key_1)s AND id = %(key_2)s AND sealed = %(former)s
        """,
        """
        SELECT count(*), count(*) FILTER (WHERE substr(sealed, 1, length(%(prefix)s::bytea)) <> %(prefix)s)
        FROM repository_tokens -- platform-wide: the master key is one for all
        """,
        lambda key: row_identity(key[0], key[2], key[1]),
    ),
)


@dataclass(frozen=True, slots=True)
class SealedRow:
    """One value that waits to be wrapped anew. `key` is what finds its row, `row` what it is sealed for."""

    key: tuple[Any, ...]
    row: str
    sealed: bytes


class SealedStore:
    """Sealed values of all workspaces, for platform-wide transactions."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def waiting(
        self, column: SealedColumn, prefix: bytes, after: tuple[Any, ...] | None, limit: int
    ) -> list[SealedRow]:
        """Values that don't begin with the prefix, after the given key."""
        values: dict[str, Any] = {"prefix": prefix, "limit": limit}
        for number in range(len(column.key)):
            values[f"after_{number + 1}"] = after[number] if after else None
        found = await self._tx.all(column.select, values)
        return [SealedRow(row[: len(column.key)], column.row(row[:-1]), bytes(row[-1])) for row in found]

    async def replace(self, column: SealedColumn, waiting: SealedRow, fresh: bytes) -> bool:
        """False where the value was replaced meanwhile."""
        values = {f"key_{number + 1}": part for number, part in enumerate(waiting.key)}
        return await self._tx.execute(column.update, {**values, "fresh": fresh, "former": waiting.sealed}) > 0

    async def count(self, prefix: bytes) -> tuple[int, int]:
        """How many there are, and how many of them don't begin with the prefix."""
        sealed = waiting = 0
        for column in COLUMNS:
            counts = await self._tx.one(column.count, {"prefix": prefix})
            sealed, waiting = sealed + counts[0], waiting + counts[1]
        return sealed, waiting


class SealedKeyStore:
    """The table `sealed_keys`."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def load_or_insert(self, name: str, sealed: bytes) -> bytes:
        """The stored key; `sealed` becomes it where there is none yet."""
        await self._tx.execute(
            "INSERT INTO sealed_keys (name, sealed) VALUES (%(name)s, %(sealed)s) ON CONFLICT (name) DO NOTHING",
            {"name": name, "sealed": sealed},
        )
        (stored,) = await self._tx.one("SELECT sealed FROM sealed_keys WHERE name = %(name)s", {"name": name})
        return bytes(stored)
