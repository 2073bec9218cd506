"""What workers have to do with a session: announced with each change, asked after and settled, for threads too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import orjson
import pytest
import pytest_asyncio

from kit.errors import DomainError
from kit.ids import new_id
from kit.nats import connect
from kit.testing import await_until
from managed_agents.sessions.v1 import duties_pb2, environments_pb2, sessions_pb2, turns_pb2
from tests.integration.sessions.thread_driver import Coordinator, last, saved, until_status
from tests.integration.sessions.turn_driver import Replica, answer, end, event, types, user

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def self_hosted(one: Replica) -> str:
    """An environment whose workers serve whole sessions."""
    definition = orjson.dumps({"name": uuid4().hex, "config": {"type": "self_hosted"}})
    request = environments_pb2.CreateEnvironmentRequest(definition_json=definition)
    return (await one.environments.CreateEnvironment(request)).environment.id


class Duties:
    """The rpcs of the queue and the gateway."""

    def __init__(self, one: Replica) -> None:
        self._one = one

    def __getattr__(self, name: str) -> Any:
        return getattr(self._one.duties, name)

    async def has_work(self, session_id: str) -> tuple[bool, str]:
        found = await self._one.duties.GetDuty(duties_pb2.GetDutyRequest(session_id=session_id))
        return found.has_work, found.waiting_call_id

    async def settle(self, session_id: str) -> int:
        return (await self._one.duties.SettleCalls(duties_pb2.SettleCallsRequest(session_id=session_id))).settled


@pytest.fixture
def duties(one: Replica) -> Duties:
    return Duties(one)


def worker_call(permission: str = "allow") -> turns_pb2.TurnEvent:
    block = {"type": "tool_use", "id": new_id("toolu"), "name": "bash", "input": {}}
    return event(
        "agent.tool_use", name="bash", input={}, evaluated_permission=permission, executor="worker", content=[block]
    )


def result(call_id: str, text: str = "done", **fields: Any) -> dict[str, Any]:
    return {"type": "user.tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": text}]} | fields


async def refusal(waiting: Any) -> str:
    with pytest.raises(DomainError) as refused:
        await waiting
    return refused.value.reason


async def parked(one: Replica, runner: Any, session_id: str, *calls: Any) -> turns_pb2.TurnGrant:
    grant = await runner.granted()
    ids = [each.id for each in calls]
    await one.append(grant, event("span.model_request_start"), *calls, end=end("REQUIRES_ACTION", event_ids=ids))
    return grant


async def test_each_change_is_announced_in_its_order(one: Replica, duties: Duties, nats_url: str) -> None:
    environment_id = await self_hosted(one)
    nats = await connect(nats_url, "test")
    told: list[duties_pb2.DutyChanged] = []

    async def hear(message: Any) -> None:
        told.append(duties_pb2.DutyChanged.FromString(message.data))

    await nats.subscribe(f"sessions.work.{environment_id}", hear)
    await nats.client.flush()
    session_id = await one.create_session(environment_id=environment_id)
    plain = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user())
        first, second = worker_call(), worker_call("ask")
        await parked(one, runner, session_id, first, second)
        assert await duties.has_work(session_id) == (True, first.id)
        await one.send(session_id, result(first.id))
        # What is left waits for a person.
        assert await duties.has_work(session_id) == (False, "")
        await one.send(session_id, {"type": "user.tool_confirmation", "tool_use_id": second.id, "result": "allow"})
        assert await duties.has_work(session_id) == (True, second.id)
        await one.send(session_id, result(second.id))
        grant = await runner.granted()
        await one.append(grant, *answer(), end=end())
        await one.send(plain, user())
        await one.stop(session_id)
    await await_until(lambda: len(told) == 5)
    assert [(each.has_work, each.ended) for each in told] == [
        (True, False),
        (False, False),
        (True, False),
        (False, False),
        (False, True),
    ]
    assert [each.seq for each in told] == sorted({each.seq for each in told})
    assert {(each.session_id, each.environment_id) for each in told} == {(session_id, environment_id)}
    await nats.close()


async def test_a_result_counts_before_the_turn_waits_for_it(one: Replica, duties: Duties) -> None:
    session_id = await one.create_session(environment_id=await self_hosted(one))
    async with one.runner() as runner:
        await one.send(session_id, user())
        grant = await runner.granted()
        call = worker_call()
        await one.append(grant, event("span.model_request_start"), call)
        await one.send(session_id, result(call.id))
        gone_on = await one.append(grant, end=end("REQUIRES_ACTION", event_ids=[call.id]))
        assert not gone_on.ended and gone_on.new_events[-1].type == "user.tool_result"
        await one.append(grant, *answer(), end=end())
    assert types(await one.log(session_id))[-1] == "session.status_idle"


async def test_results_are_taken_once_and_a_repeat_is_answered_alike(one: Replica) -> None:
    session_id = await one.create_session(environment_id=await self_hosted(one))
    async with one.runner() as runner:
        await one.send(session_id, user())
        call = worker_call()
        await parked(one, runner, session_id, call)
        for wrong in (result("sevt_unknown"), {**result(call.id), "type": "user.custom_tool_result"}):
            wrong = (
                wrong if wrong["type"] == "user.tool_result" else {"custom_tool_use_id": call.id, "type": wrong["type"]}
            )
            assert await refusal(one.send(session_id, wrong)) == "TOOL_CALL_NOT_PENDING"
        stored = await one.send(session_id, result(call.id))
        repeated = await one.send(session_id, result(call.id))
        assert [each.id for each in repeated.events] == [each.id for each in stored.events]
        for other in (result(call.id, "other"), result(call.id, is_error=True)):
            assert await refusal(one.send(session_id, other)) == "TOOL_CALL_NOT_PENDING"
        await one.append(await runner.granted(), *answer(), end=end())
        assert (await one.send(session_id, result(call.id))).events[0].id == stored.events[0].id
    assert types(await one.log(session_id)).count("user.tool_result") == 1


async def test_a_lost_workers_calls_are_settled_once_and_the_turn_goes_on(one: Replica, duties: Duties) -> None:
    session_id = await one.create_session(environment_id=await self_hosted(one))
    async with one.runner() as runner:
        await one.send(session_id, user())
        calls = [worker_call(), worker_call(), worker_call("ask")]
        await parked(one, runner, session_id, *calls)
        assert await duties.settle(session_id) == 2
        assert await duties.settle(session_id) == 0
        assert await refusal(one.send(session_id, result(calls[0].id))) == "TOOL_CALL_NOT_PENDING"
        log = await one.log(session_id)
        unknown = [entry for entry in log if entry["type"] == "user.tool_result"]
        assert [entry["tool_use_id"] for entry in unknown] == [calls[0].id, calls[1].id]
        assert all(entry["is_error"] and "work_outcome_unknown" in entry["content"][0]["text"] for entry in unknown)
        assert log[-1]["stop_reason"]["event_ids"] == [calls[2].id]


async def test_an_idle_tells_which_calls_wait_for_people(one: Replica) -> None:
    session_id = await one.create_session(environment_id=await self_hosted(one))
    async with one.runner() as runner:
        await one.send(session_id, user())
        runs, asks = worker_call(), worker_call("ask")
        await parked(one, runner, session_id, runs, asks)
        both = (await one.log(session_id))[-1]
        assert (both["stop_reason"]["event_ids"], both["metadata"]["client_event_ids"]) == (
            [runs.id, asks.id],
            [asks.id],
        )
        await one.send(session_id, {"type": "user.tool_confirmation", "tool_use_id": asks.id, "result": "allow"})
        none = (await one.log(session_id))[-1]
        assert (none["stop_reason"]["event_ids"], none["metadata"]["client_event_ids"]) == ([runs.id, asks.id], [])


async def test_workers_that_can_not_serve_leave_an_error_and_an_idle_session(one: Replica, duties: Duties) -> None:
    environment_id = await self_hosted(one)
    session_id = await one.create_session(environment_id=environment_id)
    async with one.runner() as runner:
        await one.send(session_id, user())
        await parked(one, runner, session_id, worker_call())
        await duties.ReportFailedWork(duties_pb2.ReportFailedWorkRequest(session_id=session_id, message="No luck."))
        log = await one.log(session_id)
        error = last(log, "session.error")["error"]
        assert (error["type"], error["message"]) == ("worker_failed_error", "No luck.")
        assert log[-1]["stop_reason"] == {"type": "retries_exhausted"} and await one.status(session_id) == "idle"
        assert await duties.has_work(session_id) == (False, "")
        # It can be used again.
        await one.send(session_id, user())
        await one.append(await runner.granted(), *answer(), end=end())


async def test_a_session_that_is_not_there_needs_nobody(one: Replica, duties: Duties) -> None:
    for session_id in (new_id("sess"), "nonsense"):
        assert await refusal(duties.has_work(session_id)) == "SESSION_NOT_FOUND"
        assert await refusal(duties.GetReach(duties_pb2.GetReachRequest(session_id=session_id))) == "SESSION_NOT_FOUND"


@pytest_asyncio.fixture(loop_scope="package")
async def lead(one: Replica) -> AsyncIterator[Coordinator]:
    multiagent = {"type": "coordinator", "agents": [await saved(one, "writer"), await saved(one, "critic")]}
    agent_id = await saved(one, "lead", multiagent=multiagent)
    body = {"agent": agent_id, "environment_id": await self_hosted(one)}
    request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps(body))
    session = (await one.sessions.CreateSession(request)).session
    async with one.runner(slots=40) as runner:
        yield Coordinator(one, runner, session.id)


async def waiting_thread(lead: Coordinator, permission: str = "allow") -> tuple[str, dict[str, Any]]:
    """A thread that waits for a worker, and its call as the session shows it."""
    [thread_id] = await lead.start(await lead.begin(), "writer")
    grant = await lead.turn_of(thread_id)
    call = worker_call(permission)
    await lead.replica.append(grant, call, end=end("REQUIRES_ACTION", event_ids=[call.id]))
    log = await until_status(lead, "requires_action")
    shown = last(log, "agent.tool_use")
    assert (shown["session_thread_id"], shown["executor"]) == (thread_id, "worker")
    return thread_id, shown


async def test_a_call_of_a_thread_is_answered_where_workers_read_it(lead: Coordinator, duties: Duties) -> None:
    thread_id, shown = await waiting_thread(lead, "ask")
    assert await duties.has_work(lead.id) == (False, "")
    await lead.replica.send(lead.id, {"type": "user.tool_confirmation", "tool_use_id": shown["id"], "result": "allow"})

    async def needed() -> bool:
        return await duties.has_work(lead.id) == (True, shown["id"])

    await await_until(needed)
    await lead.replica.send(lead.id, result(shown["id"]))
    answered = last(await lead.log(), "user.tool_result")
    assert (answered["tool_use_id"], answered["session_thread_id"]) == (shown["id"], thread_id)
    await lead.finish(thread_id)
    assert types(await lead.log()).count("agent.tool_use") == 2


async def test_a_call_of_a_thread_is_settled_with_its_session(lead: Coordinator, duties: Duties) -> None:
    thread_id, shown = await waiting_thread(lead)
    assert await duties.settle(lead.id) == 1
    settled = last(await lead.log(), "user.tool_result")
    assert settled["tool_use_id"] == shown["id"] and settled["is_error"]
    assert "work_outcome_unknown" in last(await lead.thread_log(thread_id), "user.tool_result")["content"][0]["text"]
    await lead.finish(thread_id)


async def test_workers_read_that_a_thread_gave_its_call_up(lead: Coordinator, duties: Duties) -> None:
    _, shown = await waiting_thread(lead)
    await lead.replica.send(lead.id, {"type": "user.interrupt"})

    async def given_up() -> bool:
        found = [entry for entry in await lead.log() if entry["type"] == "user.tool_result"]
        return [entry["tool_use_id"] for entry in found] == [shown["id"]]

    await await_until(given_up)
    assert await refusal(lead.replica.send(lead.id, result(shown["id"]))) == "TOOL_CALL_NOT_PENDING"
