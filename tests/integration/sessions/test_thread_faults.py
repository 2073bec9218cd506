"""Threads under faults: no thread is doubled, no answer lost, whoever dies in between."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import failpoints
from kit.errors import DomainError, FailedPrecondition, NotFound
from kit.testing import await_until
from managed_agents.sessions.v1 import sessions_pb2
from tests.integration.sessions.thread_driver import Coordinator, coordinator, spoken, start
from tests.integration.sessions.turn_driver import Replica, answer, end, lapse, replica, types, user

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


async def in_log(lead: Coordinator, event_type: str, count: int = 1) -> list[dict[str, Any]]:
    """The session's log once it has so many events of a type."""

    async def there() -> bool:
        return types(await lead.log()).count(event_type) >= count

    await await_until(there, message=f"{count} {event_type}")
    return await lead.log()


def told(log: list[dict[str, Any]]) -> list[str]:
    """The last line of each result."""
    return [entry["content"][-1]["text"] for entry in log if entry["type"] == "agent.tool_result"]


async def test_a_thread_whose_runner_is_lost_goes_on_with_another(one: Replica, dsn: str) -> None:
    async with coordinator(one) as lead:
        (thread_id,) = await lead.start(await lead.begin(), "writer")
        lost = await lead.turn_of(thread_id)
        await lapse(dsn, thread_id)
        log = await in_log(lead, "session.thread_status_rescheduled")
        assert log[-1]["session_thread_id"] == thread_id and await lead.status() == "running"
        assert "session.status_rescheduled" not in types(log)

        async with one.runner(slots=4) as other:
            grant = await other.granted()
            assert (grant.session.id, grant.attempt) == (thread_id, 2)
            await one.append(grant, *spoken(grant, "after all"), end=end())
            again = await other.granted()
            await one.append(again, *answer(), end=end())

        assert told(await lead.log()) == ["after all"]
        with pytest.raises(FailedPrecondition):
            await one.append(lost, *spoken(lost, "too late"), end=end())
        assert types(await lead.log())[-1] == "session.status_idle"


async def test_a_thread_that_is_given_up_answers_with_its_error(one: Replica, dsn: str) -> None:
    async with coordinator(one) as lead:
        (thread_id,) = await lead.start(await lead.begin(), "writer")
        await lead.turn_of(thread_id)
        await lapse(dsn, thread_id)
        await in_log(lead, "session.thread_status_rescheduled")
        for attempt in (2, 3):
            async with one.runner(slots=1) as runner:
                assert (await runner.granted()).attempt == attempt
                await lapse(dsn, thread_id)
                if attempt == 2:
                    await in_log(lead, "session.thread_status_rescheduled", 2)
        log = await in_log(lead, "agent.tool_result")

        assert told(log)[0].startswith("The thread failed: The turn was given up after 3 runners")
        assert types(await lead.thread_log(thread_id))[-2:] == ["session.error", "session.thread_status_idle"]


async def test_an_answer_outlives_the_coordinators_runner(one: Replica, dsn: str) -> None:
    async with coordinator(one) as lead:
        grant = await lead.begin()
        asked = start()
        await one.append(grant, asked)
        (thread_id,) = [thread.id for thread in (await lead.threads())[1:]]
        await lead.finish(thread_id, "kept")
        await lapse(dsn, lead.id)
        await in_log(lead, "session.status_rescheduled")

        async with one.runner(slots=4) as other:
            again = await other.granted()
            assert (again.session.id, again.attempt) == (lead.id, 2)
            ended = await one.append(again, *answer(), end=end())

        assert ended.ended and told(await lead.log()) == ["kept"]
        assert types(await lead.log()).count("session.thread_created") == 1


async def test_a_repeated_append_starts_no_second_thread(one: Replica) -> None:
    async with coordinator(one) as lead:
        grant = await lead.begin()
        asked = start()
        first = await one.append(grant, asked)
        again = await one.append(grant, asked)
        parked = await one.append(grant, asked, end=end("REQUIRES_ACTION", event_ids=[asked.id]))
        repeated = await one.append(grant, asked, end=end("REQUIRES_ACTION", event_ids=[asked.id]))

        assert again.last_seq >= first.last_seq
        assert parked.ended and repeated.ended
        assert len(await lead.threads()) == 2
        assert types(await lead.log()).count("session.thread_created") == 1


async def test_a_thread_is_begun_with_its_call_or_not_at_all(one: Replica) -> None:
    async with coordinator(one) as lead:
        grant = await lead.begin()
        asked = start()
        failpoints.arm("sessions.threads.begun=raise@1")
        with pytest.raises(DomainError):
            await one.append(grant, asked)
        assert len(await lead.threads()) == 1 and "agent.tool_use" not in types(await lead.log())

        await one.append(grant, asked)

        assert len(await lead.threads()) == 2
        await lead.finish((await lead.threads())[1].id)
        assert len(told(await in_log(lead, "agent.tool_result"))) == 1


async def test_news_that_a_process_could_not_carry_over_is_heard_once(one: Replica) -> None:
    async with coordinator(one) as lead:
        first, second = await lead.start(await lead.begin(), "writer", "critic")
        failpoints.arm("sessions.threads.before_hearing=raise")
        await lead.finish(first, "one")
        await lead.finish(second, "two")
        assert types(await lead.thread_log(second))[-1] == "session.thread_status_idle"
        assert "agent.tool_result" not in types(await lead.log())

        failpoints.arm("")

        grant = await lead.turn_of(lead.id)
        assert sorted(told(await lead.log())) == ["one", "two"]
        await one.append(grant, *answer(), end=end())
        assert types(await lead.log()).count("agent.tool_result") == 2


async def test_news_outlives_the_service(dsn: str, nats_url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ma-") as folder:
        async with (
            replica(dsn, nats_url, Path(folder), lease_seconds=60, sweep_seconds=60) as dying,
            coordinator(dying) as lead,
        ):
            (thread_id,) = await lead.start(await lead.begin(), "writer")
            failpoints.arm("sessions.threads.before_hearing=raise")
            await lead.finish(thread_id, "kept")
        failpoints.arm("")
        async with (
            replica(dsn, nats_url, Path(folder), sweep_seconds=0.05) as next_one,
            next_one.runner(slots=2) as runner,
        ):
            grant = await runner.granted()
            assert grant.session.id == lead.id
            assert told(await next_one.log(lead.id)) == ["kept"]


async def test_a_thread_may_end_while_its_session_is_deleted(one: Replica) -> None:
    async with coordinator(one) as lead:
        (thread_id,) = await lead.start(await lead.begin(), "writer")
        grant = await lead.turn_of(thread_id)
        failpoints.arm("sessions.threads.before_hearing=raise")
        await one.append(grant, *spoken(grant, "x"), end=end())
        await one.sessions.DeleteSession(sessions_pb2.DeleteSessionRequest(session_id=lead.id))
        failpoints.arm("")

        with pytest.raises(NotFound):
            await lead.log()


async def test_threads_that_end_at_once_on_two_replicas_are_all_heard(dsn: str, nats_url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ma-") as folder:
        async with (
            replica(dsn, nats_url, Path(folder), lease_seconds=60, sweep_seconds=0.05) as one,
            replica(dsn, nats_url, Path(folder), lease_seconds=60, sweep_seconds=0.05) as two,
            coordinator(one) as lead,
        ):
            ids = await lead.start(await lead.begin(), *["writer"] * 20)
            grants = [await lead.turn_of(thread_id) for thread_id in ids]
            answers = [
                ((one, two)[number % 2]).append(grant, *spoken(grant, f"answer {number}"), end=end())
                for number, grant in enumerate(grants)
            ]
            messages = [two.send(lead.id, user(f"message {number}")) for number in range(10)]
            await asyncio.gather(*answers, *messages)

            await lead.turn_of(lead.id)

            log = await lead.log()
            assert sorted(told(log)) == sorted(f"answer {number}" for number in range(20))
            assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
            assert types(log).count("user.message") == 11
            assert types(log).count("session.status_running") == 1
