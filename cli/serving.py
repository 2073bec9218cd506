"""What `managed-agents up` does once its command line is read."""

import json
import os
from pathlib import Path

from cli import config
from cli.telling import say, told
from kit.lean import without

with without("ssl"):
    # It would take four megabytes for connections that a supervisor never makes: it asks the gateway by plain HTTP.
    import asyncio

from cli.supervisor import Options, Supervisor
from cli.up import for_ever, serve
from kit.released import release_code


def run(
    *,
    host: str,
    port: int,
    data_dir: str,
    runners: int,
    database_url: str | None,
    nats_url: str | None,
    as_json: bool,
) -> int:
    """Run the platform until it is asked to stop; the exit code."""
    options = Options(
        host=host, port=port, data_dir=Path(data_dir), runners=runners, database_url=database_url, nats_url=nats_url
    )

    async def announce(supervisor: Supervisor) -> None:
        release_code()
        if as_json:
            facts = {"url": supervisor.url, "pid": os.getpid(), "data_dir": str(supervisor.folder.path)}
            print(json.dumps(facts), flush=True)
        else:
            print(
                f"managed-agents is up at {supervisor.url} (console at /console, API under /v1, docs at /docs; "
                f"logs in {supervisor.folder.path / 'logs'}). Ctrl-C stops it.",
                flush=True,
            )
        await for_ever()

    _warn_if_open(host)
    return asyncio.run(told(serve(options, say=say, work=announce)))


def _warn_if_open(host: str) -> None:
    if host not in ("127.0.0.1", "::1", "localhost") and config.api_key() is None:
        say(
            f"Warning: while there is no API key, whoever can reach {host} may use this platform. Make one with "
            "`managed-agents keys create`, or set MANAGED_AGENTS_API_KEY: then every request needs a key."
        )
