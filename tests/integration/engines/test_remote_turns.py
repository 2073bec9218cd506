"""Turns that an outside agent runs: what it is sent, what the log says of its answers, and how calls are run for it."""

from typing import Any

from services.worker.tools import ToolOutcome
from tests.integration.engines.sessions import remote_session, runner
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.runner.played import ASKING, CUSTOM, TOOLSET, PlayedSandboxes
from tests.support.http_agent import Answer, calls, http_agent, reply
from tests.support.mcp_server import mcp_server


async def test_a_plain_turn_is_one_step_and_leaves_the_log_of_any_turn(platform: World) -> None:
    async with http_agent(reply("Hi."), reply("Bye.")) as agent, runner(platform):
        session = await remote_session(platform, agent)
        await platform.say(session, "hello there")
        log = await platform.until(session)
        assert types(log) == [
            "user.message",
            "session.status_running",
            "session.thread_status_running",
            "span.model_request_start",
            "agent.message",
            "span.model_request_end",
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
        ]
        assert text_of(log[4]) == "Hi." and log[4]["stop_reason"] == "end_turn"
        assert agent.steps == [
            {"session_id": session, "step": 1, "system": "Be brief.", "tools": [], "message": "hello there"}
        ]
        sent = agent.headers[0]
        assert sent["content-type"] == "application/json" and sent["idempotency-key"] == f"{session}:1"
        await platform.say(session, "and now?")
        await platform.until_logged(session, "session.status_idle", 2)
        assert agent.steps[1] == agent.steps[0] | {"step": 2, "message": "and now?"}


async def test_no_tokens_and_no_costs_are_made_up(platform: World) -> None:
    async with http_agent(reply("Hi.")) as agent, runner(platform):
        session = await remote_session(platform, agent)
        await platform.say(session, "hello")
        log = await platform.until(session)
        assert set(of(log, "span.model_request_end")[0]["model_usage"].values()) == {0}
        assert of(log, "session.usage")[0]["usage"]["output_tokens"] == 0
        message = of(log, "agent.message")[0]
        assert not message.keys() & {"model_used", "tokens_in", "tokens_out"}


async def test_calls_run_in_order_and_all_results_go_back_in_one_request(platform: World) -> None:
    async def run(name: str, value: Any) -> ToolOutcome:
        return ToolOutcome(f"{name} failed", is_error=True) if name == "read" else ToolOutcome(f"{name} says hi")

    sandboxes = PlayedSandboxes(run)
    asked = calls(("c1", "bash", {"command": "ls"}), ("c2", "read", {"file_path": "a"}), ("c3", "bash", {}))
    async with http_agent(asked, reply("Done.")) as agent, runner(platform, None, sandboxes):
        session = await remote_session(platform, agent, TOOLSET)
        await platform.say(session, "go")
        log = await platform.until(session)
        assert sandboxes.calls == [("bash", {"command": "ls"}), ("read", {"file_path": "a"}), ("bash", {})]
        assert agent.steps[1]["tool_results"] == [
            {"id": "c1", "ok": True, "result": "bash says hi"},
            {"id": "c2", "ok": False, "error": "read failed"},
            {"id": "c3", "ok": True, "result": "bash says hi"},
        ]
        assert "message" not in agent.steps[1] and "tool_results" not in agent.steps[0]
        assert [step["step"] for step in agent.steps] == [1, 2]
        tools = agent.steps[0]["tools"]
        assert [tool["name"] for tool in tools][:2] == ["bash", "read"]
        assert all(tool.keys() == {"name", "description", "input_schema"} for tool in tools)
        assert [event["content"][0]["id"] for event in of(log, "agent.tool_use")] == ["c1", "c2", "c3"]
        assert [text_of(event) for event in of(log, "agent.message")] == ["Done."]


async def test_tools_of_a_server_are_offered_and_run_as_in_any_turn(platform: World) -> None:
    asked = calls(("c1", "tested__add", {"a": 1, "b": 2}))
    toolset = {
        "type": "mcp_toolset",
        "mcp_server_name": "tested",
        "default_config": {"permission_policy": {"type": "always_allow"}},
    }
    async with http_agent(asked, reply("Three.")) as agent, mcp_server() as server, runner(platform):
        servers = [{"type": "url", "name": "tested", "url": server.url}]
        session = await remote_session(platform, agent, toolset, mcp_servers=servers)
        await platform.say(session, "add")
        log = await platform.until(session)
        assert "tested__add" in [tool["name"] for tool in agent.steps[0]["tools"]]
        assert agent.steps[1]["tool_results"] == [{"id": "c1", "ok": True, "result": "3"}]
        assert server.calls == [("add", {"a": 1, "b": 2})]
        assert [event["mcp_server_name"] for event in of(log, "agent.mcp_tool_use")] == ["tested"]


async def test_a_reply_ends_the_turn_whatever_else_the_answer_has(platform: World) -> None:
    both = reply("Done.", tool_calls=[{"id": "c1", "name": "bash", "arguments": "not looked at"}], more=1)
    async with http_agent(both) as agent, runner(platform):
        session = await remote_session(platform, agent, TOOLSET)
        await platform.say(session, "go")
        log = await platform.until(session)
        assert text_of(of(log, "agent.message")[0]) == "Done."
        assert not of(log, "agent.tool_use") and len(agent.steps) == 1


async def test_an_unknown_tool_is_answered_and_nothing_is_run(platform: World) -> None:
    sandboxes = PlayedSandboxes()
    async with http_agent(calls(("c1", "launch", {})), reply("Sorry.")) as agent, runner(platform, None, sandboxes):
        session = await remote_session(platform, agent, TOOLSET)
        await platform.say(session, "go")
        log = await platform.until(session)
        (result,) = agent.steps[1]["tool_results"]
        assert (result["id"], result["ok"]) == ("c1", False) and "no tool 'launch'" in result["error"]
        assert sandboxes.calls == [] and not of(log, "session.error")


async def test_a_custom_tool_waits_for_the_client_and_its_json_goes_on_as_what_it_means(platform: World) -> None:
    asked = calls(("c1", "lookup", {"name": "x"}), ("c2", "lookup", {"name": "y"}), ("c3", "lookup", {"name": "z"}))
    async with http_agent(asked, reply("Done.")) as agent, runner(platform):
        session = await remote_session(platform, agent, CUSTOM)
        await platform.say(session, "go")
        log = await platform.until(session, "requires_action")
        uses = of(log, "agent.custom_tool_use")
        assert len(agent.steps) == 1
        answers = (('{"row": 1}', False), ("12 pounds", False), ("Load L-1003 is not available", True))
        for use, (text, is_error) in zip(uses, answers, strict=True):
            content = [{"type": "text", "text": text}]
            event = {"type": "user.custom_tool_result", "custom_tool_use_id": use["id"], "content": content}
            await platform.clients.send(session, event | {"is_error": is_error})
        await platform.until(session)
        assert agent.steps[1]["tool_results"] == [
            {"id": "c1", "ok": True, "result": {"row": 1}},
            {"id": "c2", "ok": True, "result": "12 pounds"},
            {"id": "c3", "ok": False, "error": "Load L-1003 is not available"},
        ]


async def test_a_call_waits_for_its_confirmation(platform: World) -> None:
    sandboxes = PlayedSandboxes()
    asked = calls(("c1", "bash", {"command": "ls"}), ("c2", "bash", {"command": "rm x"}))
    async with http_agent(asked, reply("Done.")) as agent, runner(platform, None, sandboxes):
        session = await remote_session(platform, agent, ASKING)
        await platform.say(session, "go")
        log = await platform.until(session, "requires_action")
        first, second = of(log, "agent.tool_use")
        assert sandboxes.calls == [] and first["evaluated_permission"] == "ask"
        allow = {"type": "user.tool_confirmation", "tool_use_id": first["id"], "result": "allow"}
        deny = {"type": "user.tool_confirmation", "tool_use_id": second["id"], "result": "deny"}
        await platform.clients.send(session, allow, deny | {"deny_message": "not today"})
        await platform.until(session)
        allowed, denied = agent.steps[1]["tool_results"]
        assert allowed == {"id": "c1", "ok": True, "result": "ran bash"}
        assert denied["ok"] is False and "not today" in denied["error"]
        assert sandboxes.calls == [("bash", {"command": "ls"})]


class TestRounds:
    async def test_sixteen_are_executed_and_the_answer_that_asks_for_one_more_ends_the_turn(
        self, platform: World
    ) -> None:
        sandboxes = PlayedSandboxes()
        async with http_agent(calls(("c1", "bash", {}))) as agent, runner(platform, None, sandboxes):
            session = await remote_session(platform, agent, TOOLSET)
            await platform.say(session, "go")
            log = await platform.until(session, seconds=30)
            assert len(sandboxes.calls) == 16 and len(agent.steps) == 17
            assert len(of(log, "agent.tool_use")) == 16
            assert text_of(of(log, "agent.message")[-1]) == "[agent exceeded its step budget for this turn]"
            assert log[-1]["stop_reason"]["type"] == "end_turn" and not of(log, "session.error")

    async def test_each_turn_has_its_own_and_waiting_for_a_client_does_not_begin_a_new_one(
        self, platform: World
    ) -> None:
        def plan(step: dict[str, Any]) -> Answer:
            return calls((f"c{step['step']}", "lookup", {"name": "x"}))

        async with http_agent(plan=plan) as agent, runner(platform):
            session = await remote_session(platform, agent, CUSTOM, options={"max_rounds": 2})
            for turn in (1, 2):
                await platform.say(session, "go")
                for round_ in (1, 2):
                    log = await platform.until_logged(session, "agent.custom_tool_use", 2 * (turn - 1) + round_)
                    log = await platform.until(session, "requires_action")
                    use = of(log, "agent.custom_tool_use")[-1]
                    await platform.clients.send(
                        session, {"type": "user.custom_tool_result", "custom_tool_use_id": use["id"], "content": "42"}
                    )
                log = await platform.until(session)
                assert len(agent.steps) == 3 * turn
                assert "step budget" in text_of(of(log, "agent.message")[-1])
