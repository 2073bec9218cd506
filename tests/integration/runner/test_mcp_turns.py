"""Turns of agents with MCP servers: real runner, sessions service and servers; only the model is played."""

import asyncio
import sys
from typing import Any

import orjson
import psycopg
import pytest

from kit.nats import connect
from kit.testing import await_until
from managed_agents.sessions.v1 import sessions_pb2
from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.runner.played import CUSTOM, TOOLSET, ScriptedModel, call, say
from tests.support.mcp_server import Doorman, mcp_server, silent_server

LOOPBACK: dict[str, Any] = {"allowed_private_hosts": "127.0.0.1", "mcp_connect_seconds": 3.0, "mcp_call_seconds": 5.0}
ALLOWED = {"permission_policy": {"type": "always_allow"}}
ADDING = ("tested__add", {"a": 1, "b": 2})


def confirmation(tool_use_id: str, result: str, **fields: Any) -> dict[str, Any]:
    return {"type": "user.tool_confirmation", "tool_use_id": tool_use_id, "result": result, **fields}


def interrupt() -> dict[str, Any]:
    return {"type": "user.interrupt"}


def toolset(name: str = "tested", default: Any = ALLOWED, *configs: Any) -> dict[str, Any]:
    entry = {"type": "mcp_toolset", "mcp_server_name": name, "configs": list(configs)}
    return entry | ({"default_config": default} if default else {})


def at(url: str, name: str = "tested") -> dict[str, Any]:
    return {"type": "url", "name": name, "url": url}


async def session_with(platform: World, server: Doorman, *tools: Any) -> str:
    return await platform.session(*(tools or (toolset(),)), mcp_servers=[at(server.url)])


def offered(model: ScriptedModel, request: int = -1) -> list[str]:
    return [tool.name for tool in model.requests[request].tools]


async def test_a_call_and_its_result_carry_their_server(platform: World) -> None:
    model = ScriptedModel([call(ADDING), say("three")])
    async with mcp_server() as server:
        session_id = await session_with(platform, server)
        async with platform.runner(model, **LOOPBACK):
            await platform.say(session_id, "add")
            log = await platform.until(session_id)

    (use,), (result,) = of(log, "agent.mcp_tool_use"), of(log, "agent.mcp_tool_result")
    assert (use["name"], use["mcp_server_name"], use["input"]) == ("add", "tested", {"a": 1, "b": 2})
    assert (use["evaluated_permission"], use["evaluation"]) == ("allow", {"type": "always_allow"})
    assert use["content"][0]["name"] == "tested__add" and "requires_confirmation" not in use
    assert (result["mcp_tool_use_id"], result["mcp_server_name"]) == (use["id"], "tested")
    assert (text_of(result), result["is_error"]) == ("3", False)
    assert result["metadata"] == {"tool_use_id": use["content"][0]["id"]}
    assert "tool_use_id" not in result
    assert "agent.tool_use" not in types(log) and "session.error" not in types(log)
    # The model reads the result as that of the call that it made.
    (_, answer, results) = model.requests[1].messages
    assert answer.content[0]["name"] == "tested__add"
    assert results.content[0]["tool_use_id"] == answer.content[0]["id"]
    assert results.content[0]["content"] == [{"type": "text", "text": "3"}]


async def test_a_tool_that_nobody_named_waits_for_approval_by_event_or_block_id(platform: World) -> None:
    model = ScriptedModel([call(ADDING, ADDING), say("one of two")])
    async with mcp_server() as server:
        session_id = await session_with(platform, server, toolset("tested", None))
        async with platform.runner(model, **LOOPBACK):
            await platform.say(session_id, "add twice")
            log = await platform.until(session_id, "requires_action")
            first, second = of(log, "agent.mcp_tool_use")
            assert first["requires_confirmation"] is True and first["evaluated_permission"] == "ask"
            assert first["confirmation_group_id"] == second["confirmation_group_id"]
            assert first["content"][0]["requires_confirmation"] is True
            assert of(log, "session.status_idle")[-1]["stop_reason"]["event_ids"] == [first["id"], second["id"]]
            assert server.calls == []
            await platform.clients.send(session_id, confirmation(first["id"], "allow"))
            block_id = second["content"][0]["id"]
            await platform.clients.send(session_id, confirmation(block_id, "deny", deny_message="not this"))
            log = await platform.until(session_id)

    results = {event["mcp_tool_use_id"]: event for event in of(log, "agent.mcp_tool_result")}
    assert text_of(results[first["id"]]) == "3"
    assert "not this" in text_of(results[second["id"]]) and results[second["id"]]["is_error"] is True
    assert results[second["id"]]["mcp_server_name"] == "tested"
    assert server.calls == [("add", {"a": 1, "b": 2})]


async def test_an_interrupt_while_calls_wait_gives_them_results_of_their_kind(platform: World) -> None:
    model = ScriptedModel([call(ADDING), say("fine")])
    async with mcp_server() as server:
        session_id = await session_with(platform, server, toolset("tested", None))
        async with platform.runner(model, **LOOPBACK):
            await platform.say(session_id, "add")
            await platform.until(session_id, "requires_action")
            await platform.clients.send(session_id, interrupt())
            log = await platform.until(session_id)

    (result,) = of(log, "agent.mcp_tool_result")
    assert (result["mcp_server_name"], result["is_error"]) == ("tested", True)
    assert "agent.tool_result" not in types(log) and server.calls == []


async def test_configs_decide_what_is_offered_and_how(platform: World) -> None:
    configs = (
        {"name": "add", "enabled": False},
        {"name": "fail", **ALLOWED},
        {"name": "picture", "permission_policy": {"type": "always_ask"}},
    )
    model = ScriptedModel([call(("tested__fail", {"why": "so"}), ADDING), say("done")])
    async with mcp_server() as server:
        session_id = await session_with(platform, server, toolset("tested", {"enabled": True, **ALLOWED}, *configs))
        async with platform.runner(model, **LOOPBACK):
            await platform.say(session_id, "go")
            log = await platform.until(session_id)

    assert "tested__add" not in offered(model) and "tested__fail" in offered(model)
    (use,), (result,) = of(log, "agent.mcp_tool_use"), of(log, "agent.mcp_tool_result")
    assert use["name"] == "fail" and result["is_error"] is True
    # A tool that is not admitted is none.
    (unknown,) = of(log, "agent.tool_use")
    assert (unknown["name"], unknown["evaluated_permission"]) == ("tested__add", "deny")
    assert server.calls == []


async def test_results_of_every_kind_reach_log_and_model(platform: World) -> None:
    names = ("picture", "point", "fail", "flood")
    arguments: dict[str, Any] = {"fail": {"why": "boom"}, "flood": {"count": 60_000}}
    model = ScriptedModel([call(*((f"tested__{name}", arguments.get(name, {})) for name in names)), say("seen")])
    sandboxes = SandboxManager(platform.folder / "sandboxes")
    async with mcp_server() as server:
        session_id = await session_with(platform, server)
        async with platform.runner(model, sandboxes, **LOOPBACK):
            await platform.say(session_id, "go")
            log = await platform.until(session_id)

    picture, point, fail, flood = of(log, "agent.mcp_tool_result")
    assert picture["content"][0]["text"] == "before\n[picture 1]\nafter"
    assert picture["content"][1]["type"] == "image"
    assert picture["content"][1]["source"]["media_type"] == "image/png"
    assert "https://example.com/r.pdf" in text_of(point) and '{"pages":3}' in text_of(point)
    assert fail["is_error"] is True
    spilled = flood["metadata"]["tool_output_overflow"]
    assert spilled["original_chars"] == 60_000 and spilled["path"].startswith("/mnt/session/tool_outputs/")
    assert len(text_of(flood)) < 3000
    results = model.requests[1].messages[-1].content
    assert [block["type"] for block in results[0]["content"]] == ["text", "image"]


async def test_names_that_collide_are_told_apart(platform: World) -> None:
    custom = CUSTOM | {"name": "one__add"}
    async with mcp_server() as first, mcp_server() as second:
        model = ScriptedModel([say("ready")])
        session_id = await platform.session(
            TOOLSET,
            custom,
            toolset("one"),
            toolset("two"),
            mcp_servers=[at(first.url, "one"), at(second.url, "two")],
        )
        async with platform.runner(model, **LOOPBACK):
            await platform.say(session_id, "hello")
            await platform.until(session_id)
            names = offered(model)
            assert len(names) == len(set(names)) and {"one__add", "two__add", "bash"} <= set(names)
            (renamed,) = [name for name in names if name.startswith("one__add_")]
            model.answers = [[], call((renamed, {"a": 1, "b": 1}), ("two__add", {"a": 2, "b": 2})), say("done")]
            await platform.say(session_id, "add")
            log = await platform.until_logged(session_id, "agent.mcp_tool_result", 2)
            await platform.until(session_id)

    told = [(use["mcp_server_name"], use["name"]) for use in of(log, "agent.mcp_tool_use")]
    assert told == [("one", "add"), ("two", "add")]
    assert (first.calls, second.calls) == ([("add", {"a": 1, "b": 1})], [("add", {"a": 2, "b": 2})])


async def test_a_server_that_hangs_is_told_of_and_the_turn_goes_on_without_it(platform: World) -> None:
    async with mcp_server() as server, silent_server() as silent, mcp_server() as listless:
        listless.hang.add("tools/list")
        model = ScriptedModel([call(ADDING), say("done")])
        session_id = await platform.session(
            toolset(),
            toolset("silent"),
            toolset("listless"),
            mcp_servers=[at(server.url), at(silent, "silent"), at(listless.url, "listless")],
        )
        async with platform.runner(model, **LOOPBACK | {"mcp_connect_seconds": 2.0}):
            await platform.say(session_id, "add")
            log = await platform.until(session_id)
            errors = [event["error"] for event in of(log, "session.error")]
            assert sorted(error["mcp_server_name"] for error in errors) == ["listless", "silent"]
            assert {error["type"] for error in errors} == {"mcp_connection_failed_error"}
            assert {error["retry_status"] for error in errors} == {"retryable"}
            assert text_of(of(log, "agent.mcp_tool_result")[0]) == "3"
            assert of(log, "session.status_idle")[-1]["stop_reason"] == {"type": "end_turn"}
            # The next turn tries again, and says again where it did not help.
            listless.hang.clear()
            await platform.say(session_id, "again")
            log = await platform.until_logged(session_id, "session.error", 3)
            await platform.until(session_id)
            assert [event["error"]["mcp_server_name"] for event in of(log, "session.error")][2:] == ["silent"]
            assert "listless__add" in offered(model)


async def test_a_server_that_asks_for_a_credential_is_tried_again_with_the_next_turn(platform: World) -> None:
    async with mcp_server() as server:
        server.tokens = {"secret-of-tests"}
        model = ScriptedModel([say("without")])
        session_id = await session_with(platform, server)
        await give_vault(platform, session_id)
        async with platform.runner(model, **LOOPBACK):
            await platform.say(session_id, "hello")
            log = await platform.until(session_id)
            (error,) = [event["error"] for event in of(log, "session.error")]
            assert (error["type"], error["mcp_server_name"]) == ("mcp_authentication_failed_error", "tested")
            assert offered(model) == []
            platform.injections.tokens[server.url] = "secret-of-tests"
            await platform.say(session_id, "hello again")
            await await_until(lambda: len(model.requests) == 2, message="the second request")
            log = await platform.until(session_id)
            assert len(of(log, "session.error")) == 1 and "tested__add" in offered(model)
            assert "secret-of-tests" not in orjson.dumps(log).decode()
        (_, asked) = platform.injections.asked
        assert (asked.session_id, list(asked.vault_ids), asked.url) == (session_id, ["vlt_1"], server.url)


async def test_a_tool_that_appears_is_offered_with_the_next_request(platform: World) -> None:
    model = ScriptedModel([call(("tested__grow", {})), say("grown"), call(("tested__late", {})), say("done")])
    async with mcp_server() as server:
        session_id = await session_with(platform, server)
        async with platform.runner(model, **LOOPBACK):
            # A first turn, so that the client listens by then.
            model.answers.insert(0, say("hello"))
            await platform.say(session_id, "hello")
            await platform.until(session_id)
            await await_until(lambda: any(e["verb"] == "GET" for e in server.seen), message="the client listens")
            await platform.say(session_id, "grow")
            await await_until(lambda: server.methods().count("tools/list") > 1, message="the tools are read again")
            await platform.until_logged(session_id, "agent.mcp_tool_result")
            await platform.until(session_id)
            await platform.say(session_id, "late")
            log = await platform.until_logged(session_id, "agent.mcp_tool_result", 2)
            await platform.until(session_id)

    assert "tested__late" not in offered(model, 1) and "tested__late" in offered(model, 3)
    assert [use["name"] for use in of(log, "agent.mcp_tool_use")] == ["grow", "late"]


async def test_an_interrupt_stops_the_call_and_tells_the_server(platform: World) -> None:
    model = ScriptedModel([call(("tested__wait", {})), say("stopped")])
    async with mcp_server() as server:
        session_id = await session_with(platform, server)
        async with platform.runner(model, **LOOPBACK):
            await platform.say(session_id, "wait")
            await await_until(lambda: server.calls, message="the call arrives")
            await platform.clients.send(session_id, interrupt())
            log = await platform.until(session_id)
            (result,) = of(log, "agent.mcp_tool_result")
            assert text_of(result).startswith("Interrupted") and result["mcp_server_name"] == "tested"
            assert "session.error" not in types(log)
            await await_until(lambda: server.cancelled, message="the server hears of it")


@pytest.mark.parametrize("sessions_settings", [{"lease_seconds": 2.0}], ids=["short lease"], indirect=True)
async def test_a_call_that_a_crash_cut_off_is_not_made_again(platform: World) -> None:
    async with mcp_server() as server:
        session_id = await session_with(platform, server)
        variables = {"ALLOWED_PRIVATE_HOSTS": "127.0.0.1"}
        async with platform.runner_process(**variables) as process:
            await platform.say(session_id, "TOOL:tested__wait:{}")
            await await_until(lambda: server.calls, timeout=30, message="the call arrives")
            process.kill()
            await process.wait()
        model = ScriptedModel([say("noted")])
        async with platform.runner(model, **LOOPBACK):
            log = await platform.until(session_id, seconds=30)

    (use,), (result,) = of(log, "agent.mcp_tool_use"), of(log, "agent.mcp_tool_result")
    assert result["mcp_tool_use_id"] == use["id"] and result["mcp_server_name"] == "tested"
    assert text_of(result).startswith("work_outcome_unknown") and result["is_error"] is True
    assert server.calls == [("wait", {})]
    # The context is the log's, also for who reads it anew.
    (_, answer, results) = model.requests[0].messages
    assert answer.content[-1]["name"] == "tested__wait"
    assert results.content[0]["tool_use_id"] == answer.content[-1]["id"]


async def test_an_approved_call_runs_at_another_runner(platform: World) -> None:
    async with mcp_server() as server:
        session_id = await session_with(platform, server, toolset("tested", None))
        async with platform.runner(ScriptedModel([call(ADDING)]), **LOOPBACK):
            await platform.say(session_id, "add")
            log = await platform.until(session_id, "requires_action")
        async with platform.runner(ScriptedModel([say("done")]), **LOOPBACK):
            await platform.clients.send(session_id, confirmation(of(log, "agent.mcp_tool_use")[0]["id"], "allow"))
            log = await platform.until(session_id)
    assert text_of(of(log, "agent.mcp_tool_result")[0]) == "3"


async def test_connections_are_kept_between_turns_told_of_and_closed_with_their_session(platform: World) -> None:
    bus = await connect(platform.nats_url, "test")

    async def told(session_id: str) -> list[dict[str, Any]]:
        answer = await bus.request(f"mcp.sessions.{session_id}", b"{}", 2.0)
        return orjson.loads(answer.data)["servers"]

    try:
        async with mcp_server() as server:
            session_id = await session_with(platform, server)
            model = ScriptedModel([call(ADDING), say("one"), call(ADDING), say("two")])
            async with platform.runner(model, **LOOPBACK):
                for text in ("add", "again"):
                    await platform.say(session_id, text)
                    await platform.until(session_id)
                await platform.until_logged(session_id, "agent.mcp_tool_result", 2)
                assert server.methods().count("initialize") == 1
                (status,) = await told(session_id)
                assert (status["name"], status["status"], status["url"]) == ("tested", "connected", server.url)
                assert {"name": "add", "description": "Adds two numbers."} in status["tools"]
                await platform.clients.sessions.DeleteSession(sessions_pb2.DeleteSessionRequest(session_id=session_id))
                await await_until(lambda: server.seen[-1]["verb"] == "DELETE", message="the connection is closed")
    finally:
        await bus.close()


async def test_a_runner_that_no_longer_has_the_session_lets_go_of_its_connections(platform: World) -> None:
    async with mcp_server() as server:
        session_id = await session_with(platform, server)
        async with platform.runner(ScriptedModel([say("one")]), **LOOPBACK) as first:
            await platform.say(session_id, "hello")
            await platform.until(session_id)
            first.claims._draining = True
            first.claims._news.set()
            model = ScriptedModel([say("two")])
            async with platform.runner(model, **LOOPBACK):
                await platform.say(session_id, "hello")
                await await_until(lambda: model.requests, message="the second runner has the turn")
                await platform.until(session_id)

                def ended() -> int:
                    return [entry["verb"] for entry in server.seen].count("DELETE")

                await await_until(lambda: ended() == 1, message="the first one lets go")
                assert not first.servers._held


async def test_a_rotated_secret_is_used_without_another_turn(platform: World) -> None:
    bus = await connect(platform.nats_url, "test")
    try:
        async with mcp_server() as server:
            server.tokens = {"old-of-tests"}
            platform.injections.tokens[server.url] = "old-of-tests"
            session_id = await session_with(platform, server)
            await give_vault(platform, session_id)
            async with platform.runner(ScriptedModel([say("hello")]), **LOOPBACK):
                await platform.say(session_id, "hello")
                await platform.until(session_id)
                server.tokens = {"new-of-tests"}
                platform.injections.tokens[server.url] = "new-of-tests"
                await bus.publish("vault.rotated.wrkspc_default", orjson.dumps({"vault_id": "vlt_other"}))
                await bus.publish("vault.rotated.wrkspc_default", orjson.dumps({"vault_id": "vlt_1"}))

                def came_back() -> bool:
                    return any(e["method"] == "tools/list" and e["token"] == "new-of-tests" for e in server.seen)

                await await_until(came_back, message="the connection is made anew")
                assert server.methods().count("initialize") == 2
    finally:
        await bus.close()


async def test_a_thread_has_its_own_servers_with_the_vaults_of_its_session(platform: World) -> None:
    async with mcp_server() as server:
        server.tokens = {"shared-of-tests"}
        platform.injections.tokens[server.url] = "shared-of-tests"
        writer = {
            "name": "writer",
            "model": "default",
            "system": "Write.",
            "tools": [toolset()],
            "mcp_servers": [at(server.url)],
        }
        member = await platform.agent(writer)
        session_id = await platform.session(multiagent={"type": "coordinator", "agents": [member]})
        await give_vault(platform, session_id)
        inner = 'TOOL:tested__add:{"a": 4, "b": 5}'
        started = orjson.dumps({"agent": "writer", "message": inner}).decode()
        async with platform.runner(**LOOPBACK):
            await platform.say(session_id, f"TOOL:start_thread:{started}")
            log = await platform.until(session_id, seconds=20)

    assert server.calls == [("add", {"a": 4, "b": 5})]
    assert platform.injections.asked[0].session_id == session_id
    # What a thread does is in its own log.
    assert "agent.mcp_tool_use" not in types(log)


async def test_a_thread_that_asks_is_answered_through_its_session(platform: World) -> None:
    async with mcp_server() as server:
        writer = {"name": "writer", "model": "default", "system": "Write.", "tools": [toolset("tested", None)]}
        member = await platform.agent(writer | {"mcp_servers": [at(server.url)]})
        session_id = await platform.session(multiagent={"type": "coordinator", "agents": [member]})
        inner = 'TOOL:tested__add:{"a": 4, "b": 5}'
        started = orjson.dumps({"agent": "writer", "message": inner}).decode()
        async with platform.runner(**LOOPBACK):
            await platform.say(session_id, f"TOOL:start_thread:{started}")
            log = await platform.until(session_id, "requires_action", seconds=20)
            (posted,) = of(log, "agent.mcp_tool_use")
            assert (posted["name"], posted["mcp_server_name"]) == ("add", "tested") and posted["session_thread_id"]
            assert of(log, "session.status_idle")[-1]["stop_reason"]["event_ids"] == [posted["id"]]
            assert server.calls == []
            await platform.clients.send(session_id, confirmation(posted["id"], "allow"))
            await platform.until(session_id, seconds=20)
    assert server.calls == [("add", {"a": 4, "b": 5})]


@pytest.mark.parametrize("policy", [None, ALLOWED])
async def test_a_session_that_changes_its_servers_uses_the_new_ones(platform: World, policy: Any) -> None:
    async with mcp_server() as first, mcp_server() as second:
        session_id = await session_with(platform, first)
        model = ScriptedModel([say("one"), say("two")])
        async with platform.runner(model, **LOOPBACK):
            await platform.say(session_id, "hello")
            await platform.until(session_id)
            agent = {"tools": [toolset("other", policy)], "mcp_servers": [at(second.url, "other")]}
            request = sessions_pb2.UpdateSessionRequest(
                session_id=session_id, patch_json=orjson.dumps({"agent": agent})
            )
            await platform.clients.sessions.UpdateSession(request)
            await platform.say(session_id, "hello")
            await await_until(lambda: len(model.requests) == 2, message="the second request")
            await platform.until(session_id)
    assert "other__add" in offered(model) and "tested__add" not in offered(model)
    assert first.seen[-1]["verb"] == "DELETE"


async def test_a_turn_without_servers_loads_nothing_of_the_protocol() -> None:
    program = "import sys, services.worker.runner.app; print([m for m in sys.modules if m.split('.')[0] == 'mcp'])"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.strip() == b"[]"


async def give_vault(platform: World, session_id: str) -> None:
    """As if the session had been created with the vault."""
    async with await psycopg.AsyncConnection.connect(platform.database_url, autocommit=True) as connection:
        await connection.execute(
            "UPDATE sessions.sessions SET vault_ids = %s, revision = revision + 1 WHERE id = %s",
            ('["vlt_1"]', session_id),
        )
