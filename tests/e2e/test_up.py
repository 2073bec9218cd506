"""Proves the promise of one command: `up` and `demo` over the real services, for every user, after every crash."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from kit.embedded.nats import EmbeddedNats
from kit.embedded.postgres import EmbeddedPostgres
from kit.testing import await_until, free_port
from tests.e2e.leftovers import processes_of
from tests.integration.embedded.workers import ROOT, folder_for_everyone, ordinary_user
from tests.support.platform import SECRETS_OF_THE_HOST, running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
COMMAND = [sys.executable, "-c", "from cli.main import main; main()"]


@contextmanager
def _running(data_dir: Path, *arguments: str, command: list[str] = COMMAND) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A command of ours with its output in a file; ended whatever happens."""
    output = data_dir.parent / "output"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(SECRETS_OF_THE_HOST)}
    with output.open("ab") as file:
        process = subprocess.Popen(
            [*command, *arguments, "--data-dir", str(data_dir)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=clean,
            cwd=ROOT,
        )
    try:
        yield process, output
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


def _get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return orjson.loads(answer.read())


def test_the_demo_does_its_task_keeps_serving_and_leaves_nothing(tmp_path: Path) -> None:
    port = str(free_port())
    for run in (1, 2):
        with _running(tmp_path / "data", "demo", "--serve", "--port", port) as (process, output):
            served = f"Serving: API http://127.0.0.1:{port}/v1"
            await_until(lambda: output.read_text().count(served) == run or process.poll() is not None, timeout=90)  # noqa: B023
            assert process.poll() is None, output.read_text()
            said = output.read_text()
            assert "did not succeed" not in said
            assert all(word in said for word in ("tool    write", "tool    bash", "session idle: done", "Model: demo"))
            assert _get(f"http://127.0.0.1:{port}/v1/x/runtime")["status"] == "running"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        await_until(lambda: processes_of(tmp_path / "data") == [], timeout=30)
    agents = output.read_text().split("Agent agent_")
    assert agents[1].split(",")[0] == agents[2].split(",")[0]


def test_the_demo_uses_a_platform_that_runs_and_doctor_sees_it(tmp_path: Path) -> None:
    with running_platform(tmp_path / "data") as platform:
        where = ["--port", str(platform.port), "--data-dir", str(platform.data_dir)]
        demo = subprocess.run([*COMMAND, "demo", "--json", *where], capture_output=True, cwd=ROOT, timeout=90)
        assert demo.returncode == 0, demo.stderr
        events = [orjson.loads(line) for line in demo.stdout.splitlines()]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert events[-1]["type"] == "session.status_idle"
        doctor = subprocess.run([*COMMAND, "doctor", "--json", *where], capture_output=True, cwd=ROOT, timeout=60)
        found = orjson.loads(doctor.stdout)
        assert doctor.returncode == 0 and found["usable"], found
        told = {one["name"]: one for one in found["findings"]}
        assert "served by a managed-agents platform (running)" in told["port"]["told"]
        assert "is running" in told["database"]["told"] and "is running" in told["nats"]["told"]
        assert "told by the running platform" in told["sandbox"]["told"]
        assert platform.process.poll() is None


def test_the_demo_is_left_out_where_a_key_is_needed(tmp_path: Path) -> None:
    port = str(free_port())
    with running_platform(tmp_path / "data") as platform:
        made = [*COMMAND, "keys", "create", "--name", "first", "--data-dir", str(platform.data_dir)]
        subprocess.run(made, check=True, capture_output=True, cwd=ROOT, timeout=60)
    with _running(tmp_path / "data", "demo", "--serve", "--port", port) as (process, output):
        await_until(lambda: "Serving: API" in output.read_text() or process.poll() is not None, timeout=90)
        assert process.poll() is None and "The demo is left out" in output.read_text(), output.read_text()


def test_a_killed_supervisor_leaves_no_service_and_the_next_run_finds_everything(tmp_path: Path) -> None:
    port = str(free_port())
    with _running(tmp_path / "data", "demo", "--serve", "--port", port) as (process, output):
        await_until(lambda: "Serving: API" in output.read_text() or process.poll() is not None, timeout=90)
        before = _get(f"http://127.0.0.1:{port}/v1/sessions")["data"]
        process.kill()
        process.wait()
    with _running(tmp_path / "data", "up", "--port", port) as (process, output):
        await_until(lambda: "managed-agents is up at" in output.read_text() or process.poll() is not None, timeout=90)
        assert process.poll() is None, output.read_text()
        assert [one["id"] for one in _get(f"http://127.0.0.1:{port}/v1/sessions")["data"]] == [before[0]["id"]]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    await_until(lambda: processes_of(tmp_path / "data") == [], timeout=30)


def test_services_database_and_messages_are_killed_one_by_one_and_the_demo_still_runs(tmp_path: Path) -> None:
    with running_platform(tmp_path / "data") as platform:
        logs = platform.data_dir / "logs"
        for name in ("vault", "sessions", "runner", "queue", "scheduler", "gateway"):
            pid = next(
                int(entry.name)
                for entry in Path("/proc").iterdir()
                if entry.name.isdigit() and _runs_service(entry, name, platform.data_dir)
            )
            os.kill(pid, signal.SIGKILL)
            await_until(lambda: f"{name} is back." in platform.output(), timeout=60)  # noqa: B023
        assert "sessions ended with SIGKILL" in platform.output()
        servers = [EmbeddedPostgres(platform.data_dir / "postgres"), EmbeddedNats(platform.data_dir / "nats")]
        for server in servers:
            before = server.pid()
            server.kill()
            await_until(lambda: server.pid() not in (None, before), timeout=30)  # noqa: B023
        await_until(platform.is_ready, timeout=30)
        where = ["--port", str(platform.port), "--data-dir", str(platform.data_dir)]
        demo = subprocess.run([*COMMAND, "demo", *where], capture_output=True, text=True, cwd=ROOT, timeout=90)
        assert demo.returncode == 0, (demo.stdout, demo.stderr, sorted(logs.iterdir()))
        assert platform.stop() == 0
    await_until(lambda: processes_of(platform.data_dir) == [], timeout=30)


def _runs_service(entry: Path, name: str, data_dir: Path) -> bool:
    try:
        command = (entry / "cmdline").read_bytes().split(b"\0")
        environment = (entry / "environ").read_bytes()
    except OSError:
        return False
    module = f"services.worker.{name}" if name in ("runner", "queue") else f"services.{name}"
    return module.encode() in command and os.fsencode(data_dir) in environment


def test_a_wrong_secret_key_is_told(tmp_path: Path) -> None:
    with running_platform(tmp_path / "data") as platform:
        assert platform.stop() == 0
    (platform.data_dir / "secret.key").write_text("another secret of enough length for a key\n")
    with _running(platform.data_dir, "up", "--port", str(free_port())) as (process, output):
        assert process.wait(60) == 1
        assert "vault ended with code" in output.read_text() and "key" in output.read_text()
    await_until(lambda: processes_of(platform.data_dir) == [], timeout=30)


def test_an_ordinary_user_runs_the_demo() -> None:
    python = ordinary_user()
    if python is None:
        pytest.skip("needs root, setpriv and a Python that every account may run")
    command = [*python, "-c", "from cli.main import main; main()"]
    with folder_for_everyone() as folder:
        with _running(folder / "data", "demo", "--port", str(free_port()), command=command) as (process, output):
            assert process.wait(120) == 0, output.read_text()
            assert "session idle: done" in output.read_text()
        await_until(lambda: processes_of(folder / "data") == [], timeout=30)
        assert (folder / "data").stat().st_uid != 0
