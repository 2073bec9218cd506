"""Tools on a worker's machine, without a queue: what is asked of it, and how its answers are read."""

import os
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from kit.errors import Unavailable
from kit.ids import is_id, new_id
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from managed_agents.worker.v1.queue_pb2 import RunWorkItemResponse
from services.worker.queue.config import QueueSettings
from services.worker.runner.loop.agent import parse_agent
from services.worker.runner.loop.calls import Call
from services.worker.runner.loop.leases import Lease, LeaseLost
from services.worker.runner.loop.places import Places
from services.worker.runner.loop.services import TurnServices
from services.worker.runner.models.base import ToolDefinition
from services.worker.runner.outside import OutsideWork, is_self_hosted, item_id
from services.worker.runner.outside.items import LEASE_LOST, Result, WorkFailed, WorkQueue
from services.worker.runner.outside.tools import run_tool
from services.worker.tools import TOOL_SPECS, ToolOutcome
from tests.support.performing import perform

HOSTED = TurnGrant(environment_json=b'{"hosting_type":"self_hosted","sandbox_provider":"self_hosted"}')
LOCAL = TurnGrant(environment_json=b'{"hosting_type":"local","sandbox_provider":"local"}')


def held() -> None:
    """The turn is held, for ever."""


class Machine:
    """A worker's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: list[tuple[str, Mapping[str, Any]]] = []

    async def do(self, kind: str, payload: Mapping[str, Any], _seconds: float) -> Result:
        self.done.append((kind, payload))
        return Result(*await perform(kind, payload, self.folder))

    async def tool(self, name: str, **value: Any) -> ToolOutcome:
        return await run_tool(name, value, self.do, "spills/one.txt")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for path, text in {
        "a.py": "alpha\nbeta 12\n",
        "src/b.py": "import os\nBETA = 3\n# -5- and :6: stay\n",
        "src/deep/c.txt": "beta\n" * 5,
        ".git/config": "beta\n",
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "binary").write_bytes(b"beta\0beta")
    return Machine(tmp_path)


def test_the_ids_of_a_call_s_items_are_its_own_and_always_the_same() -> None:
    first, second = new_id("sevt"), new_id("sevt")
    ids = [item_id(event, number) for event in (first, second) for number in range(3)]
    assert len(set(ids)) == 6 and all(is_id("work", each) for each in ids)
    assert item_id(first, 1) == ids[1]


async def test_files_are_found_newest_first_and_never_those_of_git(machine: Machine) -> None:
    assert set((await machine.tool("glob", pattern="**/*.py")).text.split()) == {"a.py", "src/b.py"}
    os.utime(machine.folder / "a.py", (2e9, 2e9))
    assert (await machine.tool("glob", pattern="**/*.py")).text.split() == ["a.py", "src/b.py"]
    assert set((await machine.tool("glob", pattern="*", path="src")).text.split()) == {"src/deep/", "src/b.py"}
    assert (await machine.tool("glob", pattern="{a,x}.py")).text == "a.py"
    assert (await machine.tool("glob", pattern="**/config")).text == "No matches."
    absolute = f"{machine.folder}/src/*.py"
    assert (await machine.tool("glob", pattern=absolute)).text == f"{machine.folder}/src/b.py"


async def test_lines_are_found_as_the_local_tool_shows_them(machine: Machine) -> None:
    assert (await machine.tool("grep", pattern=r"beta \d+")).text == "a.py:2:beta 12"
    assert (await machine.tool("grep", pattern="beta", path="src", **{"-i": True, "glob": "*.py"})).text == (
        "src/b.py:2:BETA = 3"
    )
    assert (await machine.tool("grep", pattern="BETA", **{"-A": 1, "-B": 1})).text == (
        "src/b.py-1-import os\nsrc/b.py:2:BETA = 3\nsrc/b.py-3-# -5- and :6: stay"
    )
    assert (await machine.tool("grep", pattern="stay", **{"-n": False})).text == "src/b.py:# -5- and :6: stay"
    assert set((await machine.tool("grep", pattern="beta", output_mode="files_with_matches")).text.split()) == {
        "a.py",
        "src/deep/c.txt",
    }
    assert set((await machine.tool("grep", pattern="beta", output_mode="count")).text.split()) == {
        "a.py:1",
        "src/deep/c.txt:5",
    }
    found = await machine.tool("grep", pattern="beta", path="src/deep/c.txt", head_limit=2)
    assert found.text == "src/deep/c.txt:1:beta\nsrc/deep/c.txt:2:beta\n[cut off after 2 results]"
    assert (await machine.tool("grep", pattern="beta", glob="src/**/*.txt", output_mode="count")).text == (
        "src/deep/c.txt:5"
    )
    assert (await machine.tool("grep", pattern="nothing like it")).text == "No matches."


@pytest.mark.parametrize("word", ["$(touch made)", "'; touch made; '", "`touch made`", "-e", "--include", "a b"])
async def test_no_pattern_and_no_path_is_ever_run(machine: Machine, word: str) -> None:
    await machine.tool("grep", pattern=word if word[0] != "$" else "x", path=word)
    await machine.tool("grep", pattern="x", glob=word)
    await machine.tool("glob", pattern=word, path=word)
    assert not (machine.folder / "made").exists()


async def test_bytes_that_are_no_text_are_not_edited_and_not_harmed(machine: Machine) -> None:
    (machine.folder / "latin").write_bytes(b"caf\xe9")
    edited = await machine.tool("edit", file_path="latin", old_string="caf", new_string="x")
    assert edited.is_error and "UTF-8" in edited.text
    assert (await machine.tool("read", file_path="binary")).text.startswith("binary is a binary file of 9 bytes")
    assert [kind for kind, _ in machine.done] == ["read", "read"]


@pytest.mark.parametrize("answer", [None, 7, "words", [], {}, {"content": 1}, {"content": "?", "encoding": "base64"}])
async def test_an_answer_that_makes_no_sense_is_an_error_and_nothing_else(answer: Any) -> None:
    async def do(*_: Any) -> Result:
        return Result(answer, False)

    search = {"pattern": "a"}
    for name, value in (("read", {"file_path": "a"}), ("bash", {"command": "a"}), ("glob", search), ("grep", search)):
        outcome = await run_tool(name, value, do, "spill")
        assert outcome.is_error and outcome.text


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ({"error": {"code": "path_refused", "message": "outside of the folder"}}, "outside of the folder"),
        ({"error": "no such file"}, "no such file"),
        ({"message": "said so"}, "said so"),
        ("plain words", "plain words"),
        (None, "The worker could not do this, and told no reason."),
    ],
)
async def test_a_failure_is_told_in_the_worker_s_words(failure: Any, told: str) -> None:
    async def do(*_: Any) -> Result:
        return Result(failure, True)

    assert await run_tool("read", {"file_path": "a"}, do, "spill") == ToolOutcome(told, is_error=True)


async def test_a_worker_that_was_told_to_stop_has_no_result() -> None:
    async def do(*_: Any) -> Result:
        return Result({"error": {"code": LEASE_LOST, "message": "stopped"}}, True)

    with pytest.raises(WorkFailed) as failed:
        await run_tool("bash", {"command": "a"}, do, "spill")
    assert failed.value.code == LEASE_LOST


async def test_threads_work_for_their_session() -> None:
    class Queue:
        async def run(self, item: Any, **_: Any) -> Result:
            items.append(item)
            return Result({"stdout": "", "stderr": "", "exitCode": 0, "timedOut": False}, False)

    items: list[Any] = []
    grant = TurnGrant(root_session_id="sess_root", environment_json=HOSTED.environment_json)
    grant.session.id, grant.session.environment_id = "sthr_1", "env_1"
    sandbox = OutsideWork(Queue()).of(grant, lambda *_: None, lambda *_: {}, held)  # type: ignore[arg-type]
    sandbox.begin("sevt_1")
    await sandbox.run_tool("bash", {"command": "true"})
    assert (items[0].session_id, items[0].environment_id) == ("sess_root", "env_1")


def test_the_model_is_told_where_its_tools_run() -> None:
    built_in = {name: ToolDefinition(name, spec.description, spec.input_schema) for name, spec in TOOL_SPECS.items()}
    services = TurnServices(*[None] * 9, built_in=built_in, outside=OutsideWork(None))  # type: ignore[arg-type]
    profile = parse_agent(b'{"name":"a","system":"Be brief."}', b"", "m")
    hosted = Places(services, HOSTED, profile, lambda *_: None, tuple, held)
    local = Places(services, LOCAL, profile, lambda *_: None, tuple, held)
    assert (is_self_hosted(HOSTED), is_self_hosted(LOCAL)) == (True, False)
    assert "shell of its own" in hosted.built_in["bash"].description
    assert local.built_in == built_in and hosted.built_in["read"] == built_in["read"]
    assert "/mnt/session" in local.prompt((), uses_sandbox=True)
    assert "/mnt/session" not in hosted.prompt((), uses_sandbox=True)
    assert hosted.prompt((), uses_sandbox=False) == "Be brief."


def test_what_the_queue_may_have_forgotten_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    least = next(each.metadata["limits"]["ge"] for each in fields(QueueSettings) if each.name == "work_keep_seconds")
    services = TurnServices(*[None] * 9, built_in={}, outside=OutsideWork(None))  # type: ignore[arg-type]
    places = Places(services, HOSTED, parse_agent(b'{"name":"a"}', b"", "m"), lambda *_: None, tuple, held)
    call = Call(new_id("sevt"), "toolu_1", "bash", {}, permission="ask")
    now = time.time()
    for seconds, joins in ((-60, True), (0, True), (least / 2, True), (least - 60, False), (3 * 86_400, False)):
        monkeypatch.setattr("time.time", lambda seconds=seconds: now + seconds)
        assert (places.joins_still(call), places.joins(call)) == (joins, True)
    # What a client approved long after it was made was put in after that.
    monkeypatch.undo()
    old = "sevt_" + "0" * 26
    assert not places.joins_still(replace(call, event_id=old))
    assert places.joins_still(replace(call, event_id=old, allowed_by=new_id("sevt")))


async def test_who_does_not_hold_the_turn_any_more_puts_nothing_in() -> None:
    class Paused:
        def __init__(self, answer: RunWorkItemResponse | Exception, lease: Lease) -> None:
            self.answer, self.lease = answer, lease
            self.asked: list[str] = []

        async def RunWorkItem(self, request: Any, **_: Any) -> RunWorkItemResponse:
            self.asked.append(request.kind)
            self.lease.deadline = float("-inf")
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    content = RunWorkItemResponse(result_json=b'{"content":"a","encoding":"utf-8"}')
    edit = {"file_path": "a", "old_string": "a", "new_string": "b"}
    for answer, name, value in ((content, "edit", edit), (Unavailable("away"), "bash", {"command": "true"})):
        lease = Lease("sess_1", 1)
        lease.extend(time.monotonic(), 60.0)
        queue = Paused(answer, lease)
        sandbox = OutsideWork(WorkQueue(queue, queue_seconds=60)).of(
            HOSTED, lambda *_: None, lambda *_: {}, lease.check
        )
        sandbox.begin("sevt_1")
        with pytest.raises(LeaseLost):
            await sandbox.run_tool(name, value)
        assert len(queue.asked) == 1


async def test_an_interrupt_without_anything_under_way_stops_nothing() -> None:
    work = OutsideWork(None)  # type: ignore[arg-type]
    sandbox = work.of(HOSTED, lambda *_: None, lambda *_: {}, held)
    assert not sandbox.interrupt()
    await work.aclose()
