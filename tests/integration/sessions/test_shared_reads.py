"""Reads that come together share statements; none takes an answer from before it was asked."""

import asyncio

import pytest
import pytest_asyncio

from kit.errors import Unavailable
from kit.postgres import Database
from kit.testing import await_until
from services.sessions.store.shared_reads import SharedReads

pytestmark = pytest.mark.asyncio(loop_scope="package")


class Shelf:
    """Loads from a real table, and counts its statements. While `gate` is closed they hang after they were made."""

    def __init__(self, database):
        self.reads = SharedReads(database, self._load)
        self.asked = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False

    async def _load(self, tx, ids):
        self.asked.append((tx.workspace_id, ids))
        if self.fails:
            raise Unavailable("gone")
        found = await tx.all(
            "SELECT id, text FROM notes WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s)", {"ids": ids}
        )
        await self.gate.wait()
        return dict(found)


@pytest_asyncio.fixture(loop_scope="package")
async def database(make_database, tmp_path):
    (tmp_path / "0001_initial.sql").write_text(
        "CREATE TABLE notes (workspace_id text, id text, text text, PRIMARY KEY (workspace_id, id));"
        "INSERT INTO notes SELECT 'wrkspc_a', 'n' || n, 'text ' || n FROM generate_series(1, 9) n;"
        "INSERT INTO notes VALUES ('wrkspc_b', 'n1', 'another');"
    )
    database = Database(await make_database("shelf", tmp_path), "shelf", max_connections=4)
    await database.open()
    yield database
    await database.close()


async def test_reads_of_one_moment_take_two_statements(database):
    shelf = Shelf(database)
    found = await asyncio.gather(*(shelf.reads.get("wrkspc_a", f"n{number}") for number in (1, 2, 3, 2, 77)))
    assert found == ["text 1", "text 2", "text 3", "text 2", None]
    assert [ids for _, ids in shelf.asked] == [["n1"], ["n2", "n3", "n77"]]


async def test_workspaces_do_not_mix(database):
    shelf = Shelf(database)
    pairs = [("wrkspc_a", "n1"), ("wrkspc_b", "n1"), ("wrkspc_b", "n2"), ("wrkspc_a", "n2")]
    found = await asyncio.gather(*(shelf.reads.get(*pair) for pair in pairs))
    assert found == ["text 1", "another", None, "text 2"]


async def test_a_read_sees_what_was_committed_before_it_was_asked(database):
    shelf = Shelf(database)
    shelf.gate.clear()
    early = asyncio.create_task(shelf.reads.get("wrkspc_a", "n1"))
    await await_until(lambda: shelf.asked)
    async with database.transaction("wrkspc_a") as tx:
        await tx.execute("UPDATE notes SET text = 'changed' WHERE workspace_id = %(workspace_id)s")
    late = asyncio.create_task(shelf.reads.get("wrkspc_a", "n1"))
    await asyncio.sleep(0)
    shelf.gate.set()
    assert await late == "changed"
    await early


async def test_a_failure_reaches_all_who_wait_and_nobody_after(database):
    shelf = Shelf(database)
    shelf.fails = True
    outcomes = await asyncio.gather(*(shelf.reads.get("wrkspc_a", "n1") for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
    shelf.fails = False
    assert await shelf.reads.get("wrkspc_a", "n1") == "text 1"


async def test_a_caller_who_leaves_holds_up_nobody(database):
    shelf = Shelf(database)
    shelf.gate.clear()
    first, second, third = (asyncio.create_task(shelf.reads.get("wrkspc_a", f"n{number}")) for number in (1, 2, 3))
    await await_until(lambda: shelf.asked)
    first.cancel()
    second.cancel()
    shelf.gate.set()
    assert await third == "text 3"
    assert await shelf.reads.get("wrkspc_a", "n1") == "text 1"
