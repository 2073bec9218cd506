"""Proves that the command explains itself, and ends with a reason and a code instead of a trace."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cli.commands import app
from cli.errors import CannotStart, CommandFailed
from cli.telling import told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], ["up", "demo", "doctor", "demo --serve"]),
        (["up", "--help"], ["--data-dir", "Examples", "MANAGED_AGENTS_PORT", "3000", "MANAGED_AGENTS_COST_PROFILE"]),
        (["demo", "--help"], ["--serve", "Examples", "--json"]),
        (["doctor", "-h"], ["--json", "Examples"]),
        (["keys", "-h"], ["create", "list", "revoke"]),
        (
            ["keys", "create", "-h"],
            ["--role", "--workspace", "--data-dir", "--url", "Examples", "turns authentication"],
        ),
        (["keys", "list", "-h"], ["--json", "Examples"]),
        (["keys", "revoke", "-h"], ["key_id", "Example", "within a second"]),
    ],
)
def test_help_teaches(arguments: list[str], expected: list[str]) -> None:
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert [word for word in expected if word not in shown.output] == []


def test_the_version_is_told() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0 and shown.output.startswith("managed-agents ")


@pytest.mark.parametrize("arguments", [["up", "--port", "0"], ["up", "--port", "x"], ["nonsense"], ["up", "extra"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize("reason", [CannotStart("the port is busy"), CommandFailed("refused")])
async def test_a_plain_reason_becomes_a_message_and_a_code(
    reason: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail() -> None:
        raise reason

    assert await told(fail()) == 1
    assert capsys.readouterr().err == f"managed-agents: {reason}\n"


def test_a_command_loads_only_what_it_needs() -> None:
    code = (
        "import sys, cli.commands, cli.serving; print([m for m in ('grpc', 'psycopg', 'httpx2') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
