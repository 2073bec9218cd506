"""The session gateway over HTTP: how sessions begin and go on, and the streams of their events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.further import another
from tests.integration.gateway.gate import Gate, confirmation, over, part
from tests.integration.sessions.turn_driver import event

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_a_message_begins_a_session_and_is_answered_with_the_stream_of_its_run(here: Gate) -> None:
    asked = here.begin("Summarise the Q3 revenue report.")
    await here.says("It went well.", 3)
    told = await asked
    assert told.status == 200 and told.headers["content-type"].startswith("text/event-stream")
    assert told.types == ["started", "text-delta", "text-delta", "completed"]
    started, *_, completed = told.events
    assert started["sessionId"] == told.headers["session-id"] and started["runId"] == told.headers["run-id"]
    assert started["turnId"] == started["runId"] == completed["turnId"]
    assert [event["index"] for event in told.events] == [0, 1, 2, 3]
    assert completed["output"] == "It went well." == "".join(each["delta"] for each in told.events[1:3])
    assert started["message"] == [{"type": "text", "text": "Summarise the Q3 revenue report."}]


async def test_a_message_may_be_parts(here: Gate) -> None:
    asked = asyncio.create_task(here.send({"message": [{"type": "text", "text": "In parts."}]}))
    grant = await here.says()
    told = await asked
    assert told.types[-1] == "completed"
    log = await here.replica.log(grant.session.id)
    assert log[0]["type"] == "user.message" and log[0]["content"] == [{"type": "text", "text": "In parts."}]


@pytest.mark.parametrize("in_body", [True, False])
async def test_a_session_goes_on_by_its_id(here: Gate, in_body: bool) -> None:
    asked = here.begin("One.")
    await here.says("First.")
    session_id = (await asked).events[0]["sessionId"]
    body = {"message": "Two."} | ({"sessionId": session_id} if in_body else {})
    asked = asyncio.create_task(here.send(body, "" if in_body else session_id))
    grant = await here.says("Second.")
    told = await asked
    assert grant.session.id == session_id and told.events[0]["sessionId"] == session_id
    # Only this run's events, numbered on from the ones before.
    assert told.types == ["started", "text-delta", "completed"] and told.events[0]["index"] == 3


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "message"),
        ({"message": "a", "inputResponses": [{"requestId": "r", "text": "b"}]}, "message"),
        ({"message": "a", "turnId": "run_1"}, "message"),
        ({"message": ""}, "message"),
        ({"message": 7}, "message"),
        ({"message": [{"type": "image"}]}, "message"),
        ({"inputResponses": []}, "inputResponses"),
        ({"inputResponses": [{"requestId": "r", "text": "b"}]}, "sessionId"),
        ({"inputResponses": [{"requestId": "r", "optionId": "maybe"}]}, "optionId"),
        ({"message": "a", "surprise": 1}, "surprise"),
    ],
)
async def test_a_body_that_means_nothing_is_refused_and_starts_nothing(here: Gate, body: Any, field: str) -> None:
    refused = await here.send(body)
    assert refused.status == 400 and field in refused.error["message"], refused.error
    assert await here.sessions() == []


async def test_a_path_and_a_body_that_name_two_sessions_are_refused(here: Gate) -> None:
    refused = await here.send({"message": "a", "sessionId": "sess_2"}, "sess_1")
    assert refused.code == (400, "invalid_request")


async def test_every_start_of_a_replay_brings_the_same_bytes(here: Gate) -> None:
    """Two runs with parts, a pause and a failure in between; followed live once, then from every index."""
    asked = here.begin("One.")
    await here.says("a few words", 2, 6)
    session_id = (await asked).events[0]["sessionId"]
    watching = asyncio.create_task(here.watch(session_id, 0, until=lambda told: told["index"] == 11))
    asked = here.begin("Two.", session_id)
    grant = await here.granted()
    await here.replica.append(grant, event("span.model_request_start"), part("sevt_x", 0, "I was going"))
    await here.replica.append(grant, event("span.model_request_end", is_error=True))
    (call,) = await here.waits(confirmation(), grant=grant)
    assert (await asked).types == ["started", "text-delta", "input-requested"]
    answered = asyncio.create_task(
        here.send({"inputResponses": [{"requestId": call, "optionId": "approve"}]}, session_id)
    )
    await here.says("Done it.", 5)
    assert (await answered).types == ["started", "text-delta", "text-delta", "completed"]
    whole = (await watching).frames
    assert len(whole) == 12
    for start in range(len(whole)):
        last = len(whole) - 1
        again = await here.watch(session_id, start, until=lambda told, last=last: told["index"] == last)
        assert again.frames == whole[start:]
        by_header = (
            await here.watch(session_id, 0, last=str(start), until=lambda told, last=last: told["index"] == last)
            if start < last
            else None
        )
        assert by_header is None or by_header.frames == whole[start + 1 :]


async def test_a_replay_is_the_same_at_another_gateway(here: Gate, ground: tuple[Gateway, Gate], nats_url: str) -> None:
    asked = here.begin()
    await here.says("some words here", 5)
    whole = (await asked).frames
    session_id = whole and (await asked).events[0]["sessionId"]
    async with another(ground[0], nats_url) as (http, _ring):
        there = here.door(http=http)
        for start in range(len(whole)):
            assert (await there.watch(session_id, start, until=over)).frames == whole[start:]


async def test_a_reopened_session_replays_its_history_and_goes_on_live(here: Gate) -> None:
    asked = here.begin("One.")
    await here.says("First.")
    session_id = (await asked).events[0]["sessionId"]
    watching = asyncio.create_task(here.watch(session_id, until=lambda told: told["index"] == 5))
    asked = here.begin("Two.", session_id)
    await here.says("Second.")
    told = await watching
    assert told.types == ["started", "text-delta", "completed"] * 2
    messages = [each["message"][0]["text"] for each in told.events if each["type"] == "started"]
    assert messages == ["One.", "Two."]
    await asked


async def test_a_stream_from_an_index_that_is_still_to_come_begins_there(here: Gate) -> None:
    asked = here.begin("One.")
    await here.says()
    session_id = (await asked).events[0]["sessionId"]
    watching = asyncio.create_task(here.watch(session_id, 4, until=over))
    asked = here.begin("Two.", session_id)
    await here.says()
    assert [each["index"] for each in (await watching).events] == [4, 5]
    await asked


@pytest.mark.parametrize("query", ["?startIndex=-1", "?startIndex=x", "?startIndex=1.5", "?from=3"])
async def test_a_start_that_is_no_index_is_refused(here: Gate, query: str) -> None:
    answered = await here.http.get(f"{here.base}/session/sess_1/stream{query}")
    assert answered.status_code == 400
    headers = {"last-event-id": "abc"}
    answered = await here.http.get(f"{here.base}/session/sess_1/stream", headers=headers)
    assert answered.status_code == 400


async def test_who_hangs_up_changes_nothing(here: Gate) -> None:
    left = await here.send({"message": "Hello"}, until=lambda told: told["type"] == "started")
    session_id = left.events[0]["sessionId"]
    await here.says("Still here.")
    told = await here.watch(session_id, 1, until=over)
    assert told.events[-1]["output"] == "Still here."


async def test_the_same_session_is_seen_through_every_door(here: Gate) -> None:
    asked = here.begin("Through the gateway.")
    await here.says("Yes.")
    session_id = (await asked).events[0]["sessionId"]
    assert (await here.call("GET", f"/v1/sessions/{session_id}"))["status"] == "idle"
    # What is sent there shows here, as a run of its own.
    sent = {"events": [{"type": "user.message", "content": "Through the other door."}]}
    await here.call("POST", f"/v1/sessions/{session_id}/events", sent)
    await here.says("This too.")
    told = await here.watch(session_id, 3, until=over)
    assert told.types == ["started", "text-delta", "completed"]
    assert told.events[0]["message"][0]["text"] == "Through the other door."
    await here.call("DELETE", f"/v1/sessions/{session_id}")
    assert (await here.watch(session_id, until=over)).status == 404


async def test_a_session_that_is_deleted_ends_its_streams(here: Gate) -> None:
    asked = here.begin()
    grant = await here.granted()
    watching = asyncio.create_task(here.watch(grant.session.id, until=lambda told: False))
    await here.watch(grant.session.id, until=lambda told: told["type"] == "started")
    await here.call("DELETE", f"/v1/sessions/{grant.session.id}")
    for told in (await asked, await watching):
        assert told.types == ["started", "failed"] and told.events[1]["code"] == "session_ended"
