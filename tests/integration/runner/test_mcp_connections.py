"""Connections to a real MCP server over streamable HTTP: limits, tokens, sessions, changes, and where they may go."""

import asyncio
import time

import pytest

from kit.testing import await_until
from services.worker.runner.mcp.errors import AUTHENTICATION_FAILED, CONNECTION_FAILED
from services.worker.runner.mcp.session import CallRefused, OutcomeUnknown, ServerFailed
from services.worker.runner.mcp.spec import Server
from tests.integration.runner.mcp_bench import NO_PRIVATE_HOSTS, session_servers
from tests.integration.runner.played import PlayedInjections
from tests.support.mcp_server import mcp_server, silent_server


def named(url: str) -> Server:
    return Server("tested", "url", url=url)


def texts(result: dict) -> list[str]:
    return [block["text"] for block in result["content"] if block["type"] == "text"]


async def test_tools_are_listed_and_called_over_one_session() -> None:
    async with mcp_server() as server, session_servers(named(server.url)) as servers:
        await servers.ensure("tested")
        assert "add" in [tool.name for tool in servers.tools("tested")]
        assert texts(await servers.call("tested", "add", {"a": 1, "b": 2})) == ["3"]
        assert texts(await servers.call("tested", "add", {"a": 2, "b": 2})) == ["4"]
        (told,) = servers.descriptions()
        assert (told["status"], told["error"], told["url"]) == ("connected", None, server.url)
        assert told["connected_at"]
        await servers.close()
        # What the server calls the session goes with every request, and it hears of the end.
        assert len(server.sessions()) == 1
        assert server.seen[-1]["verb"] == "DELETE"
        assert server.methods().count("initialize") == 1


@pytest.mark.parametrize("options", [{}, {"json_response": True}, {"stateless_http": True}])
async def test_servers_of_every_manner_are_understood(options: dict) -> None:
    async with mcp_server(**options) as server, session_servers(named(server.url)) as servers:
        await servers.ensure("tested")
        assert texts(await servers.call("tested", "add", {"a": 1, "b": 2})) == ["3"]


async def test_a_server_that_knows_only_the_newer_handshake_is_met_with_that() -> None:
    async with mcp_server() as server, session_servers(named(server.url)) as servers:
        server.unknown.add("initialize")
        await servers.ensure("tested")
        assert texts(await servers.call("tested", "add", {"a": 1, "b": 2})) == ["3"]
        assert "server/discover" in server.methods()
        # It has no way to tell of changes, so it is asked.
        server.server.remove_tool("fail")
        await servers.ensure("tested")
        assert "fail" not in [tool.name for tool in servers.tools("tested")]


async def test_a_server_that_takes_the_connection_and_never_answers_fails_in_time() -> None:
    async with silent_server() as url, session_servers(named(url), connect_seconds=0.5) as servers:
        started = time.monotonic()
        with pytest.raises(ServerFailed, match=r"did not answer within 0\.5 seconds") as failed:
            await servers.ensure("tested")
        assert time.monotonic() - started < 20
        assert failed.value.kind == CONNECTION_FAILED
        assert servers.descriptions()[0]["status"] == "failed"


@pytest.mark.parametrize("method", ["initialize", "notifications/initialized", "tools/list"])
async def test_a_server_that_hangs_in_the_handshake_fails_in_time(method: str) -> None:
    async with mcp_server() as server, session_servers(named(server.url), connect_seconds=2.0) as servers:
        server.hang.add(method)
        started = time.monotonic()
        with pytest.raises(ServerFailed) as failed:
            await servers.ensure("tested")
        assert time.monotonic() - started < 30
        assert failed.value.kind == CONNECTION_FAILED
        # It is there again: so is its session.
        server.hang.clear()
        await servers.ensure("tested")
        assert servers.descriptions()[0]["status"] == "connected"


async def test_a_call_without_an_answer_ends_in_time_and_is_not_made_again() -> None:
    async with mcp_server() as server, session_servers(named(server.url), call_seconds=1.5) as servers:
        with pytest.raises(OutcomeUnknown, match=r"within 1\.5 seconds"):
            await servers.call("tested", "wait", {})
        assert server.calls == [("wait", {})]
        server.gate.set()
        assert texts(await servers.call("tested", "add", {"a": 1, "b": 1})) == ["2"]


async def test_a_cancelled_call_is_told_to_the_server_and_leaves_the_connection_be() -> None:
    async with mcp_server() as server, session_servers(named(server.url)) as servers:
        call = asyncio.create_task(servers.call("tested", "wait", {}))
        await await_until(lambda: server.calls, message="the call arrives")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await await_until(lambda: server.cancelled, message="the server hears of it")
        assert texts(await servers.call("tested", "add", {"a": 1, "b": 1})) == ["2"]
        assert server.methods().count("initialize") == 1


async def test_a_session_that_the_server_forgot_is_begun_anew_for_the_call_that_found_out() -> None:
    async with mcp_server() as server, session_servers(named(server.url)) as servers:
        await servers.ensure("tested")
        server.forgotten.update(server.sessions())
        assert texts(await servers.call("tested", "add", {"a": 20, "b": 2})) == ["22"]
        assert server.methods().count("initialize") == 2
        assert server.calls == [("add", {"a": 20, "b": 2})]


async def test_ten_calls_with_an_expired_token_refresh_it_once() -> None:
    vault = PlayedInjections(renewals=["second-of-tests"])
    async with mcp_server() as server:
        vault.tokens[server.url] = "first"
        server.tokens = {"first"}
        async with session_servers(named(server.url), vault=vault) as servers:
            for number in range(3):
                await servers.call("tested", "add", {"a": number, "b": 0})
            server.tokens = {"second-of-tests"}
            results = await asyncio.gather(*(servers.call("tested", "add", {"a": n, "b": 1}) for n in range(10)))
            assert [texts(result) for result in results] == [[str(n + 1)] for n in range(10)]
            assert (vault.refreshed, len(vault.asked)) == (1, 1)
            assert server.methods().count("initialize") == 1
            # Each call was made once.
            assert len(server.calls) == 13


async def test_a_token_that_nothing_renews_is_an_authentication_failure_and_the_call_was_not_made() -> None:
    vault = PlayedInjections()
    async with mcp_server() as server:
        vault.tokens[server.url] = "first"
        server.tokens = {"first"}
        async with session_servers(named(server.url), vault=vault) as servers:
            await servers.ensure("tested")
            server.tokens = {"other"}
            with pytest.raises(ServerFailed) as failed:
                await servers.call("tested", "add", {"a": 1, "b": 1})
            assert failed.value.kind == AUTHENTICATION_FAILED
            assert server.calls == []
            assert servers.descriptions()[0]["error"]["type"] == AUTHENTICATION_FAILED
            assert "first" not in str(servers.descriptions())


async def test_a_server_that_wants_a_credential_fails_as_that() -> None:
    async with mcp_server() as server, session_servers(named(server.url)) as servers:
        server.tokens = {"only this"}
        with pytest.raises(ServerFailed) as failed:
            await servers.ensure("tested")
        assert failed.value.kind == AUTHENTICATION_FAILED


async def test_a_rotation_connects_anew_and_lets_calls_end() -> None:
    vault = PlayedInjections()
    async with mcp_server() as server:
        vault.tokens[server.url] = "old"
        async with session_servers(named(server.url), vault=vault) as servers:
            call = asyncio.create_task(servers.call("tested", "wait", {}))
            await await_until(lambda: server.calls, message="the call arrives")
            vault.tokens[server.url] = "new"
            servers.reconnect()
            assert texts(await servers.call("tested", "add", {"a": 1, "b": 1})) == ["2"]
            assert server.seen[-1]["token"] == "new"
            server.gate.set()
            assert texts(await call) == ["waited"]
            # And the former connection is closed then.
            await await_until(lambda: server.seen[-1]["verb"] == "DELETE", message="the former session ends")
            assert server.seen[-1]["session"] == server.sessions()[0]


async def test_a_rotation_after_which_the_server_does_not_come_back_shows() -> None:
    vault = PlayedInjections()
    async with mcp_server() as server:
        vault.tokens[server.url] = "old"
        async with session_servers(named(server.url), vault=vault) as servers:
            await servers.ensure("tested")
            vault.tokens[server.url], server.tokens = "wrong", {"right"}
            servers.reconnect()
            await await_until(lambda: servers.descriptions()[0]["status"] == "failed", message="the failure shows")
            assert servers.descriptions()[0]["error"]["type"] == AUTHENTICATION_FAILED


async def test_tools_that_appear_are_heard_of_without_asking() -> None:
    async with mcp_server() as server, session_servers(named(server.url)) as servers:
        await servers.ensure("tested")
        # Listening is a request of its own.
        await await_until(lambda: any(e["verb"] == "GET" for e in server.seen), message="the client listens")
        await servers.call("tested", "grow", {})

        def is_there() -> bool:
            return "late" in [tool.name for tool in servers.tools("tested")]

        await await_until(is_there, message="the tool is known")
        assert texts(await servers.call("tested", "late", {})) == ["late indeed"]


async def test_a_server_that_cannot_tell_of_changes_is_asked_before_each_request() -> None:
    async with mcp_server(stateless_http=True) as server, session_servers(named(server.url)) as servers:
        await servers.ensure("tested")
        server.server.remove_tool("fail")
        await servers.ensure("tested")
        assert "fail" not in [tool.name for tool in servers.tools("tested")]


async def test_what_the_server_refuses_is_told_and_keeps_the_connection() -> None:
    async with mcp_server() as server, session_servers(named(server.url)) as servers:
        result = await servers.call("tested", "fail", {"why": "no"})
        assert result["isError"] is True
        server.instead = (400, {})
        with pytest.raises(CallRefused, match="HTTP status 400"):
            await servers.call("tested", "add", {"a": 1, "b": 1})
        server.instead = (503, {})
        with pytest.raises(OutcomeUnknown, match="503"):
            await servers.call("tested", "add", {"a": 1, "b": 1})
        server.instead = None
        assert texts(await servers.call("tested", "add", {"a": 1, "b": 1})) == ["2"]


async def test_a_server_that_went_away_fails_as_unreachable_and_comes_back() -> None:
    async with mcp_server() as server:
        gone = server.url
    async with session_servers(named(gone)) as servers:
        with pytest.raises(ServerFailed, match="can't be connected to") as failed:
            await servers.call("tested", "add", {})
        assert failed.value.kind == CONNECTION_FAILED


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{}/mcp",
        "http://localhost:{}/mcp",
        "http://[::1]:{}/mcp",
        "http://0x7f000001:{}/mcp",
        "http://2130706433:{}/mcp",
        "http://[::ffff:127.0.0.1]:{}/mcp",
        "http://10.0.0.1:{}/mcp",
        "http://169.254.169.254:{}/mcp",
    ],
)
async def test_no_server_inside_is_reached(url: str) -> None:
    async with mcp_server() as server:
        async with session_servers(named(url.format(server.port)), private=NO_PRIVATE_HOSTS) as servers:
            with pytest.raises(ServerFailed) as failed:
                await servers.ensure("tested")
            assert failed.value.kind == CONNECTION_FAILED
        assert server.seen == []


async def test_a_redirect_to_somewhere_else_is_not_followed() -> None:
    async with mcp_server() as server, mcp_server() as other, session_servers(named(server.url)) as servers:
        server.instead = (307, {"location": other.url})
        with pytest.raises(ServerFailed):
            await servers.ensure("tested")
        server.instead = (302, {"location": "http://169.254.169.254/latest/meta-data"})
        with pytest.raises(ServerFailed):
            await servers.ensure("tested")
        assert other.seen == []


@pytest.mark.parametrize(
    ("network", "reached"),
    [
        ({"type": "limited", "allow_mcp_servers": False, "allowed_hosts": []}, False),
        ({"type": "limited", "allow_mcp_servers": False, "allowed_hosts": ["example.com"]}, False),
        ({"type": "limited", "allow_mcp_servers": True, "allowed_hosts": []}, True),
        ({"type": "limited", "allow_mcp_servers": False, "allowed_hosts": ["127.0.0.1"]}, True),
        ({"type": "unrestricted"}, True),
    ],
)
async def test_an_environment_decides_which_servers_are_reached(network: dict, reached: bool) -> None:
    async with (
        mcp_server() as server,
        session_servers(named(server.url), environment={"network": network}) as servers,
    ):
        if reached:
            await servers.ensure("tested")
            return
        with pytest.raises(ServerFailed, match=r"does not allow 127\.0\.0\.1"):
            await servers.ensure("tested")
        assert server.seen == []


async def test_what_the_agent_no_longer_names_is_closed() -> None:
    async with mcp_server() as server, session_servers(named(server.url)) as servers:
        await servers.ensure("tested")
        assert servers._reach is not None
        servers.configure((), servers._reach, lambda: None)
        await await_until(lambda: server.seen[-1]["verb"] == "DELETE", message="the session ends")
        assert servers.descriptions() == []
