"""Migrations run once however many processes start together, whole or not at all, and never from a changed file."""

import asyncio
import sys
from pathlib import Path

import psycopg
import pytest

from kit.migrate import MigrationError, migrate

CHILD = """
import asyncio, sys
from pathlib import Path
from kit.migrate import migrate
print(len(asyncio.run(migrate(sys.argv[1], "things", Path(sys.argv[2])))))
"""


@pytest.fixture
async def dsn(make_database) -> str:
    return await make_database("things")


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name.removeprefix('m')}.sql").write_text(text)


async def column(dsn: str, sql: str) -> list:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        return [row[0] for row in await (await connection.execute(sql)).fetchall()]


async def test_four_processes_that_start_together_apply_each_file_once(dsn, tmp_path):
    write(
        tmp_path,
        m0001_initial="CREATE TABLE things (id int); SELECT pg_sleep(0.3);",
        m0002_more="INSERT INTO things VALUES (1);",
        m0003_index="-- no-transaction\nCREATE INDEX CONCURRENTLY IF NOT EXISTS things_by_id ON things (id);",
    )
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, dsn, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        for _ in range(4)
    ]
    outputs = [await child.communicate() for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert sorted(int(output.split()[-1]) for output, _ in outputs) == [0, 0, 0, 3]
    assert await column(dsn, "SELECT id FROM things.things") == [1]
    assert await column(dsn, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'things.things_by_id'::regclass") == [
        True
    ]


async def test_a_file_is_applied_whole_or_not_at_all_and_can_be_mended(dsn, tmp_path):
    write(tmp_path, m0001_initial="CREATE TABLE things (id int);", m0002_bad="CREATE TABLE more (id int); SELECT 1/0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        await migrate(dsn, "things", tmp_path)
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'things' ORDER BY 1"
    assert await column(dsn, tables) == ["schema_migrations", "things"]
    write(tmp_path, m0002_bad="CREATE TABLE more (id int);")
    assert await migrate(dsn, "things", tmp_path) == ["0002_bad.sql"]
    assert await migrate(dsn, "things", tmp_path) == []
    assert await column(dsn, tables) == ["more", "schema_migrations", "things"]


async def test_a_file_that_was_applied_must_not_change(dsn, tmp_path):
    write(tmp_path, m0001_initial="CREATE TABLE things (id int);")
    await migrate(dsn, "things", tmp_path)
    write(tmp_path, m0001_initial="CREATE TABLE things (id bigint);")
    with pytest.raises(MigrationError, match=r"0001_initial\.sql"):
        await migrate(dsn, "things", tmp_path)


async def test_an_older_release_starts_beside_a_newer_one(dsn, tmp_path):
    write(tmp_path, m0001_initial="CREATE TABLE things (id int);", m0002_new="CREATE TABLE more (id int);")
    await migrate(dsn, "things", tmp_path)
    (tmp_path / "0002_new.sql").unlink()
    assert await migrate(dsn, "things", tmp_path) == []


@pytest.mark.parametrize("names", [[], ["0002_a.sql"], ["0001_a.sql", "0001_b.sql"], ["1_a.sql"], ["0001-a.sql"]])
async def test_a_folder_with_gaps_or_other_names_is_refused_before_anything_runs(dsn, tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(MigrationError):
        await migrate(dsn, "things", tmp_path)


async def test_a_lock_that_is_held_for_a_while_is_waited_for(dsn, tmp_path, monkeypatch):
    monkeypatch.setattr("kit.migrate._LOCK_SECONDS", 0.05)
    write(tmp_path, m0001_initial="CREATE TABLE things (id int);")
    await migrate(dsn, "things", tmp_path)
    write(tmp_path, m0002_change="ALTER TABLE things ADD COLUMN text text;")
    async with await psycopg.AsyncConnection.connect(dsn) as reader:
        await reader.execute("LOCK TABLE things.things")
        migrating = asyncio.create_task(migrate(dsn, "things", tmp_path))
        done, _ = await asyncio.wait({migrating}, timeout=0.3)
        assert not done
        await reader.rollback()
    assert await migrating == ["0002_change.sql"]
