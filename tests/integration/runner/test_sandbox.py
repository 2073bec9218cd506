"""The demo model does real work through the real tools in the real sandbox of this host."""

from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.runner.played import TOOLSET


async def test_a_task_is_done_with_files_and_commands(platform: World) -> None:
    session = await platform.session(TOOLSET)
    async with platform.runner(sandboxes=SandboxManager(platform.folder / "sandboxes")):
        await platform.say(session, "Write a small script that prints the first ten primes, run it, read the result.")
        log = await platform.until(session, seconds=30)
    failures = [text_of(event) for event in of(log, "agent.tool_result") if event["is_error"]]
    assert failures == []
    assert [event["name"] for event in of(log, "agent.tool_use")] == ["write", "bash", "read"]
    assert "29" in text_of(of(log, "agent.message")[-1])


async def test_an_interrupt_ends_a_command_for_good(platform: World) -> None:
    session = await platform.session(TOOLSET)
    manager = SandboxManager(platform.folder / "sandboxes")
    async with platform.runner(sandboxes=manager):
        await platform.say(session, 'TOOL:bash:{"command": "echo $$ > started; sleep 600 & sleep 600"}')
        await platform.until_logged(session, "agent.tool_use")
        await platform.clients.send(session, {"type": "user.interrupt"})
        log = await platform.until(session)
        assert of(log, "agent.tool_result")[0]["is_error"]
        await platform.say(session, 'TOOL:bash:{"command": "ps ax | grep -c \'[s]leep 600\' || true"}')
        log = await platform.until(session)
    assert text_of(of(log, "agent.tool_result")[1]).strip().startswith("0")
    assert types(log)[-1] == "session.status_idle"
