"""The fleet program at a whole platform: agents act on an operator's machine, in both protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.testing import await_until
from services.worker.fleet.errors import AccessRefused
from services.worker.fleet.options import Options
from tests.integration.fleet.harness import Fleet, started
from tests.support.api import TOOLS, Api, Event, api, message, tool
from tests.support.platform import Platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SHAPES: dict[str, dict[str, Any]] = {
    "tool": {"hosting_type": "self_hosted"},
    "session": {"config": {"type": "self_hosted"}},
}
EVERY_TOOL = " ".join(
    (
        tool("write", file_path="src/a.py", content="one = 1\n"),
        tool("edit", file_path="src/a.py", old_string="1", new_string="22"),
        tool("bash", command="cat src/a.py; echo oops >&2; (exit 3)"),
        tool("read", file_path="src/a.py"),
        tool("glob", pattern="**/*.py"),
        tool("grep", pattern="one"),
        tool("read", file_path="../../../../etc/passwd"),
    )
)


class Ground:
    """An environment of one protocol, and workers for it."""

    def __init__(self, client: Api, platform: Platform, environment: str, key: Event, workdir: Path) -> None:
        self.client, self.platform, self.environment, self.workdir = client, platform, environment, workdir
        self.key_id, self._key = key["id"], key["secret_key"]

    def worker(self, **changed: Any) -> Any:
        """One that works until the end of its block."""
        usual: dict[str, Any] = {"worker_id": "worker_e2e", "max_idle_seconds": 0.5, "interval_seconds": 0.05}
        usual["sandbox"] = "none"
        options = Options(
            **{"url": self.platform.url, "workdir": self.workdir, "environment_id": self.environment} | usual | changed
        )
        return started(Fleet(options, {}, self._key))

    async def ask(self, text: str, **agent: Any) -> str:
        """A session of an agent that was told something; its id."""
        session = await self.client.session(await self.client.agent(**agent), environment_id=self.environment)
        await self.client.send(session, message(text))
        return session

    async def until_over(self, session: str) -> list[Event]:
        """The log, once the turn is over."""
        await await_until(lambda: self._is_over(session), timeout=60)
        return await self.client.log(session)

    async def _is_over(self, session: str) -> bool:
        ends = of(await self.client.log(session), "session.status_idle")
        return bool(ends) and ends[-1]["stop_reason"]["type"] != "requires_action"


def of(log: list[Event], *types: str) -> list[Event]:
    """Events of these types."""
    return [event for event in log if event["type"] in types]


def told(log: list[Event]) -> list[str]:
    """What tools said, whoever ran them."""
    results = of(log, "agent.tool_result", "user.tool_result")
    return ["".join(block["text"] for block in result["content"]) for result in results]


@asynccontextmanager
async def ground_at(platform: Platform, workdir: Path, protocol: str) -> AsyncIterator[Ground]:
    async with api(platform.url, timeout=60) as client:
        made = await client.call("POST", "/v1/environments", {"name": "machines", **SHAPES[protocol]})
        key = await client.call("POST", f"/v1/environments/{made['id']}/worker-keys", {"name": "fleet"})
        yield Ground(client, platform, made["id"], key, workdir)


@pytest.fixture(params=["tool", "session"])
async def ground(request: pytest.FixtureRequest, platform: Platform, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground_at(platform, tmp_path, request.param) as ground:
        yield ground


async def test_every_tool_works_on_the_operators_machine(ground: Ground) -> None:
    session = await ground.ask(EVERY_TOOL)
    async with ground.worker(sandbox="auto"):
        texts = told(await ground.until_over(session))
    assert "src/a.py" in texts[0] and texts[3] == "one = 22\n"
    assert "one = 22" in texts[2] and "oops" in texts[2] and "exit code: 3" in texts[2]
    assert "a.py" in texts[4] and "one = 22" in texts[5] and "root:" not in texts[6]
    assert any(each.read_text() == "one = 22\n" for each in ground.workdir.rglob("a.py"))


async def test_what_needs_leave_is_not_run_before_it_is_given(ground: Ground) -> None:
    asking = [{**TOOLS[0], "default_config": {"permission_policy": {"type": "always_ask"}}}]
    async with ground.worker() as worker:
        session = await ground.ask(tool("bash", command="touch given; echo done"), tools=asking)
        (idle,) = await await_until(lambda: _parked(ground, session), timeout=30)
        assert not list(ground.workdir.rglob("given"))
        (call,) = idle["stop_reason"]["event_ids"]
        await ground.client.send(session, {"type": "user.tool_confirmation", "tool_use_id": call, "result": "allow"})
        assert told(await ground.until_over(session)) == ["done"]
        denied = await ground.ask(tool("bash", command="touch denied"), tools=asking)
        (idle,) = await await_until(lambda: _parked(ground, denied), timeout=30)
        (call,) = idle["stop_reason"]["event_ids"]
        await ground.client.send(denied, {"type": "user.tool_confirmation", "tool_use_id": call, "result": "deny"})
        await ground.until_over(denied)
        assert not list(ground.workdir.rglob("denied"))
        assert not [line for line in worker.lines if line["level"] == "error"]


async def _parked(ground: Ground, session: str) -> list[Event]:
    return of(await ground.client.log(session), "session.status_idle")[-1:]


async def test_an_interrupt_ends_the_command_on_the_machine(ground: Ground) -> None:
    async with ground.worker(heartbeat_seconds=0.3):
        session = await ground.ask(tool("bash", command="touch began; sleep 600; touch late"))
        await await_until(lambda: bool(list(ground.workdir.rglob("began"))), timeout=30)
        await ground.client.send(session, {"type": "user.interrupt"})
        await ground.until_over(session)
        # The worker is free for the next one.
        following = await ground.ask(tool("bash", command="echo next"))
        assert told(await ground.until_over(following)) == ["next"]
        assert not list(ground.workdir.rglob("late"))


async def test_a_message_to_a_session_that_rests_brings_it_back(ground: Ground) -> None:
    async with ground.worker():
        session = await ground.ask(tool("bash", command="echo one > kept.txt"))
        await ground.until_over(session)
        for number in range(3):
            await ground.client.send(session, message(tool("bash", command=f"cat kept.txt; echo {number}")))
            await await_until(lambda number=number: _said(ground, session, f"one\n{number}"), timeout=30)


async def _said(ground: Ground, session: str, text: str) -> bool:
    return told(await ground.client.log(session))[-1:] == [text]


async def test_a_revoked_key_ends_the_worker(ground: Ground) -> None:
    async with ground.worker() as worker:
        await await_until(lambda: bool(worker.heard("ready")), timeout=30)
        await ground.client.call(
            "POST", f"/v1/environments/{ground.environment}/worker-keys/{ground.key_id}/revoke", {}
        )
        with pytest.raises(AccessRefused):
            await worker.task


async def test_several_workers_share_the_work(ground: Ground) -> None:
    async with ground.worker(worker_id="one", concurrency=2), ground.worker(worker_id="two", concurrency=2):
        sessions = [await ground.ask(tool("bash", command=f"echo {n} >> ran{n}.txt")) for n in range(4)]
        for session in sessions:
            assert told(await ground.until_over(session)) == ["(no output)"]
    assert sorted(each.read_text() for each in ground.workdir.rglob("ran*.txt")) == [f"{n}\n" for n in range(4)]


async def test_memory_and_skills_come_to_the_machine(platform: Platform, tmp_path: Path) -> None:
    async with ground_at(platform, tmp_path, "session") as ground:
        client = ground.client
        store = await client.call("POST", "/v1/memory_stores", {"name": "Notes"})
        memories = f"/v1/memory_stores/{store['id']}/memories"
        await client.call("POST", memories, {"path": "/a.md", "content": "one"})
        package = [
            ("files[]", ("pdf/SKILL.md", b"---\nname: pdf\ndescription: Reads.\n---\nLook first.", "text/plain"))
        ]
        made = (await client.http.post("/v1/skills", files=package, data={"display_title": "pdf"})).json()
        agent = await client.agent(skills=[{"type": "custom", "skill_id": made["id"], "version": "latest"}])
        attached = [{"type": "memory_store", "memory_store_id": store["id"], "access": "read_write"}]
        session = await client.session(agent, environment_id=ground.environment, resources=attached)
        (mount,) = [each["mount_path"] for each in (await client.call("GET", f"/v1/sessions/{session}"))["resources"]]
        text = tool("read", file_path=f"{mount}/a.md") + " " + tool("write", file_path=f"{mount}/b.md", content="two")
        text += " " + tool("bash", command="cat skills/pdf/SKILL.md")
        await client.send(session, message(text))
        async with ground.worker():
            texts = told(await ground.until_over(session))
        assert texts[0] == "one" and texts[2].endswith("Look first.")
        found = {each["path"]: each["content"] for each in (await client.call("GET", f"{memories}?view=full"))["data"]}
        assert found == {"/a.md": "one", "/b.md": "two"}
