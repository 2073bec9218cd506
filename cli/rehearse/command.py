"""The command `managed-agents rehearse`: its options, its exit codes, and where its output goes.

Exit codes: 0 (enough trials passed), 1 (too few did), 2 (the domain or an option is unusable; nothing was played).
"""

from pathlib import Path
from typing import Annotated

import typer

PASSED, FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130


def rehearse(
    domain_dir: Annotated[Path, typer.Argument(metavar="DOMAIN_DIR", help="The folder of the domain.")],
    agent: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            metavar="ID|URL",
            help="An agent of the running platform (agent_…), or the URL of any agent that speaks the protocol.",
        ),
    ] = None,
    base_url: Annotated[
        str,
        typer.Option(
            envvar="MANAGED_AGENTS_BASE_URL",
            help="Where the platform answers, for an agent by its id. The key comes from MANAGED_AGENTS_API_KEY.",
        ),
    ] = "http://127.0.0.1:3000",
    check: Annotated[bool, typer.Option("--check", help="Say whether the domain is sound; play nothing.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Write a small domain into the folder, to begin with.")] = False,
    task: Annotated[
        list[str] | None, typer.Option(show_default=False, help="Play this task only; may be given again.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, max=1000, help="How often each task is played.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="How many trials run at once.")] = 4,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds that an agent has for a step; else the trial fails.")
    ] = 120.0,
    seed: Annotated[
        int | None, typer.Option(show_default=False, help="Shuffles the order in which trials begin.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            show_default=False,
            metavar="NAME=VALUE",
            help="A header for the agent's URL. ${VARIABLE} takes a secret from the environment. May be given again.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", show_default=False, metavar="FILE", help="Write the report as JSON.")
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", show_default=False, metavar="FILE", help="Write it as JUnit XML.")
    ] = None,
    fail_under: Annotated[
        float, typer.Option(min=0, max=100, help="Percent of trials that must pass for exit code 0.")
    ] = 100.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the last line of the report only.")] = False,
) -> None:
    """Play a domain against an agent, and judge it by what it did.

    A domain is a folder: tools over rows of data, tasks with what a user says, rules that no call may break, and the
    end state that is wanted. The agent is asked over HTTP; its calls change nothing but rows in memory.

    Ends with code 0 when all trials passed (or --fail-under percent of them), 1 when not, 2 when the domain or an
    option can't be used.
    """
    import asyncio

    from cli.commands import finish
    from cli.rehearse.faults import Unusable, UnusableDomain
    from cli.rehearse.running import Wanted, check_domain, make_domain, run
    from cli.telling import say

    try:
        if new:
            make_domain(domain_dir)
            code = PASSED
        elif check:
            check_domain(domain_dir, quiet=quiet)
            code = PASSED
        else:
            wanted = Wanted(
                domain_dir=domain_dir,
                agent=agent,
                base_url=base_url,
                tasks=tuple(task or ()),
                trials=trials,
                concurrency=concurrency,
                timeout_seconds=timeout,
                seed=seed,
                headers=tuple(header or ()),
                json_file=json_file,
                junit_file=junit_file,
                fail_under=fail_under,
                quiet=quiet,
            )
            code = PASSED if asyncio.run(run(wanted)) else FAILED
    except UnusableDomain as reason:
        say(f"managed-agents: the domain in {domain_dir} is not sound:\n{reason}")
        code = UNUSABLE
    except Unusable as reason:
        say(f"managed-agents: {reason}")
        code = UNUSABLE
    except KeyboardInterrupt:
        say("managed-agents: stopped; nothing was reported.")
        code = INTERRUPTED
    finish(code)
