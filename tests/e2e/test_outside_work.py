"""Sessions whose tools run on an operator's machine, with the real worker program: the same results, and real ends."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.testing import await_until
from tests.support.api import Api, api, message, tool
from tests.support.platform import Platform

INTERRUPT = {"type": "user.interrupt"}
# The same calls in a sandbox and on a worker's machine; `/workspace` is what both call their folder.
CALLS = (
    ("write", {"file_path": "notes/a.md", "content": "# one\ntwo\nthree\n"}),
    ("edit", {"file_path": "notes/a.md", "old_string": "two", "new_string": "2"}),
    ("edit", {"file_path": "notes/a.md", "old_string": "nowhere", "new_string": "x"}),
    ("read", {"file_path": "notes/a.md"}),
    ("read", {"file_path": "/workspace/notes/a.md", "view_range": [2, 2]}),
    ("bash", {"command": "cat notes/a.md && echo ok"}),
    ("bash", {"command": "(exit 3)"}),
    ("bash", {"command": "true"}),
    ("bash", {"command": "seq 1 20000", "timeout_ms": 20000}),
    ("grep", {"pattern": "nothing like it"}),
    ("glob", {"pattern": "*.none"}),
)


class Machine:
    """One machine of an operator, with its worker."""

    def __init__(self, client: Api, environment_id: str, folder: Path) -> None:
        self.client = client
        self.environment_id = environment_id
        self.folder = folder

    async def session(self) -> str:
        """One whose tools run here."""
        return await self.client.session(await self.client.agent(), environment_id=self.environment_id)


@pytest.fixture
async def machine(platform: Platform, tmp_path: Path) -> AsyncIterator[Machine]:
    async with api(platform.url) as client:
        body = {"name": "operator", "hosting_type": "self_hosted"}
        environment_id = (await client.call("POST", "/v1/environments", body))["id"]
        key = await client.call("POST", f"/v1/environments/{environment_id}/worker-keys", {"name": "machine"})
        program = Path(sys.executable).with_name("managed-agents")
        options = ("--environment-id", environment_id, "--workdir", str(tmp_path), "--url", platform.url)
        process = await asyncio.create_subprocess_exec(
            str(program),
            *("worker", "poll", *options, "--heartbeat-ms", "200", "--sandbox", "none"),
            env={**os.environ, "MANAGED_AGENTS_ENVIRONMENT_KEY": key["secret_key"]},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield Machine(client, environment_id, tmp_path)
        finally:
            process.terminate()
            await process.wait()


async def play(client: Api, session_id: str, *calls: tuple[str, dict]) -> list[tuple[str, bool]]:
    """What the calls came to, one turn for each."""
    for number, (name, arguments) in enumerate(calls, 1):
        await client.send(session_id, message(tool(name, **arguments)))
        await until(client, session_id, "session.status_idle", number)
    return [
        (event["content"][0]["text"], event["is_error"])
        for event in await client.log(session_id)
        if event["type"] == "agent.tool_result"
    ]


async def until(client: Api, session_id: str, event_type: str, count: int = 1) -> None:
    async def there() -> bool:
        return sum(event["type"] == event_type for event in await client.log(session_id)) >= count

    await await_until(there, timeout=30, message=f"{count} {event_type}")


async def test_a_worker_s_machine_gives_the_results_of_a_sandbox(machine: Machine) -> None:
    client = machine.client
    sandbox = await client.session(await client.agent())
    here, there = await asyncio.gather(play(client, sandbox, *CALLS), play(client, await machine.session(), *CALLS))
    # The file for what is too long lies elsewhere, and is named after the call.
    assert [_without_place(each) for each in there] == [_without_place(each) for each in here]
    assert (machine.folder / "notes/a.md").read_text() == "# one\n2\nthree\n"
    assert len(list((machine.folder / ".managed-agents/tool_outputs").iterdir())) == 1


def _without_place(result: tuple[str, bool]) -> tuple[str, bool]:
    lines = [line for line in result[0].splitlines() if not line.startswith("file: ")]
    return "\n".join(lines), result[1]


@pytest.mark.parametrize("end", ["interrupt", "delete"])
async def test_what_nobody_wants_any_more_is_stopped_on_the_machine(machine: Machine, end: str) -> None:
    client, session_id = machine.client, await machine.session()
    command = f"echo $$ > {machine.folder}/pid; sleep 600"
    await client.send(session_id, message(tool("bash", command=command)))
    pid = await await_until(lambda: _pid(machine.folder / "pid"), timeout=30, message="the command runs")
    if end == "interrupt":
        await client.send(session_id, INTERRUPT)
        await until(client, session_id, "session.status_idle")
    else:
        await client.call("DELETE", f"/v1/sessions/{session_id}")
    await await_until(lambda: not Path(f"/proc/{pid}").exists(), timeout=20, message="the command is gone")
    await await_until(lambda: _all_ended(machine), timeout=20, message="the item has ended")
    if end == "interrupt":
        (result,) = [event for event in await client.log(session_id) if event["type"] == "agent.tool_result"]
        assert result["is_error"] and result["content"][0]["text"].startswith("Interrupted by the user.")
        assert (await play_again(client, session_id)) == ("later", False)


async def play_again(client: Api, session_id: str) -> tuple[str, bool]:
    """A session that was interrupted works on."""
    await client.send(session_id, message(tool("bash", command="echo later")))
    await until(client, session_id, "session.status_idle", 2)
    event = [event for event in await client.log(session_id) if event["type"] == "agent.tool_result"][-1]
    return event["content"][0]["text"], event["is_error"]


def _pid(file: Path) -> int | None:
    text = file.read_text().strip() if file.exists() else ""
    return int(text) if text else None


async def _all_ended(machine: Machine) -> bool:
    path = f"/v1/environments/{machine.environment_id}/work-items"
    counts = (await machine.client.call("GET", path))["status_counts"]
    return counts["pending"] == counts["claimed"] == 0


async def test_it_is_told_among_the_capabilities(machine: Machine) -> None:
    capabilities = (await machine.client.call("GET", "/v1/x/capabilities"))["capabilities"]
    assert {"id": "self_hosted", "kind": "sandbox_provider", "status": "available"} in capabilities
