"""Threads of a coordinator: started, awaited, answered, listed and counted."""

from typing import Any

import orjson
import pytest

from kit.errors import DomainError, NotFound
from kit.testing import await_until
from managed_agents.sessions.v1 import sessions_pb2, threads_pb2, turns_pb2
from tests.integration.sessions.thread_driver import (
    Coordinator,
    called,
    has,
    last,
    results,
    saved,
    send,
    spoken,
    start,
)
from tests.integration.sessions.turn_driver import (
    Replica,
    answer,
    end,
    event,
    types,
    user,
)

pytestmark = pytest.mark.asyncio(loop_scope="package")

IDLE = ["session.thread_status_idle", "session.usage", "session.status_idle"]
ALLOW = {"type": "user.tool_confirmation", "result": "allow"}


def _spent(tokens: int) -> turns_pb2.ModelUsage:
    return turns_pb2.ModelUsage(model_id="m", usage=sessions_pb2.Usage(input_tokens=tokens))


async def test_a_thread_answers_the_call_that_started_it(one: Replica, lead: Coordinator) -> None:
    grant = await lead.begin()
    (thread_id,) = await lead.start(grant, "writer")
    assert await lead.status() == "running"
    await lead.finish(thread_id, "a poem")

    again = await lead.turn_of(lead.id)
    log = await lead.log()

    assert types(log)[3:] == [
        "agent.tool_use",
        "session.thread_created",
        "agent.thread_message_sent",
        "session.thread_status_running",
        "agent.thread_message_received",
        "session.thread_status_idle",
        "agent.tool_result",
    ]
    result = log[-1]
    assert result["tool_use_id"] == log[3]["id"]
    assert [block["text"] for block in result["content"]] == [f"Thread {thread_id} (writer):", "a poem"]
    await one.append(again, *answer(), end=end())
    assert types(await lead.log())[-3:] == IDLE
    assert types(await lead.thread_log(thread_id)) == [
        "agent.thread_message_received",
        "session.thread_status_running",
        "span.model_request_start",
        "agent.message",
        "span.model_request_end",
        "agent.thread_message_sent",
        "session.thread_status_idle",
    ]


async def test_a_coordinator_goes_on_when_all_have_answered(one: Replica, lead: Coordinator) -> None:
    first, second = await lead.start(await lead.begin(), "writer", "critic")

    await lead.finish(second, "two")
    await await_until(lambda: has(lead, "agent.tool_result"), message="one has answered")
    assert await lead.status() == "running"
    # Its own turn is all that the runner is granted: the coordinator waits for the other one.
    held = await lead.turn_of(first)
    assert await lead.runner.nothing_granted()
    await one.append(held, *spoken(held, "one"), end=end())
    grant = await lead.turn_of(lead.id)

    assert grant.attempt == 1
    assert sorted(results(await lead.log())) == sorted(
        [f"Thread {first} (writer):\none", f"Thread {second} (critic):\ntwo"]
    )


async def test_an_answer_during_the_coordinators_own_work_is_handed_to_its_runner(
    one: Replica, lead: Coordinator
) -> None:
    grant = await lead.begin()
    started = start()
    await one.append(grant, started)
    (thread_id,) = [thread.id for thread in (await lead.threads())[1:]]
    await lead.finish(thread_id, "early")
    await await_until(lambda: has(lead, "agent.tool_result"), message="the answer is in the log")

    response = await one.append(grant, end=end("REQUIRES_ACTION", event_ids=[started.id]))

    assert not response.ended
    assert "agent.tool_result" in [each.type for each in response.new_events]
    assert (await one.append(grant, *answer(), end=end(), known_seq=response.last_seq)).ended


async def test_a_thread_remembers_what_was_said_when_it_is_sent_to_again(one: Replica, lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "writer")
    await lead.finish(thread_id, "a poem")
    grant = await lead.turn_of(lead.id)
    asked = send(thread_id, "shorter")
    await one.append(grant, asked, end=end("REQUIRES_ACTION", event_ids=[asked.id]))

    again = await lead.turn_of(thread_id)

    # The runner knows what came before.
    assert again.context_after_seq > 0
    assert [each.type for each in again.context] == ["agent.thread_message_received"]
    await one.append(again, *spoken(again, "short"), end=end())
    await lead.turn_of(lead.id)
    assert results(await lead.log())[-1].endswith("short")
    assert len(await lead.threads()) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"agent": "nobody", "message": "x"}, "agent must be one of: writer, critic, lead."),
        ({"agent": "writer", "message": " "}, "message must be a text"),
        ({"agent": "writer"}, "message must be a text"),
        ({}, "message must be a text"),
    ],
)
async def test_a_call_that_can_not_be_done_is_told_why(
    one: Replica, lead: Coordinator, arguments: dict[str, Any], told: str
) -> None:
    grant = await lead.begin()
    asked = called("start_thread", **arguments)

    response = await one.append(grant, asked, end=end("REQUIRES_ACTION", event_ids=[asked.id]))

    assert not response.ended
    (result,) = results(await lead.log())
    assert result.startswith(told)
    assert len(await lead.threads()) == 1


async def test_a_message_goes_to_open_threads_alone_and_one_call_waits_for_each(
    one: Replica, lead: Coordinator
) -> None:
    grant = await lead.begin()
    await one.append(grant, start())
    (thread_id,) = [thread.id for thread in (await lead.threads())[1:]]

    await one.append(grant, send("sthr_none"), send(thread_id))

    unknown, busy = results(await lead.log())
    assert unknown.startswith("thread_id must name an open thread of yours")
    assert "is at work on another call" in busy


async def test_at_most_twenty_five_threads_at_once(one: Replica, lead: Coordinator) -> None:
    grant = await lead.begin()

    await one.append(grant, *(start() for _ in range(26)))

    threads = await lead.threads()
    assert len(threads) == 26
    (refused,) = results(await lead.log())
    assert refused.startswith("No thread was started: the session has 25 threads")
    await lead.finish(threads[1].id)
    await lead.replica.threads.ArchiveThread(
        threads_pb2.ArchiveThreadRequest(session_id=lead.id, thread_id=threads[1].id)
    )
    await one.append(grant, start())
    assert len(await lead.threads()) == 27


async def test_threads_run_saved_agents_without_a_roster_of_their_own(lead: Coordinator) -> None:
    (thread_id,) = await lead.start(await lead.begin(), "lead")

    grant = await lead.turn_of(thread_id)

    assert (grant.root_session_id, grant.session.id, grant.thread_id) == (lead.id, thread_id, thread_id)
    primary, thread = await lead.threads()
    assert grant.parent_thread_id == primary.id == thread.parent_thread_id
    assert "multiagent" not in orjson.loads(thread.agent.document_json)
    assert orjson.loads(thread.agent.document_json)["name"] == "lead"
    # Nobody is allowed a thread tool there; a call by that name alone starts nothing.
    await lead.replica.append(grant, start())
    assert len(await lead.threads()) == 2


async def test_usage_is_counted_by_thread_and_in_all(one: Replica, lead: Coordinator) -> None:
    grant = await lead.begin()
    await one.append(grant, usage=[_spent(3)])
    (thread_id,) = await lead.start(grant, "writer")
    thread_grant = await lead.turn_of(thread_id)
    await one.append(thread_grant, *spoken(thread_grant, "x"), usage=[_spent(5)], end=end())
    again = await lead.turn_of(lead.id)
    await one.append(again, *answer(), usage=[_spent(7)], end=end())

    assert [thread.usage.input_tokens for thread in await lead.threads()] == [10, 5]
    session = (await one.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=lead.id))).session
    assert session.usage.input_tokens == 15
    assert sum(entry.usage.input_tokens for entry in session.spend) == 15
    assert last(await lead.log(), "session.usage")["usage"]["input_tokens"] == 15


async def test_threads_are_listed_with_the_primary_one_and_no_session_is_one(one: Replica, lead: Coordinator) -> None:
    first, second = await lead.start(await lead.begin(), "writer", "critic")

    threads = await lead.threads()
    assert [thread.id for thread in threads[1:]] == [first, second]
    assert [thread.parent_thread_id for thread in threads] == ["", threads[0].id, threads[0].id]
    paged, cursor = [], ""
    for _ in range(3):
        request = threads_pb2.ListThreadsRequest(session_id=lead.id, page={"limit": 1, "cursor": cursor})
        page = await one.threads.ListThreads(request)
        paged += [thread.id for thread in page.threads]
        cursor = page.page_info.next_cursor
    assert paged == [thread.id for thread in threads] and not cursor
    listed = await one.sessions.ListSessions(sessions_pb2.ListSessionsRequest(page={"limit": 50}))
    assert [session.id for session in listed.sessions] == [lead.id]
    for refused in (
        one.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=first)),
        one.send(first, user()),
        one.log(first),
        one.threads.GetThread(threads_pb2.GetThreadRequest(session_id=lead.id, thread_id="sthr_none")),
        one.threads.GetThread(threads_pb2.GetThreadRequest(session_id=first, thread_id=first)),
    ):
        with pytest.raises(NotFound):
            await refused


async def test_the_primary_threads_log_is_the_sessions(lead: Coordinator) -> None:
    await lead.start(await lead.begin(), "writer")
    primary, _ = await lead.threads()

    assert await lead.thread_log(primary.id) == await lead.log()
    with pytest.raises(NotFound):
        await lead.thread_log("sthr_none")


async def test_what_no_runner_can_do_is_refused_for_each_agent_of_the_roster(one: Replica) -> None:
    helper = await saved(one, "helper", skills=[{"type": "custom", "skill_id": "skill_none"}])
    plain = await saved(one, "plain")
    advisor = {"type": "advisor", "model": "demo"}
    for name, roster, reason in (
        ("of skills", [plain, helper], "SKILL_NOT_FOUND"),
        ("with an advisor", [plain, advisor], "UNSUPPORTED_CAPABILITY"),
    ):
        agent_id = await saved(one, name, multiagent={"type": "coordinator", "agents": roster})
        with pytest.raises(DomainError) as refusal:
            await one.sessions.CreateSession(
                sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps({"agent": agent_id}))
            )
        assert refusal.value.reason == reason


async def test_a_session_shows_the_agents_of_its_roster(one: Replica, lead: Coordinator) -> None:
    session = (await one.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=lead.id))).session

    members = orjson.loads(session.agent.document_json)["multiagent"]["agents"]
    assert [(each["type"], each["name"], each["version"]) for each in members] == [
        ("agent", "writer", 1),
        ("agent", "critic", 1),
        ("agent", "lead", 1),
    ]
    assert all("multiagent" not in each and each["model"]["id"] == "demo" for each in members)


async def test_a_thread_that_is_refused_or_fails_says_so(one: Replica, lead: Coordinator) -> None:
    first, second, third = await lead.start(await lead.begin(), "writer", "critic", "lead")
    refusing, failing, silent = [await lead.turn_of(each) for each in (first, second, third)]
    details = orjson.dumps({"type": "refusal", "category": None, "explanation": "too rude"})
    error = {"type": "model_request_failed_error", "message": "no key", "retry_status": "not_retryable"}

    await one.append(refusing, *answer(), end=end("REFUSAL", stop_details_json=details))
    await one.append(failing, event("session.error", error=error, content=[]), end=end("FAILED"))
    await one.append(silent, end=end())

    await lead.turn_of(lead.id)
    told = results(await lead.log())
    assert sorted(each.split("\n")[1] for each in told) == [
        "The agent refused: too rude",
        "The thread ended its turn without a message.",
        "The thread failed: no key",
    ]
