"""Repositories of a session: cloned below /workspace with a token that vault keeps, told by the published errors."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from kit.postgres import Database
from kit.rpc.client import channel
from kit.testing import await_until
from managed_agents.sessions.v1 import environments_pb2, sessions_pb2
from services.sessions.app import MIGRATIONS
from services.sessions.operations.repository_tokens import RepositoryTokens
from services.sessions.operations.token_sweep import TokenSweep
from services.vault.app import MIGRATIONS as VAULT_MIGRATIONS
from services.vault.app import compose
from services.vault.config import VaultSettings
from services.worker.runner.workspace.git.cloning import CloneLimits
from services.worker.runner.workspace.repositories import RepositoryMount
from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, of, text_of, world
from tests.integration.runner.mounting import Mounting, refusal
from tests.support.git_server import GitServer, Repository, git_server

TOKEN, OTHER = "ghp_canary0123456789", "ghp_another0123456789"


@pytest.fixture
async def vault_dsn(make_database) -> str:
    return await make_database("vault", VAULT_MIGRATIONS)


@pytest.fixture
async def platform(make_database, vault_dsn, nats_url, request) -> AsyncIterator[World]:
    """Sessions and a real vault; a parameter is for how long turns are leased."""
    with tempfile.TemporaryDirectory(prefix="mv-") as name:
        listen = f"unix:{name}/vault.sock"
        vault = compose(
            VaultSettings(database_url=vault_dsn, listen=listen, secret_key="a secret of enough length"),
            {"MANAGED_AGENTS_MODEL_VENDOR": "demo"},
        )
        await vault.start()
        dsn = await make_database("sessions", MIGRATIONS)
        try:
            async with world(
                dsn, nats_url, vault_address=listen, lease_seconds=getattr(request, "param", 10.0)
            ) as made:
                made.vault_address = listen
                yield made
        finally:
            await vault.stop()


@pytest.fixture
async def mounting(platform: World) -> AsyncIterator[Mounting]:
    made = Mounting(platform)
    yield made
    await made.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GitServer]:
    async with git_server(tmp_path / "served") as running:
        running.token = TOKEN
        made = Repository(running.root, "project")
        made.commit("README.md", "hello\n")
        made.publish()
        yield running


@asynccontextmanager
async def _runner(platform: World, kind: str = "auto") -> AsyncIterator[None]:
    """A runner that may fetch from loopback, and soon tries again."""
    sandboxes = SandboxManager(platform.folder / "sandboxes", kind=kind)
    async with platform.runner(sandboxes=sandboxes, allowed_private_hosts="127.0.0.1") as runner:
        [mount] = [each for each in runner.workspaces.mounts if isinstance(each, RepositoryMount)]
        mount._limits = CloneLimits(pauses=(0.05, 0.05))
        yield


def _resource(server: GitServer, **fields: Any) -> dict[str, Any]:
    return {"type": "github_repository", "url": server.url("project"), "authorization_token": TOKEN} | fields


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock", "process"])
async def test_a_repository_is_there_for_shell_and_tools(
    platform: World, mounting: Mounting, server: GitServer, kind: str
) -> None:
    session = await mounting.session(
        _resource(server), _resource(server, mount_path="/workspace/deep/two", checkout="main")
    )
    async with _runner(platform, kind):
        log = await mounting.bash(session, "cat project/README.md; cd deep/two && git log --format=%s && git status -s")
        await platform.say(session, 'TOOL:read:{"file_path": "/workspace/project/README.md"}')
        log = await platform.until(session)
    shell, read = (text_of(event) for event in of(log, "agent.tool_result"))
    assert "hello" in shell and "Write README.md" in shell and "hello" in read
    assert not of(log, "session.error")


async def test_a_clone_is_made_once_and_is_the_agents(platform: World, mounting: Mounting, server: GitServer) -> None:
    session = await mounting.session(_resource(server))
    (resource,) = await mounting.resources(session)
    async with _runner(platform):
        await mounting.bash(session, "echo mine > project/mine.txt; rm project/README.md")
    asked = len(server.requests)
    async with _runner(platform):
        log = await mounting.bash(session, "ls project")
        await mounting.detach(session, resource["id"])
        log = await mounting.bash(session, "ls project")
    assert [text_of(event).split()[0] for event in of(log, "agent.tool_result")[1:]] == ["mine.txt", "mine.txt"]
    assert len(server.requests) == asked


@pytest.mark.parametrize("platform", [2.0], indirect=True)
async def test_a_runner_killed_in_a_clone_leaves_it_to_the_next(
    platform: World, mounting: Mounting, server: GitServer
) -> None:
    session = await mounting.session(_resource(server))
    environment = {"SANDBOX_KIND": "auto", "LEASE_SECONDS": "2", "ALLOWED_PRIVATE_HOSTS": "127.0.0.1"}
    server.hold = asyncio.Event()
    async with platform.runner_process(**environment) as process:
        await platform.say(session, 'TOOL:bash:{"command": "cat project/README.md; ls -A"}')
        await await_until(lambda: any(request.startswith("POST") for request in server.requests), timeout=30)
        process.kill()
        await process.wait()
    server.hold.set()
    async with platform.runner_process(**environment):
        log = await platform.until(session, seconds=40)
    (result,) = of(log, "agent.tool_result")
    assert text_of(result).split()[:2] == ["hello", "project"] and not of(log, "session.error")


async def test_a_wrong_token_is_told_and_a_rotated_one_is_used_by_the_next_turn(
    platform: World, mounting: Mounting, server: GitServer
) -> None:
    session = await mounting.session(_resource(server, authorization_token=OTHER))
    (resource,) = await mounting.resources(session)
    async with _runner(platform):
        log = await mounting.bash(session, "ls")
        (error,) = of(log, "session.error")
        assert error["error"]["type"] == "repository_authentication_error"
        assert error["error"]["repository_url"] == server.url("project")
        assert error["error"]["retry_status"] == "retryable"
        assert of(log, "session.status_idle")
        await mounting.rotate(session, resource["id"], TOKEN)
        log = await mounting.bash(session, "cat project/README.md")
    assert text_of(of(log, "agent.tool_result")[-1]).startswith("hello")
    assert len(of(log, "session.error")) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, "repository_forbidden_error"), (404, "repository_not_found_error"), (500, "repository_clone_error")],
)
async def test_each_refusal_has_its_event(
    platform: World, mounting: Mounting, server: GitServer, status: int, kind: str
) -> None:
    server.status = status
    session = await mounting.session(_resource(server))
    async with _runner(platform):
        log = await mounting.bash(session, "true", seconds=60)
    assert [event["error"]["type"] for event in of(log, "session.error")] == [kind]


async def test_a_missing_branch_has_its_event(platform: World, mounting: Mounting, server: GitServer) -> None:
    session = await mounting.session(_resource(server, checkout="nowhere"))
    async with _runner(platform):
        log = await mounting.bash(session, "true")
    assert [event["error"]["type"] for event in of(log, "session.error")] == ["repository_checkout_error"]


async def test_a_private_host_is_refused_unless_the_operator_names_it(
    platform: World, mounting: Mounting, server: GitServer
) -> None:
    session = await mounting.session(_resource(server))
    async with platform.runner(sandboxes=SandboxManager(platform.folder / "sandboxes")):
        log = await mounting.bash(session, "true")
    assert [event["error"]["type"] for event in of(log, "session.error")] == ["repository_clone_error"]
    assert not server.requests


async def test_the_network_of_the_environment_holds_for_clones(
    platform: World, mounting: Mounting, server: GitServer
) -> None:
    closed = {"type": "limited", "allowed_hosts": ["example.com"]}
    opened = {"type": "limited", "allowed_hosts": ["127.0.0.1"]}
    kinds: list[list[str]] = []
    async with _runner(platform):
        for name, network in (("closed", closed), ("opened", opened)):
            definition = {"name": name, "config": {"type": "cloud", "networking": network}}
            request = environments_pb2.CreateEnvironmentRequest(definition_json=orjson.dumps(definition))
            environment = (await platform.clients.environments.CreateEnvironment(request)).environment.id
            session = await mounting.session(_resource(server), environment_id=environment)
            log = await mounting.bash(session, "true")
            kinds.append([text_of(event) for event in of(log, "session.error")])
            if name == "closed":
                assert not server.requests
    assert "does not allow 127.0.0.1" in kinds[0][0] and kinds[1] == []


async def test_what_stands_in_the_way_is_kept(platform: World, mounting: Mounting, server: GitServer) -> None:
    session = await mounting.session()
    async with _runner(platform):
        await mounting.bash(session, "mkdir project; echo mine > project/mine; ln -s /etc link")
        await mounting.attach(session, **_resource(server))
        await mounting.attach(session, **_resource(server, mount_path="/workspace/link/project"))
        log = await mounting.bash(session, "cat project/mine")
    assert [event["error"]["type"] for event in of(log, "session.error")] == ["repository_clone_error"] * 2
    assert text_of(of(log, "agent.tool_result")[-1]).startswith("mine")


async def test_no_secret_is_found_anywhere(
    platform: World, mounting: Mounting, server: GitServer, vault_dsn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    session = await mounting.session(_resource(server))
    (resource,) = await mounting.resources(session)
    async with _runner(platform):
        log = await mounting.bash(session, "env; cat project/.git/config; cat /proc/*/environ | tr '\\0' ' '")
        await mounting.rotate(session, resource["id"], OTHER)
    said = orjson.dumps([log, await mounting.resources(session)]).decode()
    written = "".join(capfd.readouterr())
    kept = _files_with(platform.folder, TOKEN)
    stored = await _stored(platform.database_url, "sessions") + await _stored(vault_dsn, "vault")
    for secret in (TOKEN, OTHER):
        assert secret not in said and secret not in written and secret not in stored
    assert kept == [] and "authorization_token" not in said


async def test_tokens_of_detached_repositories_are_dropped(
    platform: World, mounting: Mounting, server: GitServer, vault_dsn: str
) -> None:
    session = await mounting.session(_resource(server))
    (resource,) = await mounting.resources(session)
    assert resource["id"] in await _stored(vault_dsn, "vault")
    await mounting.detach(session, resource["id"])
    assert resource["id"] not in await _stored(vault_dsn, "vault")


async def test_a_session_that_is_refused_leaves_no_token(mounting: Mounting, server: GitServer, vault_dsn: str) -> None:
    wrong = {"type": "file", "file_id": "file_none"}
    assert (await refusal(mounting.session(_resource(server), wrong))).reason == "FILE_NOT_FOUND"
    assert "sesrsc_" not in await _stored(vault_dsn, "vault")


async def test_tokens_that_no_session_needs_are_swept(
    platform: World, mounting: Mounting, server: GitServer, vault_dsn: str
) -> None:
    kept, deleted, stopped = [await mounting.session(_resource(server)) for _ in range(3)]
    ids = {session: (await mounting.resources(session))[0]["id"] for session in (kept, deleted, stopped)}
    await platform.clients.sessions.DeleteSession(sessions_pb2.DeleteSessionRequest(session_id=deleted))
    await platform.clients.stop(stopped)
    database = Database(platform.database_url, "sessions")
    await database.open()
    vault = channel(platform.vault_address)
    try:
        sweep = TokenSweep(database, RepositoryTokens(vault), grace_seconds=3_600)
        # Whatever is new may belong to a session that is being made.
        assert await sweep.sweep() == 0
        sweep = TokenSweep(database, RepositoryTokens(vault), grace_seconds=0)
        assert await sweep.sweep() == 2
    finally:
        await vault.close()
        await database.close()
    stored = await _stored(vault_dsn, "vault")
    assert ids[kept] in stored and ids[deleted] not in stored and ids[stopped] not in stored


def _files_with(folder: Path, text: str) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


async def _stored(dsn: str, schema: str) -> str:
    """Every row of every table, as text."""
    found: list[str] = []
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        tables = await (
            await connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,))
        ).fetchall()
        for (table,) in tables:
            assert re.fullmatch(r"[a-z_]+", table)
            rows = await (await connection.execute(f'SELECT t::text FROM {schema}."{table}" t')).fetchall()  # noqa: S608
            found += [row[0] for row in rows]
    return "\n".join(found)
