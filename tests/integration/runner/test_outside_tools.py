"""Tools of self-hosted sessions: what workers do looks like what a sandbox does, and ends that are none are told."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from kit import failpoints
from kit.ids import is_id
from kit.testing import await_until
from managed_agents.sessions.v1.sessions_pb2 import GetSessionRequest, StopSessionRequest
from managed_agents.worker.v1.queue_pb2 import RunWorkItemResponse
from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.runner.played import ASKING, CUSTOM, Gate, ScriptedModel, call, say
from tests.integration.runner.queueing import (
    LeaseLost,
    OutcomeUnknown,
    PlayedQueue,
    QueueTimeout,
    hosted_session,
    never,
)

INTERRUPT = {"type": "user.interrupt"}


@pytest.fixture
def sessions_settings() -> dict:
    return {"lease_seconds": 1.0}


@pytest.fixture
async def queue(platform: World, tmp_path: Path) -> AsyncIterator[PlayedQueue]:
    queue = PlayedQueue(tmp_path)
    async with queue.served(address(platform)):
        yield queue


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def address(platform: World) -> str:
    return f"unix:{platform.folder}/queue.sock"


async def turn(platform: World, *calls: tuple[str, dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """The log of a turn in which the model makes these calls, one answer for each."""
    session = await hosted_session(platform)
    model = ScriptedModel([*(call(each) for each in calls), say("done")])
    async with platform.runner(model, queue_address=address(platform), **options):
        await platform.say(session, "go")
        return await platform.until(session)


async def test_every_tool_is_done_by_the_worker_and_tells_what_it_would_tell_anywhere(
    platform: World, queue: PlayedQueue
) -> None:
    log = await turn(
        platform,
        ("write", {"file_path": "src/a.py", "content": "one = 1\ntwo = 2\n"}),
        ("edit", {"file_path": "src/a.py", "old_string": "two = 2", "new_string": "two = 22"}),
        ("read", {"file_path": "src/a.py", "offset": 2, "limit": 1}),
        ("bash", {"command": "pwd; cat src/a.py; echo oops >&2; exit 3"}),
        ("glob", {"pattern": "**/*.py"}),
        ("grep", {"pattern": r"\d\d$"}),
    )
    results = of(log, "agent.tool_result")
    assert [text_of(each) for each in results] == [
        "Wrote 16 bytes to src/a.py.",
        "Replaced 1 occurrence in src/a.py.",
        "two = 22\n",
        f"{queue.folder}\none = 1\ntwo = 22\noops\n[exit code: 3]",
        "src/a.py",
        "src/a.py:2:two = 22",
    ]
    assert [each["is_error"] for each in results] == [False, False, False, True, False, False]
    assert queue.kinds == ["write", "read", "write", "read", "exec", "exec", "exec"]
    assert not of(log, "session.error")
    assert log[-1]["stop_reason"] == {"type": "end_turn"}


async def test_an_item_says_whose_it_is_and_is_named_after_its_call(platform: World, queue: PlayedQueue) -> None:
    log = await turn(platform, ("bash", {"command": "true", "timeout_ms": 5000}), ("bash", {"command": "true"}))
    session = await platform.clients.sessions.GetSession(GetSessionRequest(session_id=queue.asked[0].session_id))
    assert {each.environment_id for each in queue.asked} == {session.session.environment_id}
    assert queue.workspaces == {"wrkspc_default"}
    ids = [each.item_id for each in queue.asked]
    assert len(set(ids)) == 2 and all(is_id("work", each) for each in ids) and ids == sorted(ids)
    assert orjson.loads(queue.asked[0].payload_json) == {"command": "true", "timeout_ms": 5000}
    assert [text_of(each) for each in of(log, "agent.tool_result")] == ["(no output)"] * 2


async def test_failures_of_the_work_are_results(platform: World, queue: PlayedQueue) -> None:
    log = await turn(
        platform,
        ("read", {"file_path": "none.txt"}),
        ("edit", {"file_path": "none.txt", "old_string": "a", "new_string": "b"}),
        ("bash", {"command": "sleep 30", "timeout_ms": 50}),
        ("bash", {}),
        ("read", {"path": 7}),
        ("grep", {"pattern": "("}),
        ("glob", {"pattern": "../*"}),
        ("glob", {"pattern": "*", "path": "none"}),
    )
    results = of(log, "agent.tool_result")
    assert all(each["is_error"] for each in results)
    texts = [text_of(each) for each in results]
    assert texts[:2] == ["none.txt: No such file or directory"] * 2
    assert texts[2] == "[The command was ended after 0.05 seconds.]"
    assert texts[3] == "bash: command: required, and missing"
    # What no worker could do is not sent to one.
    assert queue.kinds == ["read", "read", "exec", "exec"]
    assert not of(log, "session.error")


async def test_output_that_is_too_long_lies_where_the_worker_can_read_it(platform: World, queue: PlayedQueue) -> None:
    log = await turn(platform, ("bash", {"command": "seq 1 20000"}))
    (result,) = of(log, "agent.tool_result")
    overflow = result["metadata"]["tool_output_overflow"]
    assert text_of(result).startswith("[tool output overflow]\n") and overflow["path"] in text_of(result)
    saved = (queue.folder / overflow["path"]).read_text()
    assert saved.split() == [str(number) for number in range(1, 20001)]
    assert (overflow["preview_chars"], overflow["file_bytes"]) == (2000, len(saved))
    assert queue.kinds == ["exec", "write"]


async def test_an_overflow_that_can_not_be_saved_names_no_file(platform: World, queue: PlayedQueue) -> None:
    (queue.folder / ".managed-agents").write_text("in the way")
    (result,) = of(await turn(platform, ("bash", {"command": "seq 1 20000"})), "agent.tool_result")
    assert "file: none" in text_of(result) and "tool_output_overflow" not in result["metadata"]
    assert not result["is_error"]


@pytest.mark.parametrize(
    ("ended", "code", "retry_status"),
    [
        (QueueTimeout, "work_queue_timeout", "retryable"),
        (OutcomeUnknown, "work_outcome_unknown", "not_retryable"),
        (LeaseLost, "work_lease_lost", "not_retryable"),
    ],
)
async def test_an_end_without_a_result_is_told_by_its_code(
    platform: World, queue: PlayedQueue, ended: Any, code: str, retry_status: str
) -> None:
    async def play(_request: Any) -> RunWorkItemResponse:
        raise ended("It ended.")

    queue.play = play
    log = await turn(platform, ("edit", {"file_path": "a", "old_string": "a", "new_string": "b"}))
    (result,) = of(log, "agent.tool_result")
    assert result["is_error"] and text_of(result).startswith(f"{code}: ")
    (error,) = of(log, "session.error")
    assert (error["error"]["type"], error["error"]["retry_status"]) == (code, retry_status)
    # The turn goes on: the model decides what to make of it. Nothing is tried again for it.
    assert queue.kinds == ["read"]
    assert log[-1]["stop_reason"] == {"type": "end_turn"}


async def test_an_interrupt_stops_exactly_what_the_turn_waits_for(platform: World, queue: PlayedQueue) -> None:
    gate = Gate()

    async def play(_request: Any) -> RunWorkItemResponse:
        await gate()
        return RunWorkItemResponse()

    queue.play = play
    session = await hosted_session(platform)
    model = ScriptedModel([call(("bash", {"command": "sleep 600"}), ("bash", {"command": "true"})), say("ok")])
    async with platform.runner(model, queue_address=address(platform)):
        await platform.say(session, "go")
        await gate.reached.wait()
        await platform.clients.send(session, INTERRUPT)
        log = await platform.until(session)
        await await_until(lambda: bool(queue.stopped), message="the item is stopped")
    (stopped,) = queue.stopped
    assert (stopped.session_id, list(stopped.item_ids)) == (session, [queue.asked[0].item_id])
    assert len(queue.asked) == 1 and len(of(log, "agent.tool_result")) == 2
    assert not of(log, "session.error")


async def test_calls_that_ask_reach_no_worker_before_they_are_allowed(platform: World, queue: PlayedQueue) -> None:
    session = await hosted_session(platform, tools=(ASKING, CUSTOM))
    model = ScriptedModel([call(("bash", {"command": "echo a"}), ("bash", {"command": "echo b"})), say("ok")])
    async with platform.runner(model, queue_address=address(platform)):
        await platform.say(session, "go")
        log = await platform.until(session, "requires_action")
        assert not queue.asked
        first, second = (each["id"] for each in of(log, "agent.tool_use"))
        allow = {"type": "user.tool_confirmation", "tool_use_id": first, "result": "allow"}
        deny = {"type": "user.tool_confirmation", "tool_use_id": second, "result": "deny"}
        await platform.clients.send(session, allow, deny)
        log = await platform.until(session)
    assert [orjson.loads(each.payload_json)["command"] for each in queue.asked] == ["echo a"]
    assert {each["tool_use_id"]: each["is_error"] for each in of(log, "agent.tool_result")} == {
        first: False,
        second: True,
    }


async def test_a_queue_that_comes_back_is_asked_for_the_same_item(platform: World, tmp_path: Path) -> None:
    queue = PlayedQueue(tmp_path, play=never)
    session = await hosted_session(platform)
    model = ScriptedModel([call(("bash", {"command": "echo x >> effects"})), say("ok")])
    async with platform.runner(model, queue_address=address(platform)):
        await platform.say(session, "go")
        async with queue.served(address(platform)):
            await await_until(lambda: bool(queue.asked), message="the item is asked for")
        queue.play = None
        async with queue.served(address(platform)):
            log = await platform.until(session)
    assert len({each.item_id for each in queue.asked}) == 1 < len(queue.asked)
    assert (tmp_path / "effects").read_text() == "x\n"
    (result,) = of(log, "agent.tool_result")
    assert not result["is_error"] and not of(log, "session.error")


async def _died_over(platform: World, queue: PlayedQueue, text: str) -> str:
    """A session whose runner was killed while it waited for the item of a call."""
    queue.play = never
    session = await hosted_session(platform)
    async with platform.runner_process(QUEUE_ADDRESS=address(platform)) as process:
        await platform.say(session, text)
        await await_until(lambda: bool(queue.asked), message="the item is asked for")
        process.kill()
        await process.wait()
    return session


async def test_what_a_worker_does_for_a_runner_that_dies_is_waited_for_by_the_next(
    platform: World, queue: PlayedQueue
) -> None:
    session = await _died_over(platform, queue, 'TOOL:bash:{"command": "echo x >> effects; echo done"}')
    queue.play = None
    async with platform.runner(ScriptedModel([say("I see")]), queue_address=address(platform)):
        log = await platform.until(session)
    (result,) = of(log, "agent.tool_result")
    assert (text_of(result), result["is_error"]) == ("done", False)
    assert len({each.item_id for each in queue.asked}) == 1 < len(queue.asked)
    assert (queue.folder / "effects").read_text() == "x\n" and not queue.stopped
    assert types(log).count("session.status_idle") == 1


async def test_what_two_runners_died_over_is_stopped_before_the_turn_can_end_without_anybody(
    platform: World, queue: PlayedQueue
) -> None:
    session = await _died_over(platform, queue, 'TOOL:bash:{"command": "echo x >> effects"}')
    async with platform.runner_process(QUEUE_ADDRESS=address(platform)) as process:
        await await_until(lambda: len(queue.asked) > 1, message="the item is asked for again")
        process.kill()
        await process.wait()
    async with platform.runner(ScriptedModel([say("I see")]), queue_address=address(platform)):
        log = await platform.until(session)
        await await_until(lambda: bool(queue.stopped), message="the item is stopped")
    (result,) = of(log, "agent.tool_result")
    assert text_of(result).startswith("work_outcome_unknown") and log[-1]["stop_reason"] == {"type": "end_turn"}
    assert len(queue.asked) == 2 and queue.asked[0].item_id in queue.stopped[0].item_ids


async def test_an_edit_of_a_runner_that_dies_is_not_written_long_after_it_was_read(
    platform: World, queue: PlayedQueue
) -> None:
    edit = 'TOOL:edit:{"file_path": "a", "old_string": "a", "new_string": "b"}'
    session = await _died_over(platform, queue, edit)
    async with platform.runner(ScriptedModel([say("I see")]), queue_address=address(platform)):
        log = await platform.until(session)
        await await_until(lambda: bool(queue.stopped), message="the item is stopped")
    (result,) = of(log, "agent.tool_result")
    assert text_of(result).startswith("work_outcome_unknown")
    assert queue.kinds == ["read"] and queue.asked[0].item_id in queue.stopped[0].item_ids


async def _left_open(platform: World, queue: PlayedQueue) -> str:
    """A session whose runner stopped in order, again and again, while a worker did the first of its two calls."""
    queue.play = never
    session = await hosted_session(platform)
    bash = ("bash", {"command": "echo x >> effects; echo done"})
    models = [ScriptedModel([call(bash, ("read", {"file_path": "effects"}))]), *(ScriptedModel([]) for _ in range(4))]
    for number, model in enumerate(models, 1):
        async with platform.runner(model, queue_address=address(platform), runner_drain_seconds=0.1):
            if number == 1:
                await platform.say(session, "go")
            await await_until(lambda number=number: len(queue.asked) >= number, message="the item is asked for")
    assert await platform.clients.status(session) == "running"
    return session


async def test_a_runner_that_stops_in_order_leaves_calls_to_the_next(platform: World, queue: PlayedQueue) -> None:
    session = await _left_open(platform, queue)
    assert not of(await platform.clients.log(session), "agent.tool_result")
    queue.play = None
    async with platform.runner(ScriptedModel([say("I see")]), queue_address=address(platform)):
        log = await platform.until(session)
    assert [text_of(each) for each in of(log, "agent.tool_result")] == ["done", "x\n"]
    assert queue.kinds == ["exec"] * 6 + ["read"] and len({each.item_id for each in queue.asked}) == 2
    assert (queue.folder / "effects").read_text() == "x\n" and not queue.stopped
    assert not of(log, "session.status_rescheduled") and not of(log, "session.error")


async def test_calls_that_were_left_are_ended_by_an_interrupt(platform: World, queue: PlayedQueue) -> None:
    session = await _left_open(platform, queue)
    await platform.clients.send(session, INTERRUPT)
    async with platform.runner(ScriptedModel([]), queue_address=address(platform)):
        log = await platform.until(session)
        await await_until(lambda: bool(queue.stopped), message="the items are stopped")
    results = of(log, "agent.tool_result")
    assert len(results) == 2 and all(text_of(each).startswith("Interrupted") for each in results)
    assert queue.asked[0].item_id in {item_id for each in queue.stopped for item_id in each.item_ids}
    assert queue.kinds == ["exec"] * 5


async def test_calls_that_were_left_are_stopped_by_a_turn_that_fails_before_it_comes_to_them(
    platform: World, queue: PlayedQueue
) -> None:
    session = await _left_open(platform, queue)
    failpoints.arm("runner.tool.running=raise@1")
    async with platform.runner(ScriptedModel([]), queue_address=address(platform)):
        log = await platform.until(session)
        await await_until(lambda: bool(queue.stopped), message="the items are stopped")
    results = of(log, "agent.tool_result")
    assert len(results) == 2 and all(text_of(each).startswith("work_outcome_unknown") for each in results)
    assert log[-1]["stop_reason"]["type"] == "retries_exhausted"
    assert queue.asked[0].item_id in queue.stopped[0].item_ids and len(queue.asked) == 5


async def test_calls_that_were_left_for_too_long_are_not_begun_anew(
    platform: World, queue: PlayedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await _left_open(platform, queue)
    monkeypatch.setattr("services.worker.runner.outside.items._REMEMBERED_SECONDS", 0.0)
    async with platform.runner(ScriptedModel([say("I see")]), queue_address=address(platform)):
        log = await platform.until(session)
        await await_until(lambda: bool(queue.stopped), message="the items are stopped")
    results = of(log, "agent.tool_result")
    assert len(results) == 2 and all(text_of(each).startswith("work_outcome_unknown") for each in results)
    assert queue.asked[0].item_id in queue.stopped[0].item_ids and len(queue.asked) == 5


async def test_calls_that_were_left_go_with_their_session(platform: World, queue: PlayedQueue) -> None:
    session = await _left_open(platform, queue)
    await platform.clients.sessions.StopSession(StopSessionRequest(session_id=session))
    results = of(await platform.clients.log(session), "agent.tool_result")
    assert len(results) == 2 and all(each["is_error"] for each in results)


async def test_a_runner_tells_that_it_serves_workers(platform: World, queue: PlayedQueue) -> None:
    for where, providers in ((address(platform), ("local", "self_hosted")), ("", ("local",))):
        manager = SandboxManager(platform.folder / "sandboxes")
        async with platform.runner(sandboxes=manager, queue_address=where) as runner:
            assert (await runner._describe()).sandbox_providers == providers
