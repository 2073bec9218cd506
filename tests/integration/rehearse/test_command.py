"""Proves the command from outside: example agents as processes, exit codes, files, and unusable input."""

import json
import signal
import socket
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import IO

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cli.commands import app
from tests.integration.rehearse.agents import EXAMPLES, ROOT, example_agent
from tests.unit.rehearse.domains import FILES, changed, write

DOMAINS = ["hotel-desk", "parts-warehouse"]
RUN = CliRunner()


def _rehearse(*arguments: str | Path) -> Result:
    return RUN.invoke(app, ["rehearse", *map(str, arguments)])


def _program(*arguments: str | Path, stdout: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
    """The same as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "from cli.main import main; main()", "rehearse", *map(str, arguments)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_ctrl_c,
    )


def _hear_ctrl_c() -> None:
    """A shell starts what it runs in the background deaf to it, and every child inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _as_program(*arguments: str | Path) -> tuple[int, str, str]:
    """Its exit code, output and messages."""
    with _program(*arguments) as done:
        output, messages = done.communicate(timeout=60)
    return done.returncode, output, messages


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_reference_agent_of_an_example_passes_every_task(domain: str, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    with example_agent(domain, "agent") as url:
        asked = (EXAMPLES / domain, "--agent", url, "--trials", "5", "--junit", junit)
        code, output, messages = _as_program(*asked)
    assert code == 0, output + messages
    tasks = len(list((EXAMPLES / domain / "tasks").iterdir()))
    assert output.endswith(f"{5 * tasks} of {5 * tasks} trials passed.\n") and messages == ""
    assert ET.parse(junit).getroot().get("failures") == "0"


@pytest.mark.parametrize(
    ("domain", "invariants", "passed"),
    [
        ("hotel-desk", {"papers-first", "fair-rate", "one-night-back", "look-before-refund"}, 0),
        (
            "parts-warehouse",
            {"own-orders-only", "licence-for-hazardous", "within-credit", "restock-when-low"},
            1,
        ),
    ],
)
def test_the_wrong_agent_of_an_example_fails_in_a_telling_way(
    domain: str, invariants: set[str], passed: int, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    with example_agent(domain, "wrong_agent") as url:
        done = _rehearse(EXAMPLES / domain, "--agent", url, "--json", file)
    assert done.exit_code == 1
    report = json.loads(file.read_text())
    failures = [each for task in report["tasks"] for trial in task["trials"] for each in trial["failures"]]
    assert {each["name"] for each in failures if each["kind"] == "invariant"} == invariants
    assert any(each["kind"] == "end_state" and each["details"] for each in failures)
    assert report["passed"] == passed
    # Everything that is in the report of programs is in that of people.
    for each in failures:
        assert each["told"] in done.stdout and all(detail in done.stdout for detail in each["details"])


def test_a_reader_that_has_seen_enough_loses_neither_file_nor_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with (
        example_agent("hotel-desk", "agent") as url,
        _program(EXAMPLES / "hotel-desk", "--agent", url, "--json", file) as done,
    ):
        assert done.stdout is not None and done.stderr is not None
        done.stdout.close()
        assert done.stderr.read() == "" and done.wait(60) == 0
    assert json.loads(file.read_text())["failed"] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs an output without room")
def test_output_without_room_loses_neither_file_nor_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with (
        open("/dev/full", "w") as full,
        example_agent("hotel-desk", "agent") as url,
        _program(EXAMPLES / "hotel-desk", "--agent", url, "--json", file, stdout=full) as done,
    ):
        assert done.stderr is not None
        assert done.stderr.read() == "managed-agents: the report can't be shown: No space left on device.\n"
        assert done.wait(60) == 0
    assert json.loads(file.read_text())["failed"] == 0


def test_ctrl_c_ends_a_run_that_waits(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/step"
        with _program(EXAMPLES / "hotel-desk", "--agent", url) as done:
            # The first step has come, so the run is under way.
            silent.settimeout(60)
            connection, _ = silent.accept()
            done.send_signal(signal.SIGINT)
            assert done.wait(60) == 130
            assert done.stderr is not None and "stopped; nothing was reported" in done.stderr.read()
            connection.close()


def test_a_share_may_be_enough(tmp_path: Path) -> None:
    with example_agent("parts-warehouse", "wrong_agent") as url:
        asked = (EXAMPLES / "parts-warehouse", "--agent", url, "--quiet")
        assert _rehearse(*asked, "--fail-under", "15").exit_code == 0
        done = _rehearse(*asked, "--fail-under", "20")
        chosen = _rehearse(*asked, "--task", "successor", "--trials", "2")
    assert (done.exit_code, done.stdout) == (1, "1 of 6 trials passed, not enough for --fail-under 20.\n")
    assert (chosen.exit_code, chosen.stdout) == (0, "2 of 2 trials passed.\n")


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_sound_domain_is_said_to_be(domain: str) -> None:
    done = _rehearse(EXAMPLES / domain, "--check")
    assert done.exit_code == 0 and f"{domain} is sound." in done.stdout


def test_an_unsound_domain_is_told_line_by_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "lockers", changed("    on: [take_locker]", "    on: [take]"))
    code, output, messages = _as_program(folder, "--check")
    assert code == 2 and output == ""
    assert 'domain.yaml:61: unknown tool "take"' in messages and "Traceback" not in messages


def test_a_new_domain_can_be_checked(tmp_path: Path) -> None:
    assert _rehearse(tmp_path / "new", "--new").exit_code == 0
    assert _rehearse(tmp_path / "new", "--check").exit_code == 0
    assert _rehearse(tmp_path / "new", "--new").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Name the agent with --agent"),
        (("--agent", "localhost:8787/step"), "is neither the id of an agent (agent_…) nor a URL"),
        (("--agent", "http://"), "is no URL such as"),
        (("--agent", "http://a:99999/step"), "is no URL such as"),
        (("--agent", "http://a b/step"), "is no URL such as"),
        (("--agent", "http://me:secret@a/step"), "has a password in its URL"),
        (("--agent", "http://a/step", "--task", "taek"), 'unknown task "taek", did you mean "take"?'),
        (("--agent", "http://a/step", "--header", "authorization=abc"), "looks like a secret"),
        (("--agent", "http://a/step", "--json", "/nowhere/report.json"), "can't be written"),
        (("--agent", "http://a/step", "--junit", "/"), "can't be written"),
        (("--agent", "http://a/step", "--json", "/dev/null"), "can't be written"),
        (("--agent", "http://a/step", "--json", "/proc/report.json"), "can't be written"),
        (("--agent", "http://a/step", "--json", "/tmp/one", "--junit", "/tmp/../tmp/one"), "both name /tmp/one"),
        (("--agent", "agent_1", "--header", "x-a=1"), "--header is for an agent by its URL"),
        (("--agent", "agent_1", "--base-url", "nowhere"), "--base-url nowhere is no URL"),
        (("--agent", "agent_1", "--base-url", "http://127.0.0.1:9"), "GET /v1/agents/agent_1"),
        (("--agent", "http://a/step", "--trials", "0"), "--trials"),
    ],
)
def test_unusable_input_is_told_and_nothing_is_played(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    done = _rehearse(write(tmp_path / "lockers", FILES), *arguments)
    assert done.exit_code == 2 and told in done.stderr.replace("\n", " "), done.stderr
    assert "Traceback" not in done.stderr
