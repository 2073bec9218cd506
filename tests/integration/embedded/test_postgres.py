"""Proves that the embedded PostgreSQL is shared, and survives every way of dying that a laptop knows."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from kit.embedded import processes
from kit.embedded.errors import EmbeddedServerError
from kit.embedded.postgres import EmbeddedPostgres
from tests.integration.embedded.workers import finish, reported_pid, use_postgres

FAST = {"fsync": "off"}


@pytest.fixture
def server(tmp_path: Path):
    server = EmbeddedPostgres(tmp_path / "postgres", settings=FAST)
    yield server
    server.stop()


def _gone(pid: int) -> bool:
    return not processes.runs(pid, program="postgres")


def _rows(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select a from kept order by a")]


def _keep_a_row(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create table kept (a int)")
        connection.execute("insert into kept values (7)")


def test_a_row_survives_stop_and_start(server: EmbeddedPostgres) -> None:
    _keep_a_row(server.start())
    pid = server.pid()
    server.stop()
    assert pid is not None and _gone(pid)
    assert _rows(server.start()) == [7]


def test_it_listens_on_a_private_socket_only(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.start()) as connection:
        assert connection.execute("show listen_addresses").fetchone() == ("",)
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
    assert server.socket_dir.stat().st_mode & 0o077 == 0
    assert server.data_dir.stat().st_mode & 0o077 == 0


def test_durability_is_on_unless_a_test_turns_it_off(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "postgres")
    try:
        with psycopg.connect(server.start()) as connection:
            assert connection.execute("show fsync").fetchone() == ("on",)
    finally:
        server.stop()


def test_six_processes_racing_on_an_empty_folder_share_one_server(tmp_path: Path) -> None:
    users = [use_postgres(tmp_path / "postgres") for _ in range(6)]
    pids = {reported_pid(user) for user in users}
    assert len(pids) == 1
    for user in users[:-1]:
        finish(user)
    assert not _gone(next(iter(pids)))
    finish(users[-1])
    assert _gone(next(iter(pids)))


def test_a_killed_owner_leaves_the_server_to_the_next_who_stops_it(server: EmbeddedPostgres) -> None:
    owner = use_postgres(server.data_dir)
    pid = reported_pid(owner)
    owner.kill()
    owner.communicate()
    assert not _gone(pid)
    server.start()
    assert server.pid() == pid
    server.stop()
    assert _gone(pid)


def test_ctrl_c_at_the_terminal_does_not_reach_the_server(server: EmbeddedPostgres) -> None:
    server.start()
    pid = server.pid()
    assert pid is not None
    assert os.getsid(pid) == pid != os.getsid(0)


def test_a_killed_postmaster_is_started_again_with_its_rows(server: EmbeddedPostgres) -> None:
    _keep_a_row(server.start())
    before = server.pid()
    server.kill()
    assert server.pid() is None
    assert _rows(server.start()) == [7]
    assert server.pid() != before


def test_a_zombie_is_not_taken_for_a_server(server: EmbeddedPostgres) -> None:
    server.start()
    pid = server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert processes.wait_until(lambda: server.pid() is None, 10)
    with psycopg.connect(server.start()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize("owner", ["nobody", "another program"])
def test_a_stale_pid_file_is_cleared(server: EmbeddedPostgres, owner: str) -> None:
    _keep_a_row(server.start())
    remains = (server.data_dir / "cluster" / "postmaster.pid").read_text()
    socket_lock = (server.socket_dir / ".s.PGSQL.5432.lock").read_text()
    pid = str(server.pid())
    server.stop()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        other_pid = str(other.pid) if owner == "another program" else str(2**22 - 3)
        (server.data_dir / "cluster" / "postmaster.pid").write_text(remains.replace(pid, other_pid, 1))
        (server.socket_dir / ".s.PGSQL.5432.lock").write_text(socket_lock.replace(pid, other_pid, 1))
        assert _rows(server.start()) == [7]
        assert other.poll() is None
        other.communicate(b"\n")


def test_a_server_whose_folder_was_deleted_does_not_disturb_the_next_one(server: EmbeddedPostgres) -> None:
    owner = use_postgres(server.data_dir)
    old = reported_pid(owner)
    owner.kill()
    owner.communicate()
    shutil.rmtree(server.data_dir)
    with psycopg.connect(server.start()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    assert processes.ended(old)


def test_an_owner_killed_in_the_middle_of_initdb_does_not_disturb_the_next_one(server: EmbeddedPostgres) -> None:
    for file in ("PG_VERSION", "global/pg_control", "base/1/PG_VERSION"):
        owner = use_postgres(server.data_dir)
        assert processes.wait_until((server.data_dir / "cluster" / file).exists, 30)
        owner.kill()
        owner.communicate()
    _keep_a_row(server.start())
    server.stop()
    assert _rows(server.start()) == [7]
    assert not processes.started_with(str(server.data_dir / "cluster"), program="initdb")


def test_a_cut_off_initdb_is_made_anew(server: EmbeddedPostgres) -> None:
    server.start()
    server.stop()
    (server.data_dir / "init.ok").unlink()
    (server.data_dir / "cluster" / "global" / "pg_control").unlink()
    with psycopg.connect(server.start()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_path_too_long_for_a_socket_is_no_obstacle(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / ("long" * 30) / "postgres", settings=FAST)
    try:
        with psycopg.connect(server.start()) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        assert server.socket_dir.stat().st_mode & 0o077 == 0
    finally:
        server.stop()
    assert not server.socket_dir.exists()


def test_a_folder_of_another_version_is_refused_in_words(server: EmbeddedPostgres) -> None:
    server.start()
    server.stop()
    (server.data_dir / "cluster" / "PG_VERSION").write_text("11\n")
    with pytest.raises(EmbeddedServerError, match="made by PostgreSQL 11"):
        server.start()


def test_a_server_that_refuses_to_start_says_why(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "postgres", settings={**FAST, "shared_buffers": "nonsense"})
    with pytest.raises(EmbeddedServerError, match="shared_buffers"):
        server.start()


def test_programs_are_searched_where_the_environment_says_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kit.embedded import binaries

    for name in ("postgres", "initdb"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PG_BIN", str(tmp_path))
    assert binaries.postgres_folder() == tmp_path
