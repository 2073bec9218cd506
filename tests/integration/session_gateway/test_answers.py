"""The session gateway over HTTP: what waits for a person, and cancelling."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.gateway.gate import Gate, confirmation, over, question
from tests.integration.sessions.turn_driver import end

pytestmark = pytest.mark.asyncio(loop_scope="package")


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
