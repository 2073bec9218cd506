"""Row-level security: what the server itself keeps apart, whatever a statement forgets.

Every table that has a `workspace_id` gets one policy, forced on its owner too, since services own their tables. A
connection says by a setting whose work it does; without it there is no row to see and none to write. `*` is the
platform's own work: claims, sweeps, the relay, migrations. `kit.postgres` sets it, `kit.migrate` calls `protect` after
the files, so a new table can't be forgotten.

A superuser, and a role with BYPASSRLS, is above all of that; a service that runs as one is told so in its log.
"""

from typing import Any, LiteralString

import psycopg
from psycopg import sql

from kit.telemetry import log

SETTING = "managed_agents.workspace"
EVERY_WORKSPACE = "*"
POLICY = "own_workspace"

_OPEN: LiteralString = """
SELECT c.relname
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'workspace_id' AND NOT a.attisdropped
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p')
  AND NOT (
      c.relrowsecurity AND c.relforcerowsecurity
      AND EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = %(policy)s)
  )
ORDER BY c.relname
"""
# A CASE, of which the planner expects that it leaves half of the rows. Of two comparisons joined by OR it expects a
# hundredth, and would plan every statement for a table that seems nearly empty.
_PROTECT = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS {policy} ON {table};
CREATE POLICY {policy} ON {table} USING (
    CASE current_setting({setting}, true)
        WHEN {every} THEN true
        ELSE workspace_id = current_setting({setting}, true)
    END
)
"""


async def unprotected(connection: psycopg.AsyncConnection[Any], schema: str) -> list[str]:
    """Tables of the schema that hold rows of workspaces and don't keep them apart."""
    cursor = await connection.execute(_OPEN, {"schema": schema, "policy": POLICY})
    return [name for (name,) in await cursor.fetchall()]


async def protect(connection: psycopg.AsyncConnection[Any], table: str) -> None:
    """Keep the rows of a table apart, in one transaction. Waits for its lock no longer than the connection does."""
    statement = sql.SQL(_PROTECT).format(
        table=sql.Identifier(table),
        policy=sql.Identifier(POLICY),
        setting=sql.Literal(SETTING),
        every=sql.Literal(EVERY_WORKSPACE),
    )
    async with connection.transaction():
        await connection.execute(statement)


async def warn_if_above(connection: psycopg.AsyncConnection[Any]) -> None:
    """Say so where the role of this connection is not subject to any of this."""
    cursor = await connection.execute("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user")
    if (await cursor.fetchone()) == (True,):
        log.warning("the role of this service is above row-level security: workspaces are kept apart by its SQL alone")
