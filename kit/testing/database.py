"""Databases for tests, of which `kit.testing.swept` takes care: migrated once into a template, then copied.

The database is reached by the service's own role, so a test also proves that the role may do what it does.
"""

import asyncio
import hashlib
import secrets
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from kit import tenancy
from kit.embedded.roles import create_role_and_schema
from kit.migrate import migrate
from kit.tenancy import EVERY_WORKSPACE, SETTING


async def copy_of(admin: psycopg.AsyncConnection[Any], template: str) -> str:
    """The name of a new database."""
    name = f"t_{secrets.token_hex(6)}"
    # Copied as files: five times as quick as through the log, on a server that syncs nothing.
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
    await admin.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
    return name


def dsn_of(server_dsn: str, name: str, schema: str) -> str:
    """How a service reaches a database."""
    # A test that looks into the tables by itself sees the rows of all workspaces.
    return make_conninfo(server_dsn, dbname=name, user=schema, options=f"-c {SETTING}={EVERY_WORKSPACE}")


async def template_of(server_dsn: str, schema: str, folder: Path | None) -> str:
    """Build the template unless it stands; processes that need the same one take turns."""
    name = f"template_{schema}_{fingerprint(folder)}"
    async with await psycopg.AsyncConnection.connect(server_dsn, autocommit=True) as admin:
        await admin.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", ["test templates"])
        found = await admin.execute("SELECT datistemplate FROM pg_database WHERE datname = %s", [name])
        if (await found.fetchone()) == (True,):
            return name
        await admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        # Blocking, and with connections of its own: kept off the loop of the test.
        dsns = await asyncio.to_thread(create_role_and_schema, server_dsn, name, [schema])
        if folder is not None:
            await migrate(dsns[schema], schema, folder)
        # The mark that it is whole: what a killed run left behind has none and is made anew.
        await admin.execute(sql.SQL("ALTER DATABASE {} IS_TEMPLATE true").format(sql.Identifier(name)))
    return name


def fingerprint(folder: Path | None) -> str:
    """Another one for other migrations."""
    digest = hashlib.sha256(Path(tenancy.__file__).read_bytes())
    for path in sorted(folder.glob("*.sql")) if folder is not None else ():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
