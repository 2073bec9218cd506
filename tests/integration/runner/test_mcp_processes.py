"""MCP servers as processes of the session's sandbox: what they see, how they end, and what becomes of calls."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.testing import await_until
from services.worker.runner.app import Runner
from services.worker.runner.mcp.session import OutcomeUnknown, ServerFailed, SessionServers
from services.worker.runner.mcp.spec import Server
from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, text_of
from tests.integration.runner.mcp_bench import session_servers
from tests.integration.runner.played import TOOLSET, PlayedInjections, ScriptedModel, call, say
from tests.integration.runner.test_mcp_turns import ALLOWED, give_vault, toolset
from tests.support.injection import Vault, secrets_of, variable
from tests.support.mcp_process import REAL, SMALL

KINDS = ("bubblewrap", "landlock", "process")
CANARY = "canary-of-a-process"
SMALL_SERVER = Server("small", "stdio", command="python3", args=("server.py",), env=(("LEVEL", "7"),))


@pytest.fixture(params=KINDS)
async def sandboxes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SandboxManager]:
    """Sandboxes of each kind that this host offers."""
    manager = SandboxManager(tmp_path / "sandboxes", kind=request.param)
    if not manager.describe().usable:
        pytest.skip(f"{request.param} is not to be had here")
    yield manager
    await manager.aclose()


@asynccontextmanager
async def small(
    manager: SandboxManager, *, environment: Any = None, vault: PlayedInjections | None = None, **limits: float
) -> AsyncIterator[SessionServers]:
    """The small server in a sandbox."""
    host = manager.session("sess_1", environment or {})
    written = await host.run_tool("write", {"file_path": "server.py", "content": SMALL})
    assert not written.is_error, written.text
    async with session_servers(SMALL_SERVER, host=host, vault=vault, **limits) as servers:
        yield servers


def text(result: dict[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


def running(word: str) -> list[str]:
    """Processes of the host whose command line has the word."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(name)
        except OSError:
            continue
    return found


async def test_a_process_has_its_own_environment_and_the_sessions_files(sandboxes: SandboxManager) -> None:
    os.environ["CANARY_OF_THE_RUNNER"] = "must not be seen"
    try:
        async with small(sandboxes, vault=PlayedInjections()) as servers:
            assert text(await servers.call("small", "variable", {"name": "LEVEL"})) == "7"
            assert text(await servers.call("small", "variable", {"name": "CANARY_OF_THE_RUNNER"})) == "unset"
            await servers.call("small", "write", {"path": "made.txt"})
            host = sandboxes.session("sess_1", {})
            assert "from the server" in (await host.run_tool("read", {"file_path": "made.txt"})).text
            (told,) = servers.descriptions()
            assert (told["type"], told["status"]) == ("stdio", "connected") and "url" not in told
            # What the agent runs sees nothing of it.
            seen = await host.run_tool("bash", {"command": "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"})
            if sandboxes.describe().kind != "process":
                assert "LEVEL" not in seen.text
    finally:
        del os.environ["CANARY_OF_THE_RUNNER"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_process_is_told_of_credentials_as_the_shell_is(kind: str, tmp_path: Path) -> None:
    vault = Vault(variable("TOKEN", CANARY), variable("LIMITED", CANARY, "api.example"), variable("PATH", "/none"))
    known = secrets_of(vault)
    manager = SandboxManager(tmp_path / "sandboxes", kind=kind, secrets_of=lambda _: known)
    if not manager.describe().usable:
        pytest.skip(f"{kind} is not to be had here")
    host = manager.session("sess_1", {})
    try:
        async with small(manager) as servers:
            for name in ("TOKEN", "LIMITED", "PATH"):
                given = text(await servers.call("small", "variable", {"name": name}))
                shell = (await host.run_tool("bash", {"command": f"printf %s ${{{name}:-unset}}"})).text
                # Where nothing is isolated the value itself is given, and taken out of what the shell says.
                assert given == shell or (kind == "process" and name == "TOKEN" and given == CANARY), name
                assert kind == "process" or CANARY not in given
            with pytest.raises(OutcomeUnknown) as died:
                await servers.call("small", "die", {"cause": CANARY})
            if kind == "process":
                assert CANARY not in str(died.value)
    finally:
        await manager.aclose()
    left = await asyncio.to_thread(lambda: list(tmp_path.glob("sandboxes/*/.trust/*")))
    assert not left


async def test_a_process_is_as_far_from_the_network_as_its_session(sandboxes: SandboxManager) -> None:
    if sandboxes.describe().kind == "process":
        pytest.skip("this kind confines nothing")
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    async with server, small(sandboxes) as servers:
        where = {"host": "127.0.0.1", "port": server.sockets[0].getsockname()[1]}
        assert text(await servers.call("small", "connect", where)).startswith("not connected")


async def test_a_process_that_dies_leaves_the_outcome_unknown_and_is_started_again(sandboxes: SandboxManager) -> None:
    async with small(sandboxes) as servers:
        with pytest.raises(OutcomeUnknown, match="I die of boredom"):
            await servers.call("small", "die", {"cause": "boredom"})
        assert text(await servers.call("small", "variable", {"name": "LEVEL"})) == "7"


async def test_a_call_that_takes_too_long_ends_the_process(sandboxes: SandboxManager) -> None:
    async with small(sandboxes, call_seconds=2.0) as servers:
        with pytest.raises(OutcomeUnknown, match="within 2 seconds"):
            await servers.call("small", "sleep", {})
        assert text(await servers.call("small", "variable", {"name": "LEVEL"})) == "7"


async def test_closing_the_servers_or_the_sandbox_ends_the_process(sandboxes: SandboxManager, tmp_path: Path) -> None:
    word = f"mcp-{tmp_path.name}-{time.monotonic_ns()}"
    server = Server("small", "stdio", command="python3", args=("server.py", word))
    host = sandboxes.session("sess_1", {})
    await host.run_tool("write", {"file_path": "server.py", "content": SMALL})
    async with session_servers(server, host=host) as servers:
        await servers.ensure("small")
        assert running(word)
        await servers.close()
        await await_until(lambda: not running(word), message="the process is gone with its connection")
    async with session_servers(server, host=host) as servers:
        await servers.ensure("small")
        await sandboxes.close("sess_1")
        await await_until(lambda: not running(word), message="the process is gone with the sandbox")
        await await_until(lambda: servers.descriptions()[0]["status"] != "connected", message="the end is noticed")


@pytest.mark.parametrize("server", [Server("none", "stdio", command="no-such-program-here")])
async def test_a_program_that_is_not_there_is_said_so(sandboxes: SandboxManager, server: Server) -> None:
    async with session_servers(server, host=sandboxes.session("sess_1", {})) as servers:
        with pytest.raises(ServerFailed, match="no-such-program-here"):
            await servers.ensure("none")


async def test_a_program_that_says_nothing_fails_in_time(sandboxes: SandboxManager) -> None:
    server = Server("mute", "stdio", command="sleep", args=("60",))
    async with session_servers(server, host=sandboxes.session("sess_1", {}), connect_seconds=1.0) as servers:
        started = time.monotonic()
        with pytest.raises(ServerFailed, match="did not answer within 1 seconds"):
            await servers.ensure("mute")
        assert time.monotonic() - started < 20


async def test_a_sandbox_that_holds_no_programs_is_said_so() -> None:
    async with session_servers(SMALL_SERVER, host=object()) as servers:
        with pytest.raises(ServerFailed, match="can't hold a server"):
            await servers.ensure("small")


async def test_a_server_of_the_package_works_the_same(tmp_path: Path) -> None:
    manager = SandboxManager(tmp_path / "sandboxes", kind="process")
    server = Server("real", "stdio", command=sys.executable, args=("-c", REAL), env=(("LEVEL", "8"),))
    try:
        async with session_servers(server, host=manager.session("sess_1", {}), connect_seconds=20) as servers:
            await servers.ensure("real")
            assert [tool.name for tool in servers.tools("real")] == ["variable"]
            assert text(await servers.call("real", "variable", {"name": "LEVEL"})) == "8"
    finally:
        await manager.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_uses_a_process_and_shows_none_of_its_secrets(platform: World, kind: str) -> None:
    """Also of a kind that gives it the values, and by way of what it writes for the shell to read."""
    steps = [("small__variable", {"name": "TOKEN"}), ("small__keep", {"name": "TOKEN", "path": "kept.txt"})]
    model = ScriptedModel([*(call(step) for step in steps), call(("bash", {"command": "cat kept.txt"})), say("done")])
    runners: list[Runner] = []
    sandboxes = SandboxManager(
        platform.folder / "sandboxes", kind=kind, secrets_of=lambda session_id: runners[0].secrets.of(session_id)
    )
    if not sandboxes.describe().usable:
        pytest.skip(f"{kind} is not to be had here")
    platform.injections.variables["TOKEN"] = CANARY
    server = {"type": "stdio", "name": "small", "command": "python3", "args": ["-c", SMALL]}
    session_id = await platform.session(toolset("small", ALLOWED), TOOLSET, mcp_servers=[server])
    await give_vault(platform, session_id)
    async with platform.runner(model, sandboxes) as runner:
        runners.append(runner)
        await platform.say(session_id, "look")
        log = await platform.until(session_id, seconds=20)
    results = [text_of(event) for event in log if event["type"] in ("agent.mcp_tool_result", "agent.tool_result")]
    shown = "[secret TOKEN removed]" if kind == "process" else "vault_placeholder_"
    assert len(results) == 3 and results[0].startswith(shown) and results[2].startswith(shown)
    assert CANARY not in str(log)
    assert CANARY not in str([request.messages for request in model.requests])
