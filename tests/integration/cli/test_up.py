"""Proves the supervisor of `up` over stand-in services: order, crashes, refusals, and that nothing is left behind."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from kit.testing import await_until, free_port
from tests.integration.cli.fakes import Up, make_services, up

SERVICES = ["gateway", "scheduler", "runner", "queue", "sessions", "vault"]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-ins")
    make_services(folder)
    return folder


def _pids(platform: Up) -> list[int]:
    return [int(pid) for pid in (platform.data_dir / "services.pids").read_text().split()]


def test_it_says_one_line_and_stops_in_order_without_a_trace(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / "data", services) as platform:
        platform.wait_up()
        assert platform.stop() == 0
        assert platform.said().count("\n") == 1
        assert f"http://127.0.0.1:{platform.port}" in platform.said()
        assert [line for line in platform.story() if line.startswith("stop")] == [f"stop {name}" for name in SERVICES]
        assert platform.leftovers() == []


def test_it_goes_on_without_the_parser_of_its_command_line(tmp_path: Path, services: Path) -> None:
    """The same process with the same command line, but without the libraries that only read it."""
    with up(tmp_path / "data", services) as platform:
        platform.wait_up()
        command = Path(f"/proc/{platform.process.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        assert command == platform.process.args
        loaded = Path(f"/proc/{platform.process.pid}/maps").read_text()
        assert [name for name in ("pydantic", "_ssl.", "psycopg", "grpc") if name in loaded] == []
        assert [name for name in SERVICES if "HANDED_FD" in (platform.data_dir / f"{name}.env").read_text()] == []
        assert platform.stop() == 0


def test_each_process_knows_only_what_it_needs(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / "data", services) as platform:
        platform.wait_up()
        seen = {name: json.loads((platform.data_dir / f"{name}.env").read_text()) for name in SERVICES}
    assert seen["vault"]["ANTHROPIC_API_KEY"] == "sk-of-the-vault"
    for name in set(SERVICES) - {"vault"}:
        values = " ".join(seen[name].values())
        assert "sk-of-the-vault" not in values and "OWNERS_SECRET" not in seen[name]
        assert "MANAGED_AGENTS_SECRET_KEY_FILE" not in seen[name]
    assert "MANAGED_AGENTS_DATABASE_URL" not in seen["runner"] | seen["gateway"]
    roles = {seen[name]["MANAGED_AGENTS_DATABASE_URL"].split("@")[0] for name in ("sessions", "vault", "scheduler")}
    assert roles == {"postgresql://sessions", "postgresql://vault", "postgresql://scheduler"}
    assert seen["queue"]["MANAGED_AGENTS_DATABASE_URL"].startswith("postgresql://worker@")


def test_secrets_are_private_and_kept(tmp_path: Path, services: Path) -> None:
    kept = []
    for _ in range(2):
        with up(tmp_path / "data", services) as platform:
            platform.wait_up()
            platform.stop()
        for name in ("secret.key", "internal.token"):
            path = platform.data_dir / name
            assert path.stat().st_mode & 0o077 == 0
            kept.append(path.read_text())
    assert kept[:2] == kept[2:]
    assert (platform.data_dir.stat().st_mode & 0o077) == 0


def test_a_crashed_service_starts_again_and_it_is_said(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / "data", services, sessions="brittle") as platform:
        platform.wait_up()
        (platform.data_dir / "crash").touch()
        await_until(lambda: "sessions is back" in platform.said(), timeout=30)
        assert "sessions ended with code 3; it starts again in 0.1 s" in platform.said()
        assert platform.stop() == 0
        assert platform.leftovers() == []


def test_a_service_that_can_not_start_ends_up_with_its_reason(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / "data", services, vault="crash") as platform:
        assert platform.process.wait(30) == 1
        assert "vault ended with code 1 while starting" in platform.said()
        assert "the vault can not be opened: wrong secret key" in platform.said()
        assert platform.leftovers() == []


def test_ctrl_c_while_starting_ends_it(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / "data", services, queue="mute") as platform:
        await_until(lambda: (platform.data_dir / "queue.env").exists(), timeout=30)
        assert platform.stop() == 0
        assert "is up at" not in platform.said()
        assert platform.leftovers() == []


def test_a_second_ctrl_c_ends_a_deaf_service_at_once(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / "data", services, sessions="deaf") as platform:
        platform.wait_up()
        platform.process.send_signal(signal.SIGINT)
        await_until(lambda: "stop queue" in platform.story(), timeout=30)
        await_until(lambda: _signal_until_gone(platform), timeout=30)
        assert platform.leftovers() == []


def _signal_until_gone(platform: Up) -> bool:
    if platform.process.poll() is None:
        platform.process.send_signal(signal.SIGINT)
    return platform.process.poll() is not None


def test_what_a_service_leaves_in_its_group_is_ended(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / "data", services, runner="orphan") as platform:
        platform.wait_up()
        assert any("left behind" in line for line in platform.leftovers())
        platform.stop(signal.SIGTERM)
        await_until(lambda: platform.leftovers() == [], timeout=30)


def test_a_killed_supervisor_takes_its_services_with_it_and_the_next_one_works(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / "data", services) as first:
        first.wait_up()
        pids = _pids(first)
        first.process.kill()
        first.process.wait()
        with up(tmp_path / "data", services, port=first.port) as second:
            await_until(lambda: second.said().count("is up at") == 2, timeout=30)
            assert not set(pids) & set(_pids(second))
            assert second.stop() == 0
            assert second.leftovers() == []


def test_a_dead_database_and_message_server_come_back(tmp_path: Path, services: Path) -> None:
    from kit.embedded.nats import EmbeddedNats
    from kit.embedded.postgres import EmbeddedPostgres

    with up(tmp_path / "data", services) as platform:
        platform.wait_up()
        servers = [EmbeddedPostgres(platform.data_dir / "postgres"), EmbeddedNats(platform.data_dir / "nats")]
        before = [server.pid() for server in servers]
        for server in servers:
            server.kill()
        await_until(lambda: all(server.pid() not in (None, *before) for server in servers), timeout=30)
        assert "starting again" in platform.said()
        assert platform.stop() == 0
        assert [server.pid() for server in servers] == [None, None]


def test_a_busy_port_is_told(tmp_path: Path, services: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with up(tmp_path / "data", services, port=other.getsockname()[1]) as platform:
            assert platform.process.wait(30) == 1
            assert f"Port {platform.port} on 127.0.0.1 can't be used" in platform.said()
            assert platform.leftovers() == []


def test_a_port_with_another_platform_is_told(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / "one", services) as first:
        first.wait_up()
        with up(tmp_path / "two", services, port=first.port) as second:
            assert second.process.wait(30) == 1
            assert "another managed-agents platform answers there" in second.said()


def test_a_data_folder_in_use_is_told_with_its_holder(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / "data", services) as first:
        first.wait_up()
        with up(tmp_path / "data", services, port=free_port()) as second:
            assert second.process.wait(30) == 1
            assert f"in use by another `managed-agents up` (pid {first.process.pid})" in second.said()
        assert first.process.poll() is None


def test_a_folder_that_is_a_file_is_told(tmp_path: Path, services: Path) -> None:
    (tmp_path / "data").write_text("")
    with up(tmp_path / "data", services) as platform:
        assert platform.process.wait(30) == 1
        assert "The data directory" in platform.said() and "Traceback" not in platform.said()


def test_a_long_path_and_two_runners_work(tmp_path: Path, services: Path) -> None:
    with up(tmp_path / ("deep" * 30), services, "--runners", "2") as platform:
        platform.wait_up()
        run = Path(json.loads((platform.data_dir / "runner.env").read_text())["MANAGED_AGENTS_LISTEN"][5:]).parent
        assert run.stat().st_mode & 0o077 == 0
        assert platform.stop() == 0
        assert not run.exists()


def test_servers_of_the_operator_are_used_instead(tmp_path: Path, services: Path) -> None:
    from kit.embedded.nats import EmbeddedNats
    from kit.embedded.postgres import EmbeddedPostgres

    postgres, nats = EmbeddedPostgres(tmp_path / "postgres"), EmbeddedNats(tmp_path / "nats")
    try:
        superuser = postgres.start()
        with psycopg.connect(superuser, autocommit=True) as connection:
            connection.execute("create database theirs")
        dsn = superuser.replace("/postgres?", "/theirs?")
        urls = ["--database-url", dsn, "--nats-url", nats.start()]
        with up(tmp_path / "data", services, *urls) as platform:
            platform.wait_up()
            assert not (platform.data_dir / "postgres").exists() and not (platform.data_dir / "nats").exists()
            seen = json.loads((platform.data_dir / "sessions.env").read_text())["MANAGED_AGENTS_DATABASE_URL"]
            assert seen.startswith("postgresql://sessions:") and "/theirs?" in seen
            assert platform.stop() == 0
        assert postgres.pid() is not None and nats.pid() is not None
    finally:
        postgres.stop()
        nats.stop()


def test_an_unreachable_database_is_told(tmp_path: Path, services: Path) -> None:
    url = f"postgresql://agents@127.0.0.1:{free_port()}/agents"
    with up(tmp_path / "data", services, "--database-url", url) as platform:
        assert platform.process.wait(30) == 1
        assert "The database can't be used" in platform.said() and "refused" in platform.said()
        assert platform.leftovers() == []


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&-"])
def test_without_standard_input_or_output_it_works_all_the_same(tmp_path: Path, closed: str) -> None:
    (tmp_path / "file").touch()
    program = f'exec "$0" -c "from cli.main import main; main()" up --data-dir "$1" --port {free_port()} {closed}'
    ended = subprocess.run(
        ["sh", "-c", program, sys.executable, str(tmp_path / "file")], stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert "file" in ended.stderr and "Traceback" not in ended.stderr
    assert (tmp_path / "file").read_bytes() == b""
