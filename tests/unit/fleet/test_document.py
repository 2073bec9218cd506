"""The page for operators and the examples beside it are about the command as it is."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

from cli.worker import app
from services.worker.fleet.options import KEY_VARIABLE
from services.worker.fleet.proxies import proxy_for

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


UNIT, CONTAINERFILE = (file.read_text() for file in EXAMPLES)
# Each instruction on a line of its own, as its name and what follows.
INSTRUCTIONS = re.findall(r"^([A-Z]+) (.*)$", CONTAINERFILE.replace("\\\n", " "), re.MULTILINE)


def accepted(line: list[str], tmp_path: Path) -> None:
    """The command takes these options with these values; it is not run."""
    given = [str(tmp_path) if word.startswith("${") else word for word in line]
    typer.main.get_command(app).commands["poll"].make_context("poll", given)  # type: ignore[attr-defined]


def test_a_container_has_every_package_of_ours() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    ours = {name.partition("/")[0] for name in packages["packages"]}
    assert set(re.findall(r"^COPY (\w+) \1$", CONTAINERFILE, re.MULTILINE)) == ours


def test_whatever_a_container_copies_is_there() -> None:
    lines = [words.split() for name, words in INSTRUCTIONS if name == "COPY"]
    assert len(lines) >= 6
    stages = {words.split()[-1] for name, words in INSTRUCTIONS if name == "FROM" and " AS " in words}
    made = " ".join(words for name, words in INSTRUCTIONS if name == "RUN")
    for *sources, _target in lines:
        if sources[0].startswith("--from="):
            assert sources[0].removeprefix("--from=") in stages and all(f"venv {each} " in made for each in sources[1:])
        else:
            assert all((ROOT / each).exists() for each in sources), sources


def test_a_container_installs_what_the_programs_need_and_nothing_else() -> None:
    installs = [line.strip() for name, words in INSTRUCTIONS if name == "RUN" for line in words.split("&&")]
    installs = [line for line in installs if " install " in f"{line} " and "pip" in line]
    # Pinned with hashes by the lock without extras (tests/architecture/test_locks.py), and our own code.
    assert [line.partition("pip install --no-cache-dir ")[2] for line in installs] == [
        "--require-hashes -r requirements.lock",
        "--no-deps .",
    ]
    (copied,) = [words.split() for name, words in INSTRUCTIONS if name == "COPY" and "requirements.lock" in words]
    assert copied[0] == "deploy/worker/requirements.lock"


def test_a_container_starts_and_is_looked_after_as_the_program_allows(tmp_path: Path) -> None:
    (entry,) = [json.loads(words) for name, words in INSTRUCTIONS if name == "ENTRYPOINT"]
    program, *words = entry
    (folder,) = re.findall(r"^COPY --from=build (\S+) \1$", CONTAINERFILE, re.MULTILINE)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert Path(program).parent == Path(folder, "bin") and Path(program).name in scripts
    assert words[:2] == ["worker", "poll"]
    accepted(words[2:], tmp_path)
    # The check asks the port that is served.
    (check,) = [words for name, words in INSTRUCTIONS if name == "HEALTHCHECK"]
    assert f"127.0.0.1:{words[words.index('--metrics-port') + 1]}/healthz" in check


def test_the_service_starts_the_program_with_what_it_takes(tmp_path: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT.replace("\\\n", " "), re.MULTILINE)
    program, *words = shlex.split(line)
    assert Path(program).name == "managed-agents" and words[:2] == ["worker", "poll"]
    accepted(words[2:], tmp_path)


# Looked up in the manager's documentation, for machines without its check.
_KNOWN = {
    "Unit": "Description Wants After StartLimitIntervalSec StartLimitBurst",
    "Service": """
        EnvironmentFile LoadCredential ExecStart ExecStartPre StateDirectory StateDirectoryMode KillMode KillSignal
        TimeoutStopSec Restart RestartSec RestartPreventExitStatus DynamicUser UMask NoNewPrivileges
        CapabilityBoundingSet AmbientCapabilities ProtectSystem ProtectHome PrivateTmp PrivateDevices ProtectClock
        ProtectKernelModules LockPersonality RestrictRealtime RestrictSUIDSGID RemoveIPC RestrictAddressFamilies
        SystemCallArchitectures MemoryMax TasksMax CPUQuota Delegate
    """,
    "Install": "WantedBy",
}
KNOWN_DIRECTIVES = {f"{section}.{name}" for section, names in _KNOWN.items() for name in names.split()}


def test_every_directive_of_the_service_is_one_of_the_manager(tmp_path: Path) -> None:
    unit = tmp_path / EXAMPLES[0].name
    # The manager's own check wants the programs to be there.
    unit.write_text(UNIT.replace("/opt/managed-agents/bin/managed-agents", sys.executable))
    if (checker := shutil.which("systemd-analyze")) is not None:
        line = [checker, "--man=no", "--recursive-errors=no", "verify", str(unit)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    section, told = "", set()
    for line in re.sub(r"\\\n\s*", " ", UNIT).splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            told.add(f"{section}.{line.partition('=')[0]}")
    assert told == KNOWN_DIRECTIVES


def test_the_services_environment_names_what_the_program_reads() -> None:
    text = (ROOT / "deploy" / "worker" / "worker.env").read_text()
    given = dict(re.findall(r"^(?:# )?([A-Z][A-Z_]+)=(.*)$", text, re.MULTILINE))
    assert len(given) == len(re.findall(r"^(?:# )?\S+=", text, re.MULTILINE)) >= 5
    proxies = {name: value for name, value in given.items() if name.endswith("_PROXY")}
    assert set(given) - set(proxies) <= variables()
    # No secret among them: the key is a credential of the service.
    assert KEY_VARIABLE not in given
    assert proxy_for("https://agents.example", proxies) == proxies["HTTPS_PROXY"]
    assert proxy_for("https://a.internal.example", proxies) is None


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
