"""The transaction commits or leaves nothing, knows its tenant, and survives a lost server."""

import asyncio
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from kit.config import SecretStr
from kit.embedded.postgres import EmbeddedPostgres
from kit.errors import Internal, Unavailable, WriteConflict
from kit.postgres import Database
from kit.redaction import mask_text
from kit.testing import await_until
from tests.support.rows import cut_connections


@dataclass(frozen=True)
class Note:
    id: int
    workspace_id: str
    text: str


@pytest.fixture
async def database(make_database, tmp_path):
    (tmp_path / "0001_initial.sql").write_text(
        "CREATE TABLE notes (id int PRIMARY KEY, workspace_id text NOT NULL, text text NOT NULL);"
    )
    database = Database(await make_database("notes", tmp_path), "notes", acquire_seconds=3, max_connections=4)
    await database.open()
    yield database
    await database.close()


async def add(database: Database, number: int, workspace: str = "wrkspc_a", relaxed: bool = False) -> None:
    async with database.transaction(workspace, relaxed=relaxed) as tx:
        await tx.execute(
            "INSERT INTO notes (id, workspace_id, text) VALUES (%(id)s, %(workspace_id)s, 'x')", {"id": number}
        )


async def count(database: Database) -> int:
    async with database.platform_read() as tx:
        return (await tx.one("SELECT count(*) FROM notes"))[0]


async def test_the_workspace_is_bound_into_every_statement(database):
    await add(database, 1, "wrkspc_a")
    await add(database, 2, "wrkspc_b")
    async with database.read("wrkspc_b") as tx:
        rows = await tx.all(
            "SELECT id, workspace_id, text FROM notes WHERE workspace_id = %(workspace_id)s ORDER BY id LIMIT 10",
            # A caller can't name another one.
            {"workspace_id": "wrkspc_a"},
            row=Note,
        )
        assert tx.workspace_id == "wrkspc_b"
    assert rows == [Note(2, "wrkspc_b", "x")]


async def test_platform_work_has_no_workspace_until_it_takes_one(database):
    async with database.platform_transaction() as tx:
        with pytest.raises(Internal):
            _ = tx.workspace_id
        scoped = tx.for_workspace("wrkspc_c")
        await scoped.execute("INSERT INTO notes (id, workspace_id, text) VALUES (1, %(workspace_id)s, 'x')")
    async with database.read("wrkspc_c") as tx:
        assert await tx.maybe_one("SELECT id FROM notes WHERE workspace_id = %(workspace_id)s") == (1,)
        assert await tx.maybe_one("SELECT id FROM notes WHERE id = %(id)s", {"id": 9}) is None
        with pytest.raises(Internal):
            await tx.one("SELECT id FROM notes WHERE id = %(id)s", {"id": 9})


@pytest.mark.parametrize("relaxed", [False, True])
async def test_an_exception_leaves_nothing(database, relaxed):
    with pytest.raises(LookupError):
        async with database.transaction("wrkspc_a", relaxed=relaxed) as tx:
            await tx.execute("INSERT INTO notes (id, workspace_id, text) VALUES (1, %(workspace_id)s, 'x')")
            raise LookupError
    assert await count(database) == 0
    await add(database, 1, relaxed=relaxed)
    assert await count(database) == 1


async def test_a_swallowed_statement_error_is_no_commit(database):
    await add(database, 1)
    with pytest.raises(Internal):
        async with database.transaction("wrkspc_a") as tx:
            with pytest.raises(psycopg.errors.UniqueViolation):
                await tx.execute("INSERT INTO notes (id, workspace_id, text) VALUES (1, 'wrkspc_a', 'x')")
    assert await count(database) == 1


async def test_relaxed_ends_with_its_transaction(database):
    async with database.transaction("wrkspc_a", relaxed=True) as tx:
        assert await tx.one("SHOW synchronous_commit") == ("off",)
    async with database.transaction("wrkspc_a") as tx:
        assert await tx.one("SHOW synchronous_commit") == ("on",)


async def test_constraint_errors_reach_the_store_unchanged(database):
    await add(database, 1)
    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        await add(database, 1)
    assert caught.value.diag.constraint_name == "notes_pkey"


async def test_a_deadlock_is_a_write_conflict_for_one_of_two(database):
    await add(database, 1)
    await add(database, 2)
    both = asyncio.Barrier(2)

    async def update(first: int, second: int) -> None:
        async with database.transaction("wrkspc_a") as tx:
            await tx.execute("UPDATE notes SET text = 'y' WHERE id = %(id)s", {"id": first})
            await both.wait()
            await tx.execute("UPDATE notes SET text = 'y' WHERE id = %(id)s", {"id": second})

    outcomes = await asyncio.gather(update(1, 2), update(2, 1), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "WriteConflict"]
    assert [outcome.reason for outcome in outcomes if isinstance(outcome, WriteConflict)] == ["WRITE_CONFLICT"]


async def test_no_free_connection_in_time_is_unavailable(make_database):
    database = Database(await make_database("notes"), "notes", max_connections=1, acquire_seconds=0.05)
    await database.open()
    async with database.platform_read():
        with pytest.raises(Unavailable) as caught:
            async with database.platform_read():
                pass
    assert caught.value.retry_after_seconds == 1.0
    async with database.platform_read() as tx:
        assert await tx.one("SELECT 1") == (1,)
    await database.close()


async def test_a_connection_that_broke_while_idle_is_replaced(database, postgres):
    await asyncio.gather(*(add(database, number) for number in range(4)))
    await cut_connections(postgres, database)
    assert await count(database) == 4


async def test_a_connection_lost_in_use_is_unavailable_and_the_next_works(database, postgres):
    with pytest.raises(Unavailable):
        async with database.transaction("wrkspc_a") as tx:
            (pid,) = await tx.one("SELECT pg_backend_pid()")
            await tx.execute("INSERT INTO notes (id, workspace_id, text) VALUES (1, %(workspace_id)s, 'x')")
            async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as admin:
                await admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert await count(database) == 0


async def test_a_restart_of_the_server_costs_a_wait_and_no_error(tmp_path):
    server = EmbeddedPostgres(tmp_path / "own-postgres", settings={"fsync": "off"})
    database = Database(await asyncio.to_thread(server.start), "public", acquire_seconds=10)
    try:
        await database.open()
        async with database.platform_transaction() as tx:
            await tx.execute("CREATE TABLE notes (id int)")
        await asyncio.to_thread(server.stop)
        reading = [asyncio.create_task(count(database)) for _ in range(3)]
        await asyncio.to_thread(server.start)
        assert await asyncio.gather(*reading) == [0, 0, 0]
        await database.close()
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_cancelled_block_gives_its_place_back_and_stores_nothing(database):
    async def hang() -> None:
        async with database.transaction("wrkspc_a") as tx:
            await tx.execute("INSERT INTO notes (id, workspace_id, text) VALUES (1, %(workspace_id)s, 'x')")
            await tx.execute("SELECT pg_sleep(60)")

    async def hangs() -> bool:
        async with database.platform_read() as tx:
            return await tx.maybe_one(
                "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep%%'"
            ) == (1,)

    for _ in range(6):
        task = asyncio.create_task(hang())
        await await_until(hangs)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await count(database) == 0


async def test_a_statement_of_a_dead_client_gives_its_locks_back(database):
    await add(database, 1)
    dead = await database.connect()
    await dead.execute("BEGIN")
    await dead.execute("UPDATE notes SET text = 'y' WHERE id = 1")
    dead.pgconn.send_query(b"SELECT pg_sleep(60)")
    dead.pgconn.flush()
    dead.pgconn.finish()
    # Waits for the row lock, and would give up after four seconds.
    async with database.transaction("wrkspc_a") as tx:
        await tx.execute("UPDATE notes SET text = 'z' WHERE id = 1")


async def test_limits_hold_on_every_connection(make_database):
    database = Database(await make_database("notes"), "notes", statement_seconds=0.05)
    await database.open()
    with pytest.raises(Unavailable):
        async with database.platform_read() as tx:
            await tx.execute("SELECT pg_sleep(5)")
    async with database.platform_read() as tx:
        assert await tx.one("SHOW lock_timeout") == ("4s",)
        assert await tx.one("SHOW idle_in_transaction_session_timeout") == ("15s",)
        assert await tx.one("SHOW search_path") == ("notes",)
    await database.close()


async def test_options_of_the_dsn_stay_and_its_password_is_in_no_log(make_database):
    dsn = make_conninfo(await make_database("notes"), options="-c work_mem=5MB", password="pass-of-the-dsn")
    database = Database(SecretStr(dsn), "notes")
    await database.open()
    async with database.platform_read() as tx:
        assert await tx.one("SHOW work_mem") == ("5MB",)
        assert await tx.one("SHOW lock_timeout") == ("4s",)
    await database.close()
    assert "pass-of-the-dsn" not in mask_text("connecting with pass-of-the-dsn")


async def test_a_server_that_is_not_there_is_unavailable_in_bounded_time(tmp_path):
    database = Database(f"postgresql://nobody@/none?host={tmp_path}", "none")
    with pytest.raises(Unavailable):
        await database.open(wait_seconds=0.1)
    await database.close()
