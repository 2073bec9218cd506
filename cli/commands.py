"""The commands of `managed-agents`. Each loads what it needs only when it runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli import handover, keys, worker
from cli.rehearse.command import rehearse

app = typer.Typer(
    name="managed-agents",
    help="A platform that runs AI agents on your own machines.",
    epilog="Start with `managed-agents demo --serve`: it starts the platform and lets a first agent do a small task. "
    "`managed-agents doctor` says what works on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
app.add_typer(keys.app, name="keys")
app.add_typer(worker.app, name="worker")
app.command(
    epilog="Examples: `managed-agents rehearse --new my-domain` · `managed-agents rehearse my-domain --check` · "
    "`managed-agents rehearse my-domain --agent http://localhost:8787/step` · "
    "`managed-agents rehearse my-domain --agent agent_01M8… --trials 5 --junit report.xml`"
)(rehearse)

Port = Annotated[
    int,
    typer.Option("--port", "-p", min=1, max=65535, envvar="MANAGED_AGENTS_PORT", help="Port of the API and its docs."),
]
Host = Annotated[
    str,
    typer.Option(
        envvar="MANAGED_AGENTS_HOST",
        help="Address to listen on. Beyond this machine (0.0.0.0), make an API key: `managed-agents keys create`.",
    ),
]
DataDir = Annotated[
    Path,
    typer.Option(
        envvar="MANAGED_AGENTS_DATA_DIR",
        help="Folder for database, messages, keys, logs and the agents' working directories. One platform each.",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        envvar="MANAGED_AGENTS_DATABASE_URL",
        show_envvar=True,
        show_default=False,
        help="A PostgreSQL server of yours instead of the embedded one; its user must be able to create roles.",
    ),
]
NatsUrl = Annotated[
    str | None,
    typer.Option(
        envvar="MANAGED_AGENTS_NATS_URL",
        show_default=False,
        help="A NATS server of yours (with JetStream) instead of the embedded one.",
    ),
]
Runners = Annotated[int, typer.Option(min=1, max=64, help="How many runner processes work on turns.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs instead of text for people.")]

DEFAULT_PORT, DEFAULT_HOST, DEFAULT_DATA_DIR = 3000, "127.0.0.1", Path(".managed-agents")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"managed-agents {version('managed-agents')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    return None


@app.command(
    epilog="Examples: `managed-agents up` · `managed-agents up --port 8080 --data-dir /var/lib/agents` · "
    "`managed-agents up --database-url postgresql://admin@db/agents --nats-url nats://token@mq:4222`"
)
def up(
    port: Port = DEFAULT_PORT,
    host: Host = DEFAULT_HOST,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    nats_url: NatsUrl = None,
    runners: Runners = 1,
    as_json: AsJson = False,
) -> None:
    """Start the platform and keep it running until Ctrl-C.

    It prints one line when everything is healthy. PostgreSQL and NATS are started in the data folder unless URLs are
    given. A service that crashes is started again. A second Ctrl-C ends everything at once.

    Set MANAGED_AGENTS_COST_PROFILE to the list prices of your models, as JSON or as the path of a file: sessions then
    tell their list cost and may have a budget. The README shows the form.
    """
    wanted: dict[str, Any] = {
        "host": host,
        "port": port,
        "data_dir": str(data_dir),
        "runners": runners,
        "database_url": database_url,
        "nats_url": nats_url,
        "as_json": as_json,
    }
    handover.give(wanted)
    from cli.serving import run

    finish(run(**wanted))


@app.command(
    epilog="Examples: `managed-agents demo --serve` · `managed-agents demo --task 'List the primes below 100'` · "
    "`managed-agents demo --json | jq .type`"
)
def demo(
    port: Port = DEFAULT_PORT,
    host: Host = DEFAULT_HOST,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    keep_serving: Annotated[
        bool, typer.Option("--serve", help="Keep the platform running after the task, until Ctrl-C.")
    ] = False,
    task: Annotated[str, typer.Option(show_default=False, help="What the agent is to do.")] = "",
    as_json: AsJson = False,
) -> None:
    """Let a first agent do a small task, and watch its events.

    Uses the platform at the port when one answers there, and starts one otherwise. Without a model vendor's key the
    built-in `demo` model plays the agent; with ANTHROPIC_API_KEY or OPENAI_API_KEY set, a real model does.
    """
    import asyncio

    from cli import config
    from cli.demo import TASK, run
    from cli.supervisor import Options
    from cli.telling import say, told

    options = Options(
        host=host, port=port, data_dir=data_dir, database_url=config.database_url(), nats_url=config.nats_url()
    )
    work = run(options, task=task or TASK, keep_serving=keep_serving, as_json=as_json, say=say)
    finish(asyncio.run(told(work)))


@app.command(epilog="Examples: `managed-agents doctor` · `managed-agents doctor --port 8080 --json`")
def doctor(
    port: Port = DEFAULT_PORT,
    host: Host = DEFAULT_HOST,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say what works on this machine, and what to do about what does not.

    Looks at Python, port, data folder, database, NATS, sandbox, model vendor, list prices and clock, each by trying
    it. Ends with code 1 when something keeps the platform from starting.
    """
    import asyncio

    from cli.doctor import run
    from cli.supervisor import Options
    from cli.telling import told

    options = Options(host=host, port=port, data_dir=data_dir, database_url=database_url, nats_url=nats_url)
    finish(asyncio.run(told(run(options, as_json=as_json))))


def finish(code: int) -> None:
    if code:
        raise typer.Exit(code)
