"""`managed-agents worker`: does the work of self-hosted environments. The program itself is services.worker.fleet."""

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Do the work of self-hosted environments on this machine.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PLATFORM, _WORK, _MACHINE, _OUTPUT = "Platform", "Work", "This machine", "What it tells"


@app.callback()
def _group() -> None:
    return None


@app.command(
    epilog="Examples: `managed-agents worker poll --environment-id env_… --workdir ~/agents` · "
    "`managed-agents worker poll --url https://agents.example --environment-id env_… --workdir /srv/work "
    "--key-file /etc/agents/key --concurrency 4` · "
    "`managed-agents worker poll --workdir . --once --json`. The page docs/workers.md leads through a first worker."
)
def poll(
    workdir: Annotated[
        Path,
        typer.Option(
            envvar="MANAGED_AGENTS_WORKDIR",
            rich_help_panel=_MACHINE,
            help="The folder to work in. Files are read and written below it only; in a sandbox commands see no other.",
        ),
    ],
    environment_id: Annotated[
        str | None,
        typer.Option(
            envvar="MANAGED_AGENTS_ENVIRONMENT_ID",
            show_default=False,
            rich_help_panel=_PLATFORM,
            help="The environment whose work to do. It says which protocol its workers speak.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="MANAGED_AGENTS_URL",
            show_default=False,
            rich_help_panel=_PLATFORM,
            help="The platform, such as https://agents.example. Without it, the one at --port of this machine.",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            "-p",
            min=1,
            max=65535,
            envvar="MANAGED_AGENTS_PORT",
            rich_help_panel=_PLATFORM,
            help="Port of a platform on this machine, where no --url is given.",
        ),
    ] = 3000,
    key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="MANAGED_AGENTS_ENVIRONMENT_KEY_FILE",
            show_default=False,
            rich_help_panel=_PLATFORM,
            help="File with the worker key (mawk_…). Without it, MANAGED_AGENTS_ENVIRONMENT_KEY is read.",
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            envvar="MANAGED_AGENTS_CA_FILE",
            show_default=False,
            rich_help_panel=_PLATFORM,
            help="Further certificates to trust (PEM), such as a company's own. "
            "HTTPS_PROXY and NO_PROXY are honoured as usual.",
        ),
    ] = None,
    worker_id: Annotated[
        str,
        typer.Option(
            envvar="MANAGED_AGENTS_WORKER_ID",
            show_default="worker_<pid>",
            rich_help_panel=_WORK,
            help="How this worker is called. No two workers of an environment may have the same id: name them in "
            "containers, where each is process 1.",
        ),
    ] = "",
    once: Annotated[
        bool, typer.Option("--once", rich_help_panel=_WORK, help="Take at most one item, run it, and end.")
    ] = False,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, rich_help_panel=_WORK, help="How many items run at a time.")
    ] = 1,
    interval_ms: Annotated[
        int,
        typer.Option(
            min=1,
            max=86_400_000,
            rich_help_panel=_WORK,
            help="Milliseconds from one question for work to the next while there is none.",
        ),
    ] = 1_000,
    wait_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=30_000,
            rich_help_panel=_WORK,
            help="How long the platform may hold a question until there is work. 0 asks and goes.",
        ),
    ] = 25_000,
    heartbeat_ms: Annotated[
        int,
        typer.Option(
            min=1, max=86_400_000, rich_help_panel=_WORK, help="How often the claim of an item that runs is renewed."
        ),
    ] = 20_000,
    max_exec_seconds: Annotated[
        int, typer.Option(min=1, max=7 * 86_400, rich_help_panel=_WORK, help="No command may run for longer.")
    ] = 3_600,
    max_idle_seconds: Annotated[
        int,
        typer.Option(
            min=0,
            max=86_400,
            rich_help_panel=_WORK,
            help="How long a session is kept here after its turn has ended (session protocol).",
        ),
    ] = 60,
    memory_sync_seconds: Annotated[
        int,
        typer.Option(
            min=5, max=3_600, rich_help_panel=_WORK, help="How often memory stores are synced (session protocol)."
        ),
    ] = 15,
    sandbox: Annotated[
        str,
        typer.Option(
            rich_help_panel=_MACHINE,
            help="What holds commands back: auto (the best that works here), bubblewrap, landlock, or none: then they "
            "have all rights of this user.",
        ),
    ] = "auto",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            show_default=False,
            rich_help_panel=_MACHINE,
            help="A host that sandboxed commands may reach over HTTP(S): api.example.com, *.example.com, or * for any "
            "public one. Repeat for more; none without.",
        ),
    ] = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            show_default=False,
            rich_help_panel=_MACHINE,
            help="A variable of this environment that commands get. Repeat for more; none without.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, show_default=False, rich_help_panel=_OUTPUT, help="Serve /metrics for Prometheus here."
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(rich_help_panel=_OUTPUT, help="Address for --metrics-port.")
    ] = "127.0.0.1",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", rich_help_panel=_OUTPUT, help="Tell more.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", rich_help_panel=_OUTPUT, help="Log a JSON object per line, for programs.")
    ] = False,
) -> None:
    """Take work of a self-hosted environment and do it in a folder of this machine, until Ctrl-C.

    Make a worker key at the platform (POST /v1/environments/ENV_ID/worker-keys), put it into
    MANAGED_AGENTS_ENVIRONMENT_KEY, and start. A first Ctrl-C or SIGTERM finishes what runs and stops; a second one ends
    everything at once. Exit codes: 0 stopped, 1 not reachable (with --once), 2 an option is unusable, 3 the platform
    refuses the key or the environment.
    """
    from services.worker.fleet.errors import OptionUnusable
    from services.worker.fleet.options import Options, check, read_key

    options = Options(
        url=(url or f"http://127.0.0.1:{port}").rstrip("/"),
        workdir=workdir,
        environment_id=environment_id or None,
        worker_id=worker_id or f"worker_{os.getpid()}",
        once=once,
        interval_seconds=interval_ms / 1000,
        heartbeat_seconds=heartbeat_ms / 1000,
        wait_seconds=wait_ms / 1000,
        concurrency=concurrency,
        sandbox=sandbox,
        allow_hosts=tuple(allow_host or ()),
        pass_env=tuple(pass_env or ()),
        longest_seconds=float(max_exec_seconds),
        max_idle_seconds=float(max_idle_seconds),
        memory_seconds=float(memory_sync_seconds),
        ca_file=ca_file,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        as_json=as_json,
        verbose=verbose,
    )
    try:
        check(options)
        key = read_key(key_file, os.environ)
    except OptionUnusable as unusable:
        from cli.telling import say

        say(f"managed-agents: {unusable}")
        raise typer.Exit(2) from None
    from services.worker.fleet.app import run

    raise typer.Exit(run(options, key, dict(os.environ)))
