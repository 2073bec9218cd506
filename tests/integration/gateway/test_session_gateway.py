"""The session gateway over HTTP, sentence by sentence: runs, streams, answers, cancelling, repeats, refusals.

A real gateway and a real sessions service; the runner does what each test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.further import another
from tests.integration.gateway.gate import AGENT, Gate, confirmation, ground_of, over, part, question
from tests.integration.sessions.turn_driver import end, event

# One platform for all of them; each test has an agent of its own.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(postgres: str, nats_url: str) -> AsyncIterator[tuple[Gateway, Gate]]:
    async with ground_of(postgres, nats_url) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def here(ground: tuple[Gateway, Gate]) -> Gate:
    return await ground[1].fresh()


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


async def test_a_decision_of_a_person_goes_to_the_agent(here: Gate) -> None:
    for option, text, decision in (("approve", None, "allow"), ("deny", None, "deny"), ("deny", "Not today.", "deny")):
        asked = here.begin()
        (call,) = await here.waits(confirmation("rm x"))
        paused = await asked
        assert paused.types == ["started", "input-requested"]
        shown = paused.events[1]
        assert shown["requestId"] == call and shown["input"]["arguments"] == {"command": "rm x"}
        assert [each["id"] for each in shown["input"]["options"]] == ["approve", "deny"]
        session_id = paused.events[0]["sessionId"]
        response = {"requestId": call, "optionId": option} | ({"text": text} if text else {})
        answered = asyncio.create_task(here.send({"inputResponses": [response]}, session_id))
        grant = await here.says("All right.")
        told = await answered
        assert told.types == ["started", "text-delta", "completed"] and told.events[0]["resumed"] is True
        assert told.events[0]["runId"] == paused.events[0]["runId"]
        log = await here.replica.log(grant.session.id)
        (confirmed,) = [each for each in log if each["type"] == "user.tool_confirmation"]
        assert confirmed["tool_use_id"] == call and confirmed["result"] == decision
        assert confirmed.get("deny_message") == text


async def test_a_free_answer_goes_to_the_agent_as_the_result_of_its_question(here: Gate) -> None:
    asked = here.begin()
    (call,) = await here.waits(question("Which figures?"))
    paused = await asked
    assert paused.events[1]["input"]["prompt"] == "Which figures?"
    session_id = paused.events[0]["sessionId"]
    said = "Use the January figures."
    answered = asyncio.create_task(
        here.send({"sessionId": session_id, "inputResponses": [{"requestId": call, "text": said}]})
    )
    grant = await here.says()
    assert (await answered).types[-1] == "completed"
    log = await here.replica.log(grant.session.id)
    (result,) = [each for each in log if each["type"] == "user.custom_tool_result"]
    assert result["custom_tool_use_id"] == call and result["content"] == [{"type": "text", "text": said}]


async def test_answers_may_come_one_by_one_and_what_still_waits_is_told(here: Gate) -> None:
    asked = here.begin()
    first, second = await here.waits(confirmation(), question())
    paused = await asked
    assert paused.types == ["started", "input-requested", "input-requested"]
    session_id = paused.events[0]["sessionId"]
    partial = await here.send({"inputResponses": [{"requestId": second, "text": "May."}]}, session_id)
    assert [(each["requestId"], each["pending"]) for each in partial.events] == [(first, [first])]
    answered = asyncio.create_task(
        here.send({"inputResponses": [{"requestId": first, "optionId": "approve"}]}, session_id)
    )
    await here.says()
    assert (await answered).types == ["started", "text-delta", "completed"]


async def test_answers_that_fit_no_request_are_refused_and_nothing_is_stored(here: Gate) -> None:
    asked = here.begin()
    call, other = await here.waits(confirmation(), question())
    session_id = (await asked).events[0]["sessionId"]
    before = await here.replica.log(session_id)

    async def refused(*responses: dict[str, Any]) -> tuple[int, str]:
        return (await here.send({"inputResponses": list(responses)}, session_id)).code

    sound = {"requestId": call, "optionId": "approve"}
    assert await refused({"requestId": "sevt_unknown", "optionId": "approve"}) == (409, "input_request_not_pending")
    assert await refused(sound, {"requestId": "nothing", "text": "x"}) == (409, "input_request_not_pending")
    assert await refused({"requestId": call, "text": "yes"}) == (400, "invalid_request")
    assert await refused({"requestId": call}) == (400, "invalid_request")
    assert await refused(sound | {"text": "a reason"}) == (400, "invalid_request")
    assert await refused({"requestId": other, "optionId": "approve"}) == (400, "invalid_request")
    assert await refused({"requestId": other}) == (400, "invalid_request")
    assert await refused(sound, sound) == (400, "invalid_request")
    assert await here.replica.log(session_id) == before
    await here.send({"inputResponses": [sound]}, session_id)
    assert await refused(sound) == (409, "input_request_not_pending")
    answered = asyncio.create_task(here.send({"inputResponses": [{"requestId": other, "text": "x"}]}, session_id))
    await here.says()
    await answered
    assert await refused({"requestId": other, "text": "x"}) == (409, "input_request_not_pending")


async def test_a_paused_turn_stays_paused_for_everyone_who_comes_back(here: Gate) -> None:
    asked = here.begin()
    (call,) = await here.waits(question())
    paused = await asked
    session_id = paused.events[0]["sessionId"]
    for _ in range(2):
        again = await here.watch(session_id, until=lambda told: told["type"] == "input-requested")
        assert again.frames == paused.frames
    run = await here.run(session_id, paused.events[0]["runId"])
    assert run["status"] == "waiting" and run["pending"] == [call]


@pytest.mark.parametrize("by", ["route", "route with turnId", "body", "body without session"])
async def test_cancelling_ends_the_stream_with_cancelled(here: Gate, by: str) -> None:
    watching = here.begin()
    grant = await here.granted()
    session_id = grant.session.id
    run_id = "run_" + (await here.replica.log(session_id))[0]["id"].removeprefix("sevt_")
    for _ in range(2):
        # Repeating it changes nothing.
        match by:
            case "route":
                answered = (await here.cancel(session_id)).json()
            case "route with turnId":
                answered = (await here.cancel(session_id, {"turnId": run_id})).json()
            case "body":
                answered = (await here.send({"turnId": run_id}, session_id)).body
            case _:
                answered = (await here.send({"turnId": run_id})).body
        assert answered["status"] == "cancelling" and answered["sessionId"] == session_id
    log = await here.replica.log(session_id)
    assert [each["type"] for each in log].count("user.interrupt") == 1
    interrupted = end("INTERRUPTED", interrupt_seq=log[-1]["seq"])
    assert (await here.replica.append(grant, end=interrupted)).ended
    told = await watching
    assert told.types == ["started", "cancelled"] and told.events[1]["runId"] == run_id
    assert (await here.cancel(session_id)).json()["status"] == "over"
    assert (await here.send({"turnId": run_id}, session_id)).body["status"] == "over"
    assert (await here.run(session_id, run_id))["status"] == "cancelled"


async def test_a_paused_run_is_cancelled_too(here: Gate) -> None:
    asked = here.begin()
    await here.waits(confirmation())
    session_id = (await asked).events[0]["sessionId"]
    assert (await here.cancel(session_id)).json()["status"] == "cancelling"
    told = await here.watch(session_id, until=over)
    assert told.types == ["started", "input-requested", "cancelled"]
    asked = here.begin("Next.", session_id)
    await here.says()
    assert (await asked).types[-1] == "completed"


async def test_cancelling_an_earlier_run_leaves_the_present_one_alone(here: Gate) -> None:
    asked = here.begin("One.")
    await here.says()
    first = (await asked).events[0]
    asked = here.begin("Two.", first["sessionId"])
    grant = await here.granted()
    assert (await here.send({"turnId": first["runId"]}, first["sessionId"])).body["status"] == "over"
    await here.says("Undisturbed.", grant=grant)
    assert (await asked).types[-1] == "completed"
    unknown = await here.send({"turnId": "run_01M8NNH6TVETBVDC6JTDDKNCV4"}, first["sessionId"])
    assert unknown.code == (404, "run_not_found")
    assert (await here.send({"turnId": "run_01M8NNH6TVETBVDC6JTDDKNCV4"})).code == (404, "run_not_found")


async def test_the_same_key_gets_the_same_run_back(here: Gate) -> None:
    asked = here.begin("Once.", idempotency_key="k1")
    grant = await here.granted()
    # While it runs: no conflict, the same run.
    second = here.begin("Once.", idempotency_key="k1")
    await here.says("Here.", grant=grant)
    told, again = await asked, await second
    later = await here.send({"message": "Once."}, idempotency_key="k1")
    assert told.frames == again.frames == later.frames and told.types[-1] == "completed"
    assert later.headers["run-id"] == told.headers["run-id"]
    assert (await here.send({"message": "Twice."}, idempotency_key="k1")).code == (409, "idempotency_key_reused")
    log = await here.replica.log(grant.session.id)
    assert [each["type"] for each in log].count("user.message") == 1
    assert len(await here.sessions()) == 1


async def test_many_equal_starts_at_one_instant_are_one_run(here: Gate) -> None:
    starts = [here.begin("At once.", idempotency_key="k") for _ in range(8)]
    await here.says("Only once.")
    told = await asyncio.gather(*starts)
    assert len({tuple(each.frames) for each in told}) == 1
    assert len(await here.sessions()) == 1


async def test_a_repeat_of_a_run_that_was_paused_brings_all_of_it(here: Gate) -> None:
    asked = here.begin("Ask me.", idempotency_key="k")
    (call,) = await here.waits(question())
    paused = await asked
    session_id = paused.events[0]["sessionId"]
    assert (await here.send({"message": "Ask me."}, idempotency_key="k")).frames == paused.frames
    response = {"inputResponses": [{"requestId": call, "text": "x"}]}
    answered = asyncio.create_task(here.send(response, session_id, idempotency_key="a"))
    await here.says()
    rest = await answered
    assert (await here.send(response, session_id, idempotency_key="a")).frames == rest.frames
    assert (await here.send({"message": "Ask me."}, idempotency_key="k")).frames == paused.frames + rest.frames


async def test_a_second_message_while_a_turn_is_active_is_a_conflict(here: Gate) -> None:
    asked = here.begin()
    grant = await here.granted()
    session_id = grant.session.id
    assert (await here.send({"message": "More."}, session_id)).code == (409, "turn_active")
    await here.waits(confirmation(), grant=grant)
    await asked
    refused = await here.send({"message": "More."}, session_id)
    assert refused.code == (409, "turn_active") and refused.headers["x-should-retry"] == "false"
    log = await here.replica.log(session_id)
    assert [each["type"] for each in log].count("user.message") == 1


async def test_of_two_messages_at_one_instant_one_starts_a_run(here: Gate) -> None:
    asked = here.begin()
    await here.says()
    session_id = (await asked).events[0]["sessionId"]
    both = [here.begin(f"Message {number}.", session_id) for number in range(2)]
    grant = await here.granted()
    # The refusal comes while the other one runs.
    (refused,), _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    assert refused.result().code == (409, "turn_active")
    await here.says(grant=grant)
    told = await asyncio.gather(*both)
    assert sorted(each.status for each in told) == [200, 409]


async def test_what_is_not_there_is_not_found(here: Gate) -> None:
    assert (await here.door(agent_id="agent_x").send({"message": "a"})).code == (404, "agent_not_found")
    assert (await here.send({"message": "a"}, "sess_x")).code == (404, "session_not_found")
    assert (await here.send({"inputResponses": [{"requestId": "r", "text": "x"}]}, "sess_x")).status == 404
    assert (await here.cancel("sess_x")).status_code == 404
    assert (await here.watch("sess_x", until=over)).code == (404, "session_not_found")
    asked = here.begin()
    await here.says()
    first = (await asked).events[0]
    path = f"{here.base}/session/{first['sessionId']}/runs/"
    assert (await here.http.get(path + "run_x")).json()["error"]["code"] == "run_not_found"
    # A session is of one agent, and on one of the two routes.
    other = here.door(agent_id=await here.agent())
    for door in (other, here.door(preview=True)):
        assert (await door.watch(first["sessionId"], until=over)).status == 404
        assert (await door.send({"message": "a"}, first["sessionId"])).status == 404
        assert (await door.cancel(first["sessionId"])).status_code == 404
    # One that was begun elsewhere has no creator here.
    elsewhere = (await here.call("POST", "/v1/sessions", {"agent": here.agent_id}))["id"]
    assert (await here.watch(elsewhere, until=over)).status == 404


async def test_an_archived_agent_is_out_of_reach_and_its_sessions_can_still_be_read(here: Gate) -> None:
    asked = here.begin()
    await here.says()
    told = await asked
    await here.call("POST", f"/v1/agents/{here.agent_id}/archive", {})
    assert (await here.send({"message": "a"})).code == (404, "agent_not_found")
    session_id = told.events[0]["sessionId"]
    assert (await here.send({"message": "a"}, session_id)).code == (404, "agent_not_found")
    assert (await here.watch(session_id, until=over)).frames == told.frames


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


async def test_a_run_tells_the_engine_that_its_session_keeps(here: Gate) -> None:
    asked = here.begin()
    await here.says("Hi.")
    session_id = (await asked).events[0]["sessionId"]
    options = {"url": "https://agent.example.com/step", "headers": {"Authorization": "Bearer ${TOKEN}", "X-Team": "a"}}
    await here.call("POST", f"/v1/agents/{here.agent_id}", {"loop_engine": "http", "loop_engine_options": options})
    # Nobody here runs its turns; that a run has begun is enough.
    begun = await here.send({"message": "a"}, until=lambda told: told["type"] == "started")
    asked = here.begin("Again.", session_id)
    await here.says("Hi again.")
    for told in (begun.events[0], (await asked).events[0]):
        frozen = (await here.run(told["sessionId"], told["runId"]))["configuration"]
        session = await here.call("GET", f"/v1/sessions/{told['sessionId']}")
        assert frozen["agent"]["version"] == 2 and frozen["loop_engine"] == session["loop_engine"]
        assert frozen.get("loop_engine_options") == session.get("loop_engine_options")
        if told["sessionId"] == session_id:
            assert "loop_engine_options" not in frozen
            (change,) = [each for each in await here.replica.log(session_id) if each["type"] == "session.updated"]
            assert change["agent"]["loop_engine_options"]["headers"] == {"Authorization": "********", "X-Team": "a"}
        else:
            assert frozen["loop_engine_options"]["headers"] == {"Authorization": "********", "X-Team": "a"}


async def test_a_run_has_the_configuration_that_was_frozen_onto_it(here: Gate) -> None:
    asked = here.begin()
    await here.says("Hi.")
    first = (await asked).events[0]
    session_id = first["sessionId"]
    changed = {"system": "You are brief.", "name": "another name", "metadata": {"tier": "1"}}
    await here.call("POST", f"/v1/agents/{here.agent_id}", changed)
    asked = here.begin("Again.", session_id)
    grant = await here.granted()
    # The next run of the same session is that of the agent as it is now.
    assert grant.session.agent.version == 2 and b"You are brief." in grant.session.agent.document_json
    await here.says("Hi again.", grant=grant)
    second = (await asked).events[0]
    one, two = await here.run(session_id, first["runId"]), await here.run(session_id, second["runId"])
    assert one["configuration"]["system"] == AGENT["system"] and one["configuration"]["agent"]["version"] == 1
    assert two["configuration"]["system"] == "You are brief." and two["configuration"]["agent"]["version"] == 2
    assert one["status"] == two["status"] == "completed" and (one["output"], two["output"]) == ("Hi.", "Hi again.")
    for name in ("model", "tools", "environment", "resources", "vault_ids", "loop_engine", "route"):
        assert name in one["configuration"]
    assert (await here.call("GET", f"/v1/sessions/{session_id}"))["agent"]["version"] == 2
    log = await here.replica.log(session_id)
    (told,) = [each for each in log if each["type"] == "session.updated"]
    assert told["agent"]["version"] == 2 and told["agent"]["name"] == "another name"


async def test_the_plain_route_runs_what_is_published_and_the_preview_what_is_saved(here: Gate) -> None:
    path = f"/v1/agents/{here.agent_id}"
    published = await here.call("GET", f"{path}/publish")
    assert published == {
        "type": "agent_publication",
        "agent_id": here.agent_id,
        "version": 1,
        "published_at": None,
        "published_by": None,
    }

    async def version(door: Gate, session_id: str = "") -> tuple[int, str]:
        asked = door.begin("Which?", session_id)
        grant = await here.says()
        return grant.session.agent.version, (await asked).events[0]["sessionId"]

    await here.call("POST", path, {"system": "Two."})
    # Never published: the newest counts.
    assert (await version(here))[0] == 2
    assert (await here.call("POST", f"{path}/publish", {"version": 1}))["version"] == 1
    seen, session_id = await version(here)
    assert seen == 1
    preview = here.door(preview=True)
    newest, previewed = await version(preview)
    assert newest == 2
    await here.call("POST", path, {"system": "Three."})
    assert (await version(here, session_id))[0] == 1 and (await version(preview, previewed))[0] == 3
    told = await here.call("POST", f"{path}/publish")
    assert told["version"] == 3 and told["published_by"] == "anonymous" and told["published_at"]
    assert (await version(here, session_id))[0] == 3
    refused = await here.http.post(f"{path}/publish", json={"version": 9})
    assert refused.json()["error"]["code"] == "agent_version_not_found"


async def test_a_session_is_begun_with_what_its_agent_says(here: Gate) -> None:
    store = (await here.call("POST", "/v1/memory_stores", {"name": f"notes {here.agent_id}"}))["id"]
    environment = (await here.call("POST", "/v1/environments", {"name": f"place of {here.agent_id}"}))["id"]
    resources = [{"type": "memory_store", "memory_store_id": store, "mount_path": "/mnt/memory/notes"}]
    begun_with = {"environment_id": environment, "resources": resources}
    door = here.door(agent_id=await here.agent(gateway_session=begun_with))
    asked = door.begin()
    grant = await door.says()
    first = (await asked).events[0]
    assert grant.session.environment_id == environment and store.encode() in grant.session.resources_json
    frozen = (await door.run(first["sessionId"], first["runId"]))["configuration"]
    assert frozen["environment"]["id"] == environment and frozen["resources"][0]["memory_store_id"] == store
    await here.call("POST", f"/v1/memory_stores/{store}/archive", {})
    refused = await door.send({"message": "a"})
    assert refused.status in (400, 404) and refused.error["message"].startswith("gateway_session: There is no")


@pytest.mark.parametrize(
    ("begun_with", "field"),
    [
        ({"environment": "env_1"}, "gateway_session.environment"),
        ({"environment_id": 3}, "gateway_session.environment_id"),
        ({"vault_ids": [""]}, "gateway_session.vault_ids.0"),
        ({"resources": [{"type": "github_repository", "url": "https://x.example/a/b"}]}, "resources.0.type"),
        ({"resources": [{"type": "memory_store"}]}, "gateway_session.resources.0"),
    ],
)
async def test_what_sessions_can_not_be_begun_with_is_refused_when_it_is_saved(
    here: Gate, begun_with: Any, field: str
) -> None:
    answered = await here.http.post("/v1/agents", json=AGENT | {"gateway_session": begun_with})
    assert answered.status_code == 400 and field in answered.json()["error"]["message"], answered.text


async def test_the_session_has_its_text_in_parts_and_others_have_not(here: Gate) -> None:
    asked = here.begin()
    grant = await here.says()
    assert grant.session.text_parts
    await asked
    plain = (await here.call("POST", "/v1/sessions", {"agent": here.agent_id}))["id"]
    await here.call("POST", f"/v1/sessions/{plain}/events", {"events": [{"type": "user.message", "content": "x"}]})
    assert not (await here.says()).session.text_parts
