"""The journal keeps order, sends each event once, survives a service that is away, and obeys its lease."""

import time
from typing import Any

import orjson
import pytest

from kit.errors import FailedPrecondition, Unavailable
from kit.testing import await_until
from managed_agents.sessions.v1.events_pb2 import Event
from managed_agents.sessions.v1.turns_pb2 import (
    TURN_END_KIND_END_TURN,
    AppendTurnEventsRequest,
    AppendTurnEventsResponse,
    TurnEnd,
)
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.journal import MAX_APPEND_EVENTS, Journal, encode
from services.worker.runner.loop.leases import Lease, LeaseLost, margin_seconds
from services.worker.runner.models.base import TokenUsage

END = TurnEnd(kind=TURN_END_KIND_END_TURN)


class TurnLeaseLost(FailedPrecondition):
    reason = "TURN_LEASE_LOST"


class Log:
    """A service that stores what it gets, and fails when told to."""

    def __init__(self, *failures: Exception) -> None:
        self.requests: list[AppendTurnEventsRequest] = []
        self.failures = list(failures)
        self.answer = AppendTurnEventsResponse(last_seq=5)

    async def __call__(self, request: AppendTurnEventsRequest) -> AppendTurnEventsResponse:
        self.requests.append(request)
        if self.failures:
            raise self.failures.pop(0)
        return self.answer


def journal(log: Log, lease_seconds: float = 10.0) -> Journal:
    lease = Lease("sess_1", 3)
    lease.extend(time.monotonic(), lease_seconds)
    return Journal(log, lease, Conversation(known_seq=2))


async def test_events_that_come_together_are_one_append() -> None:
    log = Log()
    writer = journal(log)
    ids = [writer.add("span.model_request_start", {}), writer.add("agent.message", {"content": []})]
    await writer.flush(END)
    (request,) = log.requests
    assert [event.id for event in request.events] == ids
    assert (request.session_id, request.epoch, request.known_seq) == ("sess_1", 3, 2)
    assert request.HasField("end")
    assert await writer.flush() is None


async def test_a_lone_marker_lingers_and_is_then_written() -> None:
    log = Log()
    writer = journal(log)
    writer.add("span.model_request_start", {})
    assert not log.requests
    await await_until(lambda: log.requests)
    assert [event.type for event in log.requests[0].events] == ["span.model_request_start"]
    writer.add("agent.tool_use", {"name": "bash", "input": {}})
    await writer.flush()
    assert [event.type for event in log.requests[1].events] == ["agent.tool_use"]


async def test_a_service_that_is_away_gets_the_same_events_again() -> None:
    log = Log(Unavailable("away"), Unavailable("away"))
    writer = journal(log)
    writer.add("agent.message", {"content": []})
    await writer.flush()
    assert len(log.requests) == 3
    assert len({request.SerializeToString(deterministic=True) for request in log.requests}) == 1


async def test_nothing_is_written_after_the_lease() -> None:
    log = Log()
    writer = journal(log, lease_seconds=0.0)
    writer.add("agent.message", {"content": []})
    with pytest.raises(LeaseLost):
        await writer.flush()
    assert not log.requests


async def test_a_refusal_of_the_service_is_the_end_of_the_lease() -> None:
    writer = journal(Log(TurnLeaseLost("taken by another")))
    writer.add("agent.message", {"content": []})
    with pytest.raises(LeaseLost, match="taken by another"):
        await writer.flush()


async def test_a_failure_in_the_background_is_told_at_the_next_flush() -> None:
    log, told = Log(TurnLeaseLost("taken")), []
    writer = journal(log)
    writer.on_failure = told.append
    writer.add("span.model_request_start", {})
    await await_until(lambda: told)
    with pytest.raises(LeaseLost):
        await writer.flush()


async def test_an_answer_brings_what_clients_sent_meanwhile() -> None:
    log = Log()
    body = orjson.dumps({"content": [{"type": "text", "text": "hi"}]})
    log.answer = AppendTurnEventsResponse(
        last_seq=9, interrupt_seq=8, new_events=[Event(seq=7, id="e7", type="user.message", body=body)]
    )
    conversation = Conversation(known_seq=2)
    lease = Lease("sess_1", 3)
    lease.extend(time.monotonic(), 10)
    writer = Journal(log, lease, conversation)
    writer.add("span.model_request_start", {"context_seq": 2})
    await writer.flush()
    assert conversation.known_seq == 9 and writer.interrupt_seq == 8
    assert conversation.has_unread_input()


@pytest.mark.parametrize("text", ["a\x00b", "half \ud83d", "\udc00"])
def test_characters_that_no_log_holds_are_replaced_for_the_model_too(text: str) -> None:
    fields: dict[str, Any] = {"content": [{"type": "text", "text": text}], text: 1}
    encoded, read_back = encode(fields)
    assert orjson.loads(encoded) == read_back
    assert b"\\u0000" not in encoded and "\ufffd" in read_back["content"][0]["text"]


def test_a_lease_is_trusted_for_less_than_it_lasts() -> None:
    lease = Lease("sess_1", 1)
    lease.extend(time.monotonic(), 10)
    assert 8.9 < lease.remaining_seconds() < 9.1
    assert margin_seconds(1.0) == 0.15


@pytest.mark.parametrize("count", [MAX_APPEND_EVENTS, MAX_APPEND_EVENTS + 1, 2 * MAX_APPEND_EVENTS + 1])
async def test_more_events_than_one_append_takes_go_in_several(count: int) -> None:
    log = Log()
    writer = journal(log)
    ids = [writer.add("agent.thinking", {}) for _ in range(count)]
    writer.spend("m", TokenUsage(input_tokens=1))
    await writer.flush(END)
    assert [event.id for request in log.requests for event in request.events] == ids
    assert all(1 <= len(request.events) <= MAX_APPEND_EVENTS for request in log.requests)
    assert [request.HasField("end") for request in log.requests] == [False] * (len(log.requests) - 1) + [True]
    assert sum(len(request.usage) for request in log.requests) == 1
