"""`managed-agents keys`: who may call the API. The group also has `rotate`, which is about the vault's master key."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cli.key_access import Access

app = typer.Typer(
    help="API keys (create, list, revoke) and the master key that the vault seals with (rotate).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataDir = Annotated[
    Path,
    typer.Option(
        envvar="MANAGED_AGENTS_DATA_DIR",
        help="Folder of the running platform. Whoever may read it is the operator and needs no key.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        show_default=False,
        help="A platform elsewhere, such as https://agents.example; needs an administrator's MANAGED_AGENTS_API_KEY.",
    ),
]
Workspace = Annotated[str, typer.Option(show_default=False, help="Another workspace than the default one: wrkspc_….")]
AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs instead of text for people.")]
Role = Annotated[str, typer.Option(help="admin, member (all but keys and settings) or read_only.")]

DEFAULT_DATA_DIR = Path(".managed-agents")
NO_KEY = "There is no API key, so no request needs one, unless the platform was started with MANAGED_AGENTS_API_KEY."


@app.command(
    epilog="Examples: `managed-agents keys create --name laptop` · "
    "`managed-agents keys create --name ci --role member` · "
    "`managed-agents keys create --name 'Team B' --workspace wrkspc_b`"
)
def create(
    name: Annotated[str, typer.Option(help="What the key is for.")],
    role: Role = "admin",
    owner: Annotated[str, typer.Option(show_default=False, help="Whose key it is.")] = "",
    workspace: Workspace = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key and print its secret, this once.

    The first key turns authentication on: from then on every request needs one. It must be an administrator's.
    A workspace begins to exist with its first key; what is in one can't be seen with a key of another.
    """

    async def work(access: "Access") -> None:
        made = await access.create(name, role, owner, workspace)
        if as_json:
            print(json.dumps(made))
            return
        print(made["secret_key"])
        _say(
            f"{made['id']} is a key of role {made['role']} in {made['workspace_id']}. Its secret is not shown again. "
            "Every request needs a key from now on: Authorization: Bearer <secret>."
        )

    _run(work, url, data_dir)


@app.command("list", epilog="Examples: `managed-agents keys list` · `managed-agents keys list --json | jq -r '.[].id'`")
def list_keys(
    workspace: Workspace = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List API keys, newest first, without their secrets."""

    async def work(access: "Access") -> None:
        keys = await access.keys(workspace)
        if as_json:
            print(json.dumps(keys))
            return
        if not keys:
            _say(f"{workspace} has no API key." if workspace else NO_KEY)
        for key in keys:
            used = key["last_used_at"] or "never"
            print(f"{key['id']}  {key['role']:9}  {key['key_prefix']:20}  last used {used}  {key['name']}")

    _run(work, url, data_dir)


@app.command(epilog="Example: `managed-agents keys revoke key_01M8…`")
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key, as `keys list` shows it.")],
    workspace: Workspace = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    url: Url = None,
) -> None:
    """Delete an API key; every gateway refuses it within a second.

    With the last key, authentication is off again. The last administrator's key stays while others are left.
    """

    async def work(access: "Access") -> None:
        await access.revoke(key_id, workspace)
        _say(f"{key_id} is revoked.")

    _run(work, url, data_dir)


@app.command(
    epilog="Examples: `managed-agents keys rotate` · `managed-agents keys rotate --json` · "
    "`managed-agents keys rotate --resume`"
)
def rotate(
    data_dir: DataDir = DEFAULT_DATA_DIR,
    resume: Annotated[
        bool, typer.Option("--resume", help="Add no version; wait for the one that is under way.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until every stored secret is sealed anew.")] = True,
    as_json: AsJson = False,
) -> None:
    """Give the vault's master key a new version, and seal every stored secret with it.

    Nothing stops meanwhile: former versions keep opening what they sealed. The key file gets the new version; keep a
    copy of the file as you do of the database. In production name the vault in MANAGED_AGENTS_VAULT_ADDRESS.
    """
    import asyncio

    from cli.commands import finish
    from cli.key_rotation import rotate as work
    from cli.telling import told

    finish(asyncio.run(told(work(data_dir, resume=resume, wait=wait, as_json=as_json, say=_say))))


def _run(work: Callable[["Access"], Awaitable[None]], url: str | None, data_dir: Path) -> None:
    import asyncio

    from cli.commands import finish
    from cli.key_access import open_access
    from cli.telling import told

    async def connected() -> None:
        async with open_access(url, data_dir) as access:
            await work(access)

    finish(asyncio.run(told(connected())))


def _say(text: str) -> None:
    from cli.telling import say

    say(text)
