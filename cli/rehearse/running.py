"""Runs what the command line asked for: finds agent, tasks and files first, then plays, then reports.

Whatever can't be used is told before the first step is posted.
"""

import contextlib
import datetime
import os
import secrets
import string
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cli import config
from cli.api import Api
from cli.errors import CommandFailed
from cli.rehearse.agents import Agent
from cli.rehearse.domain import Domain, Task
from cli.rehearse.faults import Unusable, unknown
from cli.rehearse.junit import junit
from cli.rehearse.loading import load
from cli.rehearse.playing import play_all
from cli.rehearse.report import Run, report
from cli.rehearse.report_text import print_report
from cli.rehearse.secrets_of_run import Secrets, read_headers

_ALPHABET = string.ascii_lowercase + string.digits
_AGENT_ID = "agent_"


@dataclass(frozen=True)
class Wanted:
    """The options of the command."""

    domain_dir: Path
    agent: str | None
    base_url: str = "http://127.0.0.1:3000"
    tasks: tuple[str, ...] = ()
    trials: int = 1
    concurrency: int = 4
    timeout_seconds: float = 120.0
    seed: int | None = None
    headers: tuple[str, ...] = ()
    json_file: Path | None = None
    junit_file: Path | None = None
    fail_under: float = 100.0
    quiet: bool = False


async def run(wanted: Wanted) -> bool:
    """Whether enough trials passed. Unusable when there is nothing that could be played."""
    domain = load(wanted.domain_dir)
    tasks = _chosen(domain, wanted.tasks)
    _check_files(wanted)
    hidden = Secrets()
    agent = await _agent(wanted, hidden)
    now = datetime.datetime.now(datetime.UTC)
    asked = Run(
        run_id=new_run_id(now),
        started_at=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        domain=domain.name,
        # What follows a question mark may be a secret of theirs.
        agent=(wanted.agent or "").partition("?")[0],
        trials=wanted.trials,
        seed=wanted.seed,
        fail_under=wanted.fail_under,
    )
    started = time.monotonic()
    async with agent:
        with _progress(len(tasks) * wanted.trials, quiet=wanted.quiet) as on_change:
            trials = await play_all(
                domain,
                agent,
                run_id=asked.run_id,
                tasks=tasks,
                trials=wanted.trials,
                concurrency=wanted.concurrency,
                seed=wanted.seed,
                on_change=on_change,
            )
    told = hidden.scrubbed(report(asked, trials, time.monotonic() - started))
    _print(told, quiet=wanted.quiet)
    if wanted.json_file:
        _write(wanted.json_file, orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n")
    if wanted.junit_file:
        _write(wanted.junit_file, junit(told))
    return told["sufficient"]


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        # Left to itself it would end the command, with an exit code that is none of the verdict's.
        raise BrokenPipeError


def _print(told: Mapping[str, Any], *, quiet: bool) -> None:
    """Whoever reads our output may have seen enough, or have no room; files and exit code are not theirs to lose."""
    try:
        print_report(_Terminal(highlight=False, soft_wrap=True), told, quiet=quiet)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"managed-agents: the report can't be shown: {error.strerror}.", file=sys.stderr)


def new_run_id(now: datetime.datetime) -> str:
    """When the run began, and letters that no other run has."""
    return f"{now:%Y%m%dT%H%M%S}-{''.join(secrets.choice(_ALPHABET) for _ in range(8))}"


def _chosen(domain: Domain, wanted: Sequence[str]) -> list[Task]:
    for task in wanted:
        if task not in domain.tasks:
            raise Unusable(f"{domain.name}: {unknown('task', task, domain.tasks)}")
    return [task for name, task in domain.tasks.items() if name in wanted or not wanted]


async def _agent(wanted: Wanted, hidden: Secrets) -> Agent:
    """Who answers: any agent by its URL, or one of the platform's by its id."""
    limits: dict[str, Any] = {"timeout_seconds": wanted.timeout_seconds, "connections": wanted.concurrency}
    if not wanted.agent:
        raise Unusable("Name the agent with --agent: an id (agent_…) or a URL. --check looks at the domain only.")
    if wanted.agent.startswith(("http://", "https://")):
        _check_url("--agent", wanted.agent)
        return Agent(wanted.agent, headers=read_headers(wanted.headers, os.environ, hidden), **limits)
    if not wanted.agent.startswith(_AGENT_ID) or not wanted.agent.removeprefix(_AGENT_ID).isalnum():
        raise Unusable(
            f"--agent {wanted.agent} is neither the id of an agent (agent_…) nor a URL with http:// or https://."
        )
    if wanted.headers:
        raise Unusable("--header is for an agent by its URL; the platform takes its key from MANAGED_AGENTS_API_KEY.")
    _check_url("--base-url", wanted.base_url)
    base, key = wanted.base_url.rstrip("/"), config.api_key()
    try:
        async with Api(base, key) as api:
            await api.get(f"/v1/agents/{wanted.agent}")
    except CommandFailed as reason:
        raise Unusable(str(reason)) from None
    hidden.add("MANAGED_AGENTS_API_KEY", key or "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return Agent(f"{base}/v1/agents/{wanted.agent}/step", headers=headers, names_steps=True, **limits)


def _check_url(option: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = bool(parts.hostname) and parts.scheme in ("http", "https") and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
        parts = urlsplit("")
    if not sound or any(each.isspace() for each in url):
        raise Unusable(f"{option} {url} is no URL such as http://localhost:8787/step.")
    if parts.username is not None or parts.password is not None:
        raise Unusable(f"{option} has a password in its URL, where others can see it; use --header with a variable.")


def _check_files(wanted: Wanted) -> None:
    """Files that can't be written are told before anything is played."""
    files = [file.resolve() for file in (wanted.json_file, wanted.junit_file) if file]
    for file in files:
        if (file.exists() and not file.is_file()) or not _takes_files(file.parent):
            raise Unusable(f"{file} can't be written: name a file in a folder that exists and may be written to.")
    if len(set(files)) < len(files):
        raise Unusable(f"--json and --junit both name {files[0]}.")


def _takes_files(folder: Path) -> bool:
    """Found out by trying: permissions say nothing about what is mounted read-only, or is no real folder."""
    try:
        tempfile.TemporaryDirectory(dir=folder, prefix=".rehearsal.").cleanup()
    except OSError:
        return False
    return True


def _write(file: Path, content: bytes) -> None:
    """All of it or nothing, whatever happens meanwhile. Where a link leads is written, the link stays."""
    file = file.resolve()
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as beside:
            new = Path(beside) / file.name
            new.write_bytes(content)
            new.replace(file)
    except OSError as error:
        raise Unusable(f"{file} can't be written: {error.strerror}.") from None


@contextlib.contextmanager
def _progress(trials: int, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A line that moves, for who watches a terminal; it is gone before the report comes."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal or not sys.stdout.isatty():
        yield lambda running, done: None
        return
    columns = (
        TextColumn("rehearsing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[running]} running"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=trials, running=0)
        yield lambda running, done: progress.update(bar, completed=done, running=running)


def check_domain(folder: Path, *, quiet: bool) -> None:
    """Tell what a sound domain has. UnusableDomain tells what is wrong with another."""
    domain = load(folder)
    if quiet:
        return
    rows = ", ".join(f"{name} ({_start_rows(domain, name)})" for name in domain.tables)
    print(f"{domain.name} is sound.")
    print(f"  tables      {rows}")
    print(f"  tools       {', '.join(domain.tools)}")
    print(f"  invariants  {', '.join(each.id for each in domain.invariants) or 'none'}")
    print(f"  tasks       {', '.join(domain.tasks)}")


def _start_rows(domain: Domain, table: str) -> str:
    counts = sorted({len(task.start.tables[table]) for task in domain.tasks.values()})
    return f"{counts[0]} rows" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} rows"


def make_domain(folder: Path) -> None:
    """A small sound domain in a folder that is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Unusable(f"{folder} is not empty; --new writes into a folder that is new or empty.")
    with as_file(files("cli.rehearse") / "skeleton") as skeleton:
        for source in sorted(skeleton.rglob("*.yaml")):
            place = folder / source.relative_to(skeleton)
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(source.read_bytes())
            except OSError as error:
                raise Unusable(f"{place} can't be written: {error.strerror}.") from None
    print(f"A domain is in {folder}: domain.yaml, rows/ and tasks/. Look at it with:")
    print(f"  managed-agents rehearse {folder} --check")
