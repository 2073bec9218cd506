"""One database, and in it a role and a schema for each service, with nothing granted across.

Safe to repeat and to run from several processes at once. A role finds its own schema by its search_path and has no
right on any other.

`python -m kit.embedded.roles DSN DATABASE NAME…` does it for a server that asks for no passwords.
"""

import sys
from collections.abc import Callable, Iterable

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from kit.embedded.postgres import dsn as make_dsn

# Any fixed number: it serialises this preparation among processes.
_PREPARATION_LOCK = 0x6D61_726F_6C65


def create_role_and_schema(
    dsn: str, database: str, names: Iterable[str], *, password: Callable[[str], str] | None = None
) -> dict[str, str]:
    """Prepare `database` and return each role's DSN. `password` gives a role's password where the server asks one."""
    names = list(names)
    with psycopg.connect(dsn, autocommit=True) as admin:
        _lock(admin)
        created = _create_database(admin, database)
        for name in names:
            _create_role(admin, name, password(name) if password else None)
    with psycopg.connect(dsn, dbname=database) as connection:
        _lock(connection)
        if created:
            connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
            connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database)))
        for name in names:
            _create_schema(connection, database, name)
    return {name: _dsn_of(dsn, database, name, password(name) if password else "") for name in names}


def _lock(connection: psycopg.Connection) -> None:
    connection.execute("SELECT pg_advisory_lock(%s)", [_PREPARATION_LOCK])


def _create_database(connection: psycopg.Connection, database: str) -> bool:
    if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone():
        return False
    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    return True


def _create_role(connection: psycopg.Connection, name: str, password: str | None) -> None:
    role = sql.Identifier(name)
    if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone():
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
    if password is not None:
        connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password)))


def _create_schema(connection: psycopg.Connection, database: str, name: str) -> None:
    role, place = sql.Identifier(name), sql.Identifier(database)
    superuser = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    if superuser and not superuser[0]:
        # An administrator who is no superuser may only give a schema to a role that it belongs to.
        connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(role))
    connection.execute(sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}").format(place, role))
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}").format(role, role))
    connection.execute(sql.SQL("ALTER ROLE {} IN DATABASE {} SET search_path = {}").format(role, place, role))


def _dsn_of(dsn: str, database: str, name: str, password: str) -> str:
    """The given address with another user; how to reach the server (host, port, TLS) stays."""
    given = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    for key in ("user", "password", "dbname", "passfile"):
        given.pop(key, None)
    return make_dsn(user=name, database=database, password=password, **given)


if __name__ == "__main__":
    create_role_and_schema(sys.argv[1], sys.argv[2], sys.argv[3:])
