"""Plain turns, tool turns and parked turns leave the log that clients are promised."""

from kit.testing import await_until
from services.worker.tools import ToolOutcome
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.runner.played import (
    ASKING,
    CUSTOM,
    TOOLSET,
    Gate,
    PlayedSandboxes,
    ScriptedModel,
    call,
    say,
    wait_at,
)


async def test_a_plain_turn_is_one_append_in_the_promised_order(platform: World) -> None:
    session = await platform.session()
    async with platform.runner():
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
    assert [event["seq"] for event in log] == list(range(1, 10))
    message, end = log[4], log[5]
    assert "demo model" in text_of(message)
    assert message["model_used"] == "demo" and message["stop_reason"] == "end_turn"
    assert message["created_at"] == log[8]["created_at"]
    assert end["model_request_start_id"] == log[3]["id"] and end["is_error"] is False
    assert log[7]["usage"]["output_tokens"] == end["model_usage"]["output_tokens"] == message["tokens_out"]


async def test_tools_run_after_their_calls_are_stored(platform: World) -> None:
    session = await platform.session(TOOLSET)
    seen: list[list[str]] = []

    async def run(name: str, value: object) -> ToolOutcome:
        seen.append(types(await platform.clients.log(session)))
        return ToolOutcome(f"{name} says hi", overflow={"path": "/mnt/x"} if name == "read" else None)

    sandboxes = PlayedSandboxes(run)
    model = ScriptedModel([call(("bash", {"command": "ls"}), ("read", {"file_path": "a"})), say("done")])
    async with platform.runner(model, sandboxes):
        await platform.say(session, "go")
        log = await platform.until(session)
    assert sandboxes.calls == [("bash", {"command": "ls"}), ("read", {"file_path": "a"})]
    assert seen[0].count("agent.tool_use") == 2
    use, result = of(log, "agent.tool_use"), of(log, "agent.tool_result")
    assert [event["evaluated_permission"] for event in use] == ["allow", "allow"]
    assert use[0]["evaluation"] == {"type": "always_allow"}
    assert result[0]["tool_use_id"] == use[0]["id"]
    assert result[0]["metadata"] == {"tool_use_id": use[0]["content"][0]["id"]}
    assert result[1]["metadata"]["tool_output_overflow"] == {"path": "/mnt/x"}
    answered = model.requests[1].messages[-1].content
    assert [block["tool_use_id"] for block in answered] == [event["content"][0]["id"] for event in use]
    names = [tool.name for tool in model.requests[0].tools]
    assert names == ["bash", "read", "write", "edit", "glob", "grep", "web_fetch"]
    assert "/mnt/session/outputs" in model.requests[0].system


async def test_a_second_turn_continues_the_same_context(platform: World) -> None:
    session = await platform.session()
    model = ScriptedModel([say("first"), say("second"), say("third")])
    async with platform.runner(model):
        for text in ("one", "two", "three"):
            await platform.say(session, text)
            await platform.until(session)
    said = [(message.role, message.content[0]["text"]) for message in model.requests[2].messages]
    assert said == [
        ("user", "one"),
        ("assistant", "first"),
        ("user", "two"),
        ("assistant", "second"),
        ("user", "three"),
    ]


async def test_custom_and_gated_calls_park_and_resume(platform: World) -> None:
    session = await platform.session(ASKING, CUSTOM)
    model = ScriptedModel(
        [call(("bash", {"command": "rm x"}), ("lookup", {"name": "Ada"}), ("write", {"file_path": "y"})), say("ok")]
    )
    sandboxes = PlayedSandboxes()
    async with platform.runner(model, sandboxes):
        await platform.say(session, "go")
        log = await platform.until(session, "requires_action")
        bash, write = of(log, "agent.tool_use")
        (lookup,) = of(log, "agent.custom_tool_use")
        assert bash["confirmation_group_id"] == write["content"][0]["confirmation_group_id"]
        assert bash["requires_confirmation"] and bash["evaluated_permission"] == "ask"
        assert log[-1]["stop_reason"]["event_ids"] == [bash["id"], lookup["id"], write["id"]]
        assert sandboxes.calls == []
        answer = {"type": "user.custom_tool_result", "custom_tool_use_id": lookup["id"], "content": "Lovelace"}
        await platform.clients.send(session, answer)
        allow = {"type": "user.tool_confirmation", "tool_use_id": bash["id"], "result": "allow"}
        deny = {"type": "user.tool_confirmation", "tool_use_id": write["id"], "result": "deny", "deny_message": "not y"}
        await platform.clients.send(session, allow, deny)
        log = await platform.until(session, "idle")
    assert sandboxes.calls == [("bash", {"command": "rm x"})]
    results = {event["tool_use_id"]: event for event in of(log, "agent.tool_result")}
    assert text_of(results[bash["id"]]) == "ran bash"
    assert results[write["id"]]["is_error"] and "not y" in text_of(results[write["id"]])
    told = [block["content"][0]["text"] for block in model.requests[1].messages[-1].content]
    assert told[1] == "Lovelace" and len(told) == 3


async def test_input_during_a_tool_is_read_by_the_next_request(platform: World) -> None:
    session = await platform.session(TOOLSET)
    gate = Gate()
    model = ScriptedModel([call(("bash", {"command": "slow"})), say("read both")])
    async with platform.runner(model, PlayedSandboxes(gate)) as runner:
        await platform.say(session, "go")
        await gate.reached.wait()
        await platform.say(session, "and this")
        # A tool this quick asks for new input only where it was told of some, and that message has a way to go.
        await await_until(lambda: all(turn._news for turn, _ in runner.claims._held.values()))
        gate.opened.set()
        log = await platform.until(session)
    last = model.requests[1].messages[-1]
    assert [block["type"] for block in last.content] == ["tool_result", "text"]
    assert last.content[1]["text"] == "and this"
    assert all(event["processed_at"] for event in log)
    assert len(model.requests) == 2


async def test_input_while_the_model_speaks_gets_an_answer_of_its_own(platform: World) -> None:
    session = await platform.session()
    gate = Gate()
    model = ScriptedModel([[wait_at(gate), *say("first")], say("second")])
    async with platform.runner(model):
        await platform.say(session, "one")
        await gate.reached.wait()
        await platform.say(session, "two")
        gate.opened.set()
        log = await platform.until(session)
    assert types(log).count("session.status_idle") == 1
    said = [(message.role, message.content[0]["text"]) for message in model.requests[1].messages]
    assert said == [("user", "one"), ("assistant", "first"), ("user", "two")]
    # The log tells the same story to a runner that has never seen the session.
    after = ScriptedModel([say("third")])
    async with platform.runner(after):
        await platform.say(session, "three")
        await platform.until(session)
    said = [(message.role, message.content[0]["text"]) for message in after.requests[0].messages]
    assert said == [
        ("user", "one"),
        ("assistant", "first"),
        ("user", "two"),
        ("assistant", "second"),
        ("user", "three"),
    ]


async def test_too_many_steps_end_the_turn_with_an_error(platform: World) -> None:
    platform.vault.answer.options_json = b'{"default_max_steps": 2}'
    session = await platform.session(TOOLSET)
    async with platform.runner(ScriptedModel([call(("bash", {"command": "again"}))])):
        await platform.say(session, "loop")
        log = await platform.until(session)
    (error,) = of(log, "session.error")
    assert error["error"]["type"] == "tool_use_limit_reached_error"
    assert len(of(log, "span.model_request_start")) == 2


async def test_an_unknown_tool_is_answered_and_the_turn_goes_on(platform: World) -> None:
    session = await platform.session(
        {
            "type": "agent_toolset_20260401",
            "default_config": {"enabled": False},
            "configs": [{"name": "read", "enabled": True}],
        }
    )
    sandboxes = PlayedSandboxes()
    model = ScriptedModel([call(("bash", {"command": "ls"})), say("sorry")])
    async with platform.runner(model, sandboxes):
        await platform.say(session, "go")
        log = await platform.until(session)
    assert sandboxes.calls == []
    assert of(log, "agent.tool_use")[0]["evaluated_permission"] == "deny"
    assert "The tools are: read" in text_of(of(log, "agent.tool_result")[0])
    assert text_of(of(log, "agent.message")[0]) == "sorry"
