"""The published client's `EnvironmentWorker`, unchanged, serves sessions of a real platform.

Every response is validated strictly. The platform's leases last two seconds here, so that the end of a worker shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import anthropic
import httpx2
import pytest

from kit.testing import await_until
from tests.contract.client_flow import ASKING, TOOLSET
from tests.support.platform import Platform, running_platform
from tests.support.published_worker import client_of, worker_process, working
from tests.support.skills import package

pytestmark = pytest.mark.timeout(180)
BETA = {"anthropic-beta": "managed-agents-2026-04-01"}


@pytest.fixture(scope="module")
def leasing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    environment = {"MANAGED_AGENTS_SESSION_WORK_SECONDS": "2"}
    with running_platform(tmp_path_factory.mktemp("leasing") / "data", environment=environment) as platform:
        yield platform


class Field:
    """The client, an environment with a worker key, and a folder for its worker."""

    def __init__(self, platform: Platform, client: anthropic.AsyncAnthropic, folder: Path) -> None:
        self.platform, self.client, self.folder = platform, client, folder
        self.environment_id = self.key = ""
        self._clients: list[anthropic.AsyncAnthropic] = []

    async def open(self) -> None:
        made = await self.client.beta.environments.create(name=uuid4().hex, config={"type": "self_hosted"})
        self.environment_id = made.id
        path = f"/v1/environments/{made.id}/worker-keys"
        key: Any = await self.client.post(path, body={"name": "w"}, cast_to=object, options={"headers": BETA})
        self.key = key["secret_key"]

    async def session(self, *said: str, tools: Any = TOOLSET, **fields: Any) -> str:
        """A session whose agent is told this."""
        skills = fields.pop("skills", [])
        agent = await self.client.beta.agents.create(name="a", model="default", tools=[tools], skills=skills)
        made = await self.client.beta.sessions.create(agent=agent.id, environment_id=self.environment_id, **fields)
        if said:
            await self.say(made.id, *said)
        return made.id

    async def say(self, session_id: str, *said: str) -> None:
        content: Any = [{"type": "text", "text": "\n".join(said)}]
        await self.client.beta.sessions.events.send(session_id, events=[{"type": "user.message", "content": content}])

    async def log(self, session_id: str) -> list[Any]:
        return [event async for event in self.client.beta.sessions.events.list(session_id, limit=1000)]

    async def settled(self, session_id: str, reason: str = "end_turn", *, after: int = 0) -> list[Any]:
        """The log once the session is idle for this reason, later than it was at this length."""
        found: list[Any] = []

        async def is_idle() -> bool:
            found[:] = await self.log(session_id)
            last = found[-1] if found else None
            return (
                len(found) > after and last.type == "session.status_idle" and last.stop_reason.type == reason  # type: ignore[union-attr]
            )

        await await_until(is_idle, timeout=40)
        return found

    async def worker(self) -> anthropic.AsyncAnthropic:
        """The client with the worker's key."""
        made = client_of(self.platform.url, auth_token=self.key)
        self._clients.append(made)
        return made

    async def close(self) -> None:
        for each in self._clients:
            await each.close()

    def working(self, **options: Any) -> Any:
        return working(self.client, self.environment_id, self.key, self.folder, **options)

    async def work(self) -> list[Any]:
        return [item async for item in self.client.beta.environments.work.list(self.environment_id)]


@pytest.fixture
async def field(leasing: Platform, tmp_path: Path) -> AsyncIterator[Field]:
    async with client_of(leasing.url) as client:
        made = Field(leasing, client, tmp_path)
        await made.open()
        yield made
        await made.close()


def call(name: str, **arguments: Any) -> str:
    """What makes the demo model call a tool."""
    return f"TOOL:{name}:{json.dumps(arguments)}"


def of(log: list[Any], kind: str) -> list[Any]:
    return [event for event in log if event.type == kind]


def told(results: list[Any]) -> list[tuple[bool, str]]:
    return [(bool(each.is_error), "\n".join(block.text for block in each.content)) for each in results]


async def test_all_six_tools_run_on_the_worker_and_nowhere_else(field: Field) -> None:
    session_id = await field.session(
        call("write", file_path="a.txt", content="one\ntwo\n"),
        call("edit", file_path="a.txt", old_string="two", new_string="three"),
        call("read", file_path="a.txt"),
        call("glob", pattern="*.txt"),
        call("grep", pattern="three"),
        call("bash", command="pwd; cd /; export MARK=kept"),
        call("bash", command="pwd; echo $MARK; exit 3"),
    )
    async with field.working():
        log = await field.settled(session_id)
    results = told(of(log, "user.tool_result"))
    assert (field.folder / "a.txt").read_text() == "one\nthree\n"
    assert [error for error, _ in results] == [False] * 6 + [True]
    texts = [text for _, text in results]
    assert "three" in texts[2] and "a.txt" in texts[3] and "three" in texts[4]
    assert texts[5].strip() == str(field.folder) and texts[6].split()[:2] == ["/", "kept"]
    assert not of(log, "agent.tool_result")
    sandboxes = field.platform.data_dir / "sandboxes"
    assert not [path for path in sandboxes.rglob("*") if session_id in str(path)]


async def test_the_first_message_waits_for_a_worker_as_long_as_it_takes(field: Field) -> None:
    session_id = await field.session(call("bash", command="echo late"))
    parked = await field.settled(session_id, "requires_action")
    [use] = of(parked, "agent.tool_use")
    assert parked[-1].stop_reason.event_ids == [use.id] and use.evaluated_permission == "allow"
    assert (await field.client.beta.sessions.retrieve(session_id)).status == "idle"
    await await_until(lambda: _queued(field, 1))
    async with field.working():
        log = await field.settled(session_id)
    assert told(of(log, "user.tool_result")) == [(False, "late")]


async def _queued(field: Field, count: int) -> bool:
    stats = await field.client.beta.environments.work.stats(field.environment_id)
    return (stats.depth, stats.pending, stats.workers_polling) == (count, 0, 0)


async def test_whatever_a_tool_says_arrives(field: Field) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + os.urandom(2_000_000)
    (field.folder / "large.png").write_bytes(picture)
    session_id = await field.session(
        call("bash", command="printf 'a\\000b'; head -c 200 /dev/zero"),
        call("read", file_path="large.png"),
        call("bash", command="seq 1 100000"),
        call("bash", command="true"),
    )
    async with field.working():
        log = await field.settled(session_id)
    results = of(log, "user.tool_result")
    assert [block.type for each in results for block in each.content] == ["text", "image", "text", "text"]
    assert results[0].content[0].text.startswith("a\ufffdb") and not any(each.is_error for each in results)


async def test_one_worker_serves_session_after_session(field: Field) -> None:
    sessions = [await field.session(call("bash", command=f"echo {number}")) for number in range(3)]
    async with field.working(max_idle=0.2):
        logs = [await field.settled(session_id) for session_id in sessions]
        assert [told(of(log, "user.tool_result")) for log in logs] == [[(False, str(n))] for n in range(3)]

        async def all_stopped() -> bool:
            return [item.state for item in await field.work()] == ["stopped"] * 3

        await await_until(all_stopped, timeout=20)
    assert {item.data.id for item in await field.work()} == set(sessions)


async def test_a_message_to_an_idle_session_whose_item_ended_makes_another(field: Field) -> None:
    session_id = await field.session(call("bash", command="echo one"))
    async with field.working(max_idle=0.2):
        log = await field.settled(session_id)
        await await_until(lambda: _stopped(field, 1), timeout=20)
        await field.say(session_id, call("bash", command="echo two"))
        log = await field.settled(session_id, after=len(log))
    assert told(of(log, "user.tool_result")) == [(False, "one"), (False, "two")]
    assert len(await field.work()) == 2


async def _stopped(field: Field, count: int) -> bool:
    return [item.state for item in await field.work()] == ["stopped"] * count


async def test_a_call_that_asks_is_held_until_it_is_allowed_and_never_run_when_it_is_denied(field: Field) -> None:
    asks = {"name": "write", "permission_policy": {"type": "always_ask"}}
    session_id = await field.session(
        call("write", file_path="allowed.txt", content="x"),
        call("write", file_path="denied.txt", content="x"),
        call("bash", command="touch free.txt"),
        tools=TOOLSET | {"configs": [asks]},
    )
    async with field.working():
        # The worker is there, has read all calls, and runs the one that nobody has to allow.
        await await_until((field.folder / "free.txt").exists, timeout=30)
        parked = await field.settled(session_id, "requires_action", after=12)
        allowed, denied, _ = of(parked, "agent.tool_use")
        assert allowed.evaluated_permission == "ask"
        assert parked[-1].stop_reason.event_ids == [allowed.id, denied.id]
        with pytest.raises(anthropic.BadRequestError):
            await field.client.beta.sessions.events.send(session_id, events=[result_of(allowed.id)])
        assert [path.name for path in field.folder.iterdir()] == ["free.txt"]
        events: Any = [
            {"type": "user.tool_confirmation", "tool_use_id": denied.id, "result": "deny", "deny_message": "No."},
            {"type": "user.tool_confirmation", "tool_use_id": allowed.id, "result": "allow"},
        ]
        await field.client.beta.sessions.events.send(session_id, events=events)
        log = await field.settled(session_id, after=len(parked))
    assert {path.name for path in field.folder.iterdir()} == {"free.txt", "allowed.txt"}
    given = of(log, "user.tool_result")
    results = {each.tool_use_id: text for each, (_, text) in zip(given, told(given), strict=True)}
    assert set(results) == {each.id for each in of(log, "agent.tool_use")}
    assert "denied" in results[denied.id] and results[allowed.id].startswith("wrote")


async def test_a_session_that_waits_for_leave_alone_occupies_no_worker(field: Field) -> None:
    session_id = await field.session(call("bash", command="echo allowed"), tools=ASKING)
    parked = await field.settled(session_id, "requires_action")
    async with field.working():
        await await_until(lambda: _stopped(field, 1), timeout=20)
        [use] = of(parked, "agent.tool_use")
        leave: Any = {"type": "user.tool_confirmation", "tool_use_id": use.id, "result": "allow"}
        await field.client.beta.sessions.events.send(session_id, events=[leave])
        log = await field.settled(session_id, after=len(parked))
    assert told(of(log, "user.tool_result")) == [(False, "allowed")]


def result_of(call_id: str, text: str = "late", **fields: Any) -> Any:
    return {"type": "user.tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": text}]} | fields


async def test_a_worker_that_is_killed_in_a_tool_is_followed_by_one_that_does_not_repeat_it(field: Field) -> None:
    command = f"echo began >> {field.folder}/marks; sleep 60; echo ended >> {field.folder}/marks"
    session_id = await field.session(call("bash", command=command))
    marks = field.folder / "marks"
    with worker_process(field.platform.url, field.environment_id, field.key, field.folder) as process:
        await await_until(marks.exists, timeout=30)
        process.kill()
    await field.say(session_id, call("bash", command="echo again"))
    async with field.working():
        log = await field.settled(session_id)
    lost, again = told(of(log, "user.tool_result"))
    assert lost[0] and lost[1].startswith("work_outcome_unknown")
    assert again == (False, "again")
    assert marks.read_text() == "began\n"


async def test_an_interrupt_ends_what_waits_for_a_worker(field: Field) -> None:
    session_id = await field.session(call("bash", command="touch never"))
    parked = await field.settled(session_id, "requires_action")
    await field.client.beta.sessions.events.send(session_id, events=[{"type": "user.interrupt"}])
    log = await field.settled(session_id, after=len(parked))
    [use], [(is_error, text)] = of(log, "agent.tool_use"), told(of(log, "user.tool_result"))
    assert is_error and "interrupted" in text
    await field.say(session_id, call("bash", command="echo next"))
    async with field.working():
        log = await field.settled(session_id, after=len(log))
    assert not (field.folder / "never").exists()
    assert told(of(log, "user.tool_result"))[1] == (False, "next")
    with pytest.raises(anthropic.BadRequestError):
        await field.client.beta.sessions.events.send(session_id, events=[result_of(use.id)])


async def test_skills_come_along(field: Field) -> None:
    name = f"greeter-{uuid4().hex[:8]}"
    skill = await field.client.beta.skills.create(files=list(package(name, body="Say hello.").items()))
    session_id = await field.session(
        call("bash", command=f"cat skills/{name}/SKILL.md; sh skills/{name}/scripts/hello.sh"),
        skills=[{"type": "custom", "skill_id": skill.id}],
    )
    async with field.working():
        log = await field.settled(session_id)
    [(is_error, text)] = told(of(log, "user.tool_result"))
    assert not is_error and "Say hello." in text and f"hello from {name}" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="the client's worker puts stores where only root may write")
async def test_memory_comes_along_and_goes_back(field: Field) -> None:
    slug = f"notes-{uuid4().hex[:8]}"
    store = await field.client.beta.memory_stores.create(name=slug)
    reading = await field.client.beta.memory_stores.create(name=f"{slug}-read")
    for each in (store, reading):
        await field.client.beta.memory_stores.memories.create(each.id, path="/a.md", content="one")
    folder = f"/mnt/memory/{slug}"
    command = f"cat {folder}/a.md; echo two > {folder}/a.md; echo new > {folder}/b.md; echo no > {folder}-read/a.md"
    session_id = await field.session(
        call("bash", command=command),
        resources=[
            {"type": "memory_store", "memory_store_id": store.id},
            {"type": "memory_store", "memory_store_id": reading.id, "access": "read_only"},
        ],
    )
    try:
        async with field.working(max_idle=0.2, memory_sync_interval=5):
            await field.settled(session_id)
            await await_until(lambda: _stopped(field, 1), timeout=40)
    finally:
        for left in (folder, f"{folder}-read"):
            shutil.rmtree(left, ignore_errors=True)
    memories = field.client.beta.memory_stores.memories
    listed = [item async for item in memories.list(store.id, view="full")]
    assert {item.path: item.content for item in listed} == {"/a.md": "two\n", "/b.md": "new\n"}  # type: ignore[union-attr]
    [kept] = [item async for item in memories.list(reading.id, view="full")]
    assert kept.content == "one"  # type: ignore[union-attr]
    versions = await field.client.beta.memory_stores.memory_versions.list(store.id, session_id=session_id)
    assert {each.created_by.type for each in versions.data if each.created_by} == {"session_actor"}


async def test_calls_that_the_platform_runs_hold_no_worker(field: Field) -> None:
    session_id = await field.session(call("web_fetch", url="http://metadata.google.internal/"))
    log = await field.settled(session_id)
    assert of(log, "agent.tool_result") and not of(log, "user.tool_result")
    async with field.working(max_idle=0.2):
        # The worker comes while the turn still runs, and finds it over when it reads the history.
        await field.say(session_id, "DELAY:300 LEN:4")
        await field.settled(session_id, after=len(log))

        async def all_stopped() -> bool:
            return {item.state for item in await field.work()} == {"stopped"}

        await await_until(all_stopped, timeout=20)


async def test_a_message_is_followed_beyond_what_workers_do(field: Field) -> None:
    session_id = await field.session()
    body = {"content": call("bash", command="echo followed"), "stream": True}
    async with field.working(), httpx2.AsyncClient(base_url=field.platform.url, timeout=60) as http:
        answer = await http.post(f"/v1/sessions/{session_id}/messages", json=body)
    kinds = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert kinds.count("session.status_idle") == 2 and kinds[-1] == "session.status_idle"
    assert "user.tool_result" in kinds and "followed" in answer.text


async def test_an_operator_stops_an_item_gently(field: Field) -> None:
    session_id = await field.session(call("bash", command="echo done"))
    async with field.working(max_idle=None):
        await field.settled(session_id)
        [item] = await field.work()
        stopping = await field.client.beta.environments.work.stop(item.id, environment_id=field.environment_id)
        assert stopping.state == "stopping"
        await await_until(lambda: _stopped(field, 1), timeout=20)


async def test_no_secret_is_told_twice_or_logged(field: Field) -> None:
    session_id = await field.session(call("bash", command="env; cat /proc/self/environ"))
    work = (await field.worker()).beta.environments.work
    item = await work.with_raw_response.poll(field.environment_id, block_ms=999)
    first = await item.parse()
    assert first is not None and first.secret
    # Given back, so that another worker may have it at once.
    await work.stop(first.id, environment_id=field.environment_id, force=True)
    async with field.working():
        log = await field.settled(session_id)
    assert all(each.secret is None for each in await field.work())
    [(_, text)] = told(of(log, "user.tool_result"))
    assert "mast_" not in text and "mawk_" not in text
    logs = field.platform.logs()
    assert "mast_" not in logs and field.key not in logs and first.secret not in logs
    assert "mast_" not in "".join(str(event) for event in log)


async def test_the_client_polls_an_empty_queue_again_and_again(field: Field) -> None:
    work = (await field.worker()).beta.environments.work
    for block in (1, 300, 999):
        assert await work.poll(field.environment_id, block_ms=block, anthropic_worker_id="w") is None
    assert await work.poll(field.environment_id) is None
    for wrong in (0, 1000):
        with pytest.raises(anthropic.BadRequestError):
            await work.poll(field.environment_id, block_ms=wrong)
    drained = [
        item
        async for item in field.client.beta.environments.work.poller(
            environment_id=field.environment_id, environment_key=field.key, drain=True, block_ms=None
        )
    ]
    assert drained == []
    await asyncio.sleep(0)
