"""The page for operators and the examples beside it are about the command as it is."""

import re
from pathlib import Path

import pytest
import typer.main

from cli.worker import app

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "workers.md").read_text()
EXAMPLES = [ROOT / "deploy" / "worker" / name for name in ("managed-agents-worker.service", "Containerfile")]


def options() -> set[str]:
    """Every long option of the command."""
    group = typer.main.get_command(app)
    command = group.commands["poll"]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


def variables() -> set[str]:
    """Every variable of the environment that stands for an option."""
    command = typer.main.get_command(app).commands["poll"]  # type: ignore[attr-defined]
    return {str(parameter.envvar) for parameter in command.params if parameter.envvar}


@pytest.mark.parametrize("option", sorted(options()))
def test_every_option_is_told(option: str) -> None:
    assert f"`{option}" in DOCUMENT or f"{option} " in DOCUMENT


@pytest.mark.parametrize("variable", sorted(variables()))
def test_every_variable_is_told(variable: str) -> None:
    assert variable in DOCUMENT


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_uses_options_that_there_are(file: Path) -> None:
    text = file.read_text()
    line = re.search(r"(?:ExecStart=.*?worker poll|ENTRYPOINT.*?\"poll\")(.*?)(?:\n\n|\Z)", text, re.DOTALL)
    assert line is not None
    used = set(re.findall(r"--[a-z][a-z-]+", line[1]))
    assert used and used <= options()
    # The key comes as a file, in no argument and no variable of the example.
    assert "--key-file" in used and "ENVIRONMENT_KEY=" not in text


def test_a_container_has_every_package_of_ours() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", EXAMPLES[1].read_text(), re.MULTILINE))
    assert copied == {"kit", "services", "cli", "gen"}


def test_the_service_gives_what_runs_the_time_to_end_and_tries_no_refusal_again() -> None:
    unit = EXAMPLES[0].read_text()
    for line in ("KillMode=mixed", "TimeoutStopSec=10min", "RestartPreventExitStatus=2 3", "NoNewPrivileges=yes"):
        assert line in unit.splitlines()
    # These would keep bubblewrap from making its own /proc and host name.
    set_here = {line.partition("=")[0] for line in unit.splitlines() if not line.startswith("#")}
    assert not {"RestrictNamespaces", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectHostname"} & set_here


def test_the_exit_codes_are_those_of_the_program() -> None:
    from services.worker.fleet import app as program

    assert (program.STOPPED, program.UNREACHABLE, program.UNUSABLE, program.REFUSED) == (0, 1, 2, 3)
    assert (
        "0 stopped, 1 not reachable (only with `--once`), 2 an option is unusable, 3 the platform refuses" in DOCUMENT
    )
