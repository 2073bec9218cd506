"""Proves that each service's role reaches its own schema and nothing else, however often it is prepared."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from kit.embedded.postgres import EmbeddedPostgres
from kit.embedded.roles import create_role_and_schema

NAMES = ["sessions", "vault", "scheduler", "worker"]


@pytest.fixture(scope="module")
def superuser(tmp_path_factory: pytest.TempPathFactory):
    server = EmbeddedPostgres(tmp_path_factory.mktemp("roles") / "postgres", settings={"fsync": "off"})
    yield server.start()
    server.stop()


def test_roles_are_prepared_at_once_and_again(superuser: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: create_role_and_schema(superuser, "raced", NAMES), range(4)))
    assert all(result == results[0] for result in results)
    assert list(results[0]) == NAMES


def test_a_role_makes_tables_in_its_own_schema(superuser: str) -> None:
    dsns = create_role_and_schema(superuser, "managed_agents", NAMES)
    with psycopg.connect(dsns["sessions"]) as connection:
        connection.execute("create table own (a int)")
        found = connection.execute("select schemaname from pg_tables where tablename = 'own'").fetchone()
    assert found == ("sessions",)


@pytest.mark.parametrize(
    "statement",
    ["select * from vault.secret", "create table vault.planted (a int)", "create table public.planted (a int)"],
)
def test_a_role_reaches_no_other_schema(superuser: str, statement: str) -> None:
    dsns = create_role_and_schema(superuser, "apart", NAMES)
    with psycopg.connect(dsns["vault"]) as connection:
        connection.execute("create table if not exists secret (a int)")
    with psycopg.connect(dsns["sessions"]) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(statement)


def test_an_administrator_without_superuser_rights_can_prepare_roles(superuser: str) -> None:
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute("create role steward login createrole createdb")
    dsns = create_role_and_schema(superuser.replace("//postgres@", "//steward@"), "stewarded", ["stewarded_one"])
    with psycopg.connect(dsns["stewarded_one"]) as connection:
        connection.execute("create table own (a int)")
