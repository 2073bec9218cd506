"""Threads of a coordinator: what a client answers and interrupts, and how threads end."""

import orjson
import pytest

from kit.errors import DomainError, FailedPrecondition, InvalidArgument, NotFound
from kit.testing import await_until
from managed_agents.sessions.v1 import sessions_pb2, threads_pb2
from tests.integration.sessions.thread_driver import (
    Coordinator,
    ask,
    has,
    last,
    results,
    send,
    spoken,
    start,
    until_status,
)
from tests.integration.sessions.turn_driver import (
    Replica,
    answer,
    call,
    end,
    event,
    types,
    user,
)

pytestmark = pytest.mark.asyncio(loop_scope="package")

IDLE = ["session.thread_status_idle", "session.usage", "session.status_idle"]
ALLOW = {"type": "user.tool_confirmation", "result": "allow"}


async def has_posted(lead: Coordinator) -> bool:
    return any(entry["type"] == "agent.tool_use" and "session_thread_id" in entry for entry in await lead.log())


async def test_a_confirmation_in_a_thread_is_shown_answered_and_routed(one: Replica, lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    (posted,) = await ask(lead, thread_id, "tool_use")
    log = await lead.log()

    shown = next(entry for entry in log if entry["id"] == posted)
    assert (shown["type"], shown["session_thread_id"]) == ("agent.tool_use", thread_id)
    assert types(log)[-5:] == ["agent.tool_use", "session.thread_status_idle", *IDLE]
    assert last(log[:-3], "session.thread_status_idle")["stop_reason"]["event_ids"] == [posted]
    response = await one.send(lead.id, ALLOW | {"tool_use_id": posted})

    stored = orjson.loads(response.events[0].body)
    assert (stored["tool_use_id"], stored["session_thread_id"]) == (posted, thread_id)
    grant = await lead.turn_of(thread_id)
    (own,) = [entry for entry in await lead.thread_log(thread_id) if entry["type"] == "user.tool_confirmation"]
    assert own["tool_use_id"] != posted and own["metadata"]["decision"] == "allow"
    assert types(await lead.log())[-4:] == [
        "user.tool_confirmation",
        "session.thread_status_running",
        "session.status_running",
        "session.thread_status_running",
    ]
    await one.append(grant, *spoken(grant, "confirmed"), end=end())
    await lead.turn_of(lead.id)
    assert results(await lead.log())[-1].endswith("confirmed")


@pytest.mark.parametrize("name", ["own event", "block"])
async def test_a_call_of_a_thread_is_also_known_by_its_other_ids(one: Replica, lead: Coordinator, name: str) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    await ask(lead, thread_id, "tool_use")
    own = last(await lead.thread_log(thread_id), "agent.tool_use")["id"]

    await one.send(lead.id, ALLOW | {"tool_use_id": own if name == "own event" else "toolu_0"})

    assert (await lead.turn_of(thread_id)).attempt == 1


async def test_a_custom_tool_of_a_thread_is_answered_through_the_session(one: Replica, lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    (posted,) = await ask(lead, thread_id, "custom_tool_use")
    reply = {"type": "user.custom_tool_result", "custom_tool_use_id": posted, "content": "42"}

    await one.send(lead.id, reply)

    grant = await lead.turn_of(thread_id)
    assert "user.custom_tool_result" in [each.type for each in grant.context]


async def test_a_partial_answer_keeps_the_rest_waiting(one: Replica, lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    first, second = await ask(lead, thread_id, "tool_use", "custom_tool_use")

    await one.send(lead.id, ALLOW | {"tool_use_id": first})

    log = await lead.log()
    assert last(log, "session.status_idle")["stop_reason"]["event_ids"] == [second]
    assert types(log).count("agent.custom_tool_use") == 1
    with pytest.raises(DomainError) as refusal:
        await one.send(lead.id, ALLOW | {"tool_use_id": first})
    assert refusal.value.reason == "TOOL_CALL_NOT_PENDING" and second in refusal.value.message
    assert types(await lead.log()) == types(log)


async def test_the_session_runs_as_long_as_any_thread_does(one: Replica, lead: Coordinator) -> None:
    first, second = await lead.start(await lead.begin(), "writer", "critic")
    grant = await lead.turn_of(first)
    asked = call("agent.tool_use", "toolu_0")
    await one.append(grant, asked, end=end("REQUIRES_ACTION", event_ids=[asked.id]))
    await await_until(lambda: has_posted(lead), message="the call is shown")
    assert await lead.status() == "running"

    await lead.finish(second)

    log = await until_status(lead, "requires_action")
    assert types(log)[-3:] == IDLE
    assert types(log).count("session.status_idle") == 1


async def test_messages_wait_while_threads_work(one: Replica, lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    system = {"type": "system.message", "content": [{"type": "text", "text": "be kind"}]}

    await one.send(lead.id, user("and now?"), system)

    assert [entry["processed_at"] for entry in (await lead.log())[-2:]] == [None, None]
    await lead.finish(thread_id)
    grant = await lead.turn_of(lead.id)
    assert {"user.message", "system.message"} <= {each.type for each in grant.context}


async def test_an_interrupt_without_a_name_stops_every_thread(one: Replica, lead: Coordinator) -> None:
    first, second = await lead.start(await lead.begin(), "writer", "critic")
    held = [await lead.turn_of(first), await lead.turn_of(second)]

    await one.send(lead.id, {"type": "user.interrupt"})

    log = await lead.log()
    assert results(log) == ["The call was not executed: the turn was interrupted."] * 2
    assert await lead.status() == "running"
    for grant in held:
        renewed = await lead.runner.renew(grant)
        (signal,) = renewed.interrupted
        await one.append(grant, end=end("INTERRUPTED", interrupt_seq=signal.interrupt_seq))
    log = await until_status(lead, "idle")
    assert types(log)[-2:] == IDLE[1:] and types(log).count("session.error") == 0
    assert last(log, "session.status_idle")["stop_reason"] == {"type": "end_turn"}


async def test_an_interrupt_by_name_stops_that_thread_and_tells_the_coordinator(
    one: Replica, lead: Coordinator
) -> None:
    first, second = await lead.start(await lead.begin(), "writer", "critic")
    grant = await lead.turn_of(first)
    await lead.turn_of(second)

    await one.send(lead.id, {"type": "user.interrupt", "session_thread_id": first})
    (signal,) = (await lead.runner.renew(grant)).interrupted
    await one.append(grant, end=end("INTERRUPTED", interrupt_seq=signal.interrupt_seq))

    await await_until(lambda: has(lead, "agent.tool_result"), message="the coordinator is told")
    (result,) = results(await lead.log())
    assert result == f"Thread {first} (writer):\nThe thread was interrupted by the user before it answered."
    assert await lead.status() == "running"
    assert "user.interrupt" not in types(await lead.thread_log(second))


async def test_an_interrupt_of_the_primary_thread_lets_the_others_work_on(one: Replica, lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    primary, _ = await lead.threads()

    await one.send(lead.id, {"type": "user.interrupt", "session_thread_id": primary.id})
    assert types(await lead.log())[-1] == "session.thread_status_idle"
    assert await lead.status() == "running"
    assert [thread.status for thread in await lead.threads()] == [1, 2]
    await lead.finish(thread_id, "late")

    log = await until_status(lead, "idle")
    assert types(log)[-4:] == [
        "agent.thread_message_received",
        "session.thread_status_idle",
        *IDLE[1:],
    ]
    # Nobody waited for it: it is part of what the coordinator reads next.
    grant = await lead.begin("more")
    assert "agent.thread_message_received" in [each.type for each in grant.context]


async def test_an_unknown_thread_can_not_be_interrupted(one: Replica, lead: Coordinator) -> None:
    with pytest.raises(InvalidArgument):
        await one.send(lead.id, {"type": "user.interrupt", "session_thread_id": "sthr_none"})


async def test_an_archived_thread_is_closed(one: Replica, lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    request = threads_pb2.ArchiveThreadRequest(session_id=lead.id, thread_id=thread_id)
    with pytest.raises(FailedPrecondition):
        await one.threads.ArchiveThread(request)
    await lead.finish(thread_id)
    grant = await lead.turn_of(lead.id)

    archived = (await one.threads.ArchiveThread(request)).thread
    assert archived.archived_at and (await one.threads.ArchiveThread(request)).thread == archived
    await one.append(grant, send(thread_id))

    assert results(await lead.log())[-1].startswith("thread_id must name an open thread of yours")
    with pytest.raises(InvalidArgument):
        await one.send(lead.id, {"type": "user.interrupt", "session_thread_id": thread_id})
    primary = (await lead.threads())[0].id
    with pytest.raises(InvalidArgument):
        await one.threads.ArchiveThread(threads_pb2.ArchiveThreadRequest(session_id=lead.id, thread_id=primary))


async def test_archiving_a_thread_that_waits_for_a_client_answers_its_call(one: Replica, lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    (posted,) = await ask(lead, thread_id, "tool_use")

    await one.threads.ArchiveThread(threads_pb2.ArchiveThreadRequest(session_id=lead.id, thread_id=thread_id))

    await lead.turn_of(lead.id)
    assert results(await lead.log())[-1].endswith("The thread was archived before it answered.")
    with pytest.raises(DomainError) as refusal:
        await one.send(lead.id, ALLOW | {"tool_use_id": posted})
    assert refusal.value.reason == "TOOL_CALL_NOT_PENDING"


async def test_a_stopped_session_stops_its_threads(one: Replica, lead: Coordinator) -> None:
    first, second = await lead.start(await lead.begin(), "writer", "critic")
    grant = await lead.turn_of(first)

    await one.sessions.StopSession(sessions_pb2.StopSessionRequest(session_id=lead.id))

    terminated = "session.thread_status_terminated"
    log = await lead.log()
    assert types(log)[-2:] == [terminated, "session.status_terminated"]
    assert types(log).count(terminated) == 3 and len(results(log)) == 2
    for thread_id in (first, second):
        assert types(await lead.thread_log(thread_id))[-1] == terminated
    assert [thread.status for thread in await lead.threads()] == [5, 5, 5]
    with pytest.raises(FailedPrecondition):
        await one.append(grant, *answer(), end=end())


async def test_an_archived_session_archives_its_threads(one: Replica, lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    request = sessions_pb2.ArchiveSessionRequest(session_id=lead.id)
    with pytest.raises(FailedPrecondition):
        await one.sessions.ArchiveSession(request)
    await ask(lead, thread_id, "tool_use")

    await one.sessions.ArchiveSession(request)

    assert all(thread.archived_at for thread in await lead.threads())


async def test_a_deleted_session_takes_its_threads_along(one: Replica, lead: Coordinator) -> None:
    first, second = await lead.start(await lead.begin(), "writer", "critic")
    await lead.finish(first)
    await one.threads.ArchiveThread(threads_pb2.ArchiveThreadRequest(session_id=lead.id, thread_id=first))
    grant = await lead.turn_of(second)

    await one.sessions.DeleteSession(sessions_pb2.DeleteSessionRequest(session_id=lead.id))

    for refused in (lead.threads(), lead.thread_log(first), one.append(grant, *answer(), end=end())):
        with pytest.raises((NotFound, FailedPrecondition)):
            await refused


async def test_an_interrupt_writes_no_second_result_for_a_call_that_was_answered(
    one: Replica, lead: Coordinator
) -> None:
    grant = await lead.begin()
    asked = start()
    await one.append(grant, asked)
    await lead.finish((await lead.threads())[1].id, "in time")
    await await_until(lambda: has(lead, "agent.tool_result"), message="the answer is in the log")
    await one.send(lead.id, {"type": "user.interrupt"})
    late = event("agent.tool_result", tool_use_id=asked.id, content=[], is_error=True)

    response = await one.append(grant, late, end=end("INTERRUPTED"))

    assert response.ended and "agent.tool_result" in [each.type for each in response.new_events]
    (result,) = results(await lead.log())
    assert result.endswith("in time")


async def test_a_thread_is_granted_to_the_runner_that_has_its_sessions_sandbox(one: Replica, lead: Coordinator) -> None:
    grant = await lead.begin()
    async with one.runner(slots=90):
        first, second = await lead.start(grant, "writer", "critic")

        # The other runner is less busy.
        assert {(await lead.turn_of(each)).session.id for each in (first, second)} == {first, second}


async def test_one_request_may_start_the_coordinator_and_interrupt_a_thread(one: Replica, lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    held = await lead.turn_of(thread_id)
    primary, _ = await lead.threads()
    await one.send(lead.id, {"type": "user.interrupt", "session_thread_id": primary.id})

    await one.send(lead.id, user("next"), {"type": "user.interrupt", "session_thread_id": thread_id})

    grant = await lead.turn_of(lead.id)
    await one.append(held, end=end("INTERRUPTED"))
    await one.append(grant, *answer(), end=end())
    assert types(await until_status(lead, "idle")).count("session.status_idle") == 1


async def test_one_request_may_answer_the_coordinator_and_a_thread(one: Replica, lead: Coordinator) -> None:
    grant = await lead.begin()
    own, started = call("agent.tool_use", "toolu_own"), start()
    await one.append(grant, own, started, end=end("REQUIRES_ACTION", event_ids=[own.id, started.id]))
    (thread_id,) = [thread.id for thread in (await lead.threads())[1:]]
    ids = await ask(lead, thread_id, "tool_use")
    assert ids[0] == own.id and len(ids) == 2

    await one.send(lead.id, *(ALLOW | {"tool_use_id": each} for each in ids))

    again = await lead.turn_of(thread_id)
    assert await lead.status() == "running"
    await one.append(again, *spoken(again, "done"), end=end())
    # It parked on both, so the turn that goes on runs what was allowed.
    grant = await lead.turn_of(lead.id)
    assert orjson.loads(grant.session.stop_reason_json)["type"] == "requires_action" and grant.attempt == 1
