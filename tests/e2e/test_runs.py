"""`POST /v1/runs` on a whole platform: one turn, in each of its three modes, and what stands in its log."""

from __future__ import annotations

from typing import Any

import httpx2
import orjson
import pytest

from tests.support.api import CUSTOM_TOOL, Api, Reader, Refused, api, tool
from tests.support.platform import Platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

# Ten pieces with a pause before each.
LONG = "LEN:10 DELAY:500 a slow answer"


async def _post(client: Api, **body: Any) -> httpx2.Response:
    headers = {"content-type": "application/json"}
    return await client.http.post("/v1/runs", content=orjson.dumps(body), headers=headers)


async def _idle(client: Api, session_id: str) -> list[dict[str, Any]]:
    assert await Reader(client, session_id).follow(lambda event: event["type"] == "session.status_idle")
    return await client.log(session_id)


async def test_a_run_is_waited_for_and_answers_with_its_output(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        answer = await _post(client, agent=agent, input="Say hello.")
        assert answer.status_code == 200
        run = answer.json()
        assert run["run_id"] == run["session_id"] and run["status"] == "idle"
        assert run["stop_reason"] == {"type": "end_turn"}
        log = await client.log(run["session_id"])
        [spoken] = [event for event in log if event["type"] == "agent.message"]
        [usage] = [event for event in log if event["type"] == "session.usage"]
        assert run["output"] == spoken["content"] and run["output"][0]["type"] == "text"
        assert run["usage"] == usage["usage"]
        # Blocks do as well as a text, and a pinned version as well as an id.
        blocks = [{"type": "text", "text": "Say hello."}]
        pinned = {"type": "agent", "id": agent, "version": 1}
        again = (await _post(client, agent=pinned, input=blocks, response_mode="wait")).json()
        assert again["output"] == run["output"] and again["run_id"] != run["run_id"]


async def test_what_a_run_says_between_its_calls_is_output_too(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        run = (await _post(client, agent=agent, input=f"First this. {tool('bash', command='echo hi')}")).json()
        log = await client.log(run["session_id"])
        spoken = [block for event in log if event["type"] == "agent.message" for block in event["content"]]
        assert run["output"] == spoken and run["status"] == "idle"


async def test_a_run_streams_the_events_of_its_session_up_to_the_end_of_the_turn(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        answer = await _post(client, agent=agent, input="Say hello.", response_mode="sse")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        frames = [frame for frame in answer.text.split("\n\n") if "data: " in frame]
        told = [orjson.loads(frame.partition("data: ")[2]) for frame in frames]
        assert told == await client.log(answer.headers["run-id"])
        assert told[0]["type"] == "user.message" and told[-1]["type"] == "session.status_idle"


async def test_a_run_that_is_left_to_itself_answers_with_where_to_read_it(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        answer = await _post(client, agent=agent, input="Say hello.", response_mode="async")
        handle = answer.json()
        assert answer.status_code == 202 and handle["status"] == "running"
        assert handle["run_id"] == handle["session_id"]
        assert handle.keys() == {"run_id", "session_id", "status", "events_url", "stream_url"}
        await _idle(client, handle["session_id"])
        assert (await client.call("GET", handle["events_url"]))["data"][-1]["type"] == "session.status_idle"
        headers = {"last-event-id": "0"}
        async with client.http.stream("GET", handle["stream_url"], headers=headers) as stream:
            assert stream.status_code == 200


async def test_the_deadline_of_a_wait_ends_the_wait_and_not_the_turn(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        runs = []
        for seconds in (0, 0.2):
            answer = await _post(client, agent=agent, input=LONG, max_wait_seconds=seconds)
            handle = answer.json()
            assert answer.status_code == 202 and handle["wait_deadline_reached"] is True
            assert handle["status"] == "running" and handle["run_id"] == handle["session_id"]
            runs.append(handle["session_id"])
        for session_id in runs:
            log = await _idle(client, session_id)
            assert log[-1]["stop_reason"] == {"type": "end_turn"}
            assert not [event for event in log if event["type"] in ("session.error", "user.interrupt")]


async def test_a_run_that_parks_answers_with_what_it_waits_for(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent(tools=[CUSTOM_TOOL])
        answer = await _post(client, agent=agent, input=tool("lookup", word="w"))
        run = answer.json()
        assert answer.status_code == 200 and run["status"] == "requires_action"
        [call] = [event for event in await client.log(run["session_id"]) if event["type"] == "agent.custom_tool_use"]
        assert run["event_ids"] == [call["id"]]
        assert await client.status(run["session_id"]) == "requires_action"


async def test_a_run_that_fails_says_so_and_its_log_has_the_failure_once(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        run = (await _post(client, agent=agent, input="FAIL:400")).json()
        streamed = await _post(client, agent=agent, input="FAIL:400", response_mode="sse")
        for session_id in (run["session_id"], streamed.headers["run-id"]):
            [error] = [event for event in await client.log(session_id) if event["type"] == "session.error"]
            assert error["error"]["type"] == run["error"]["type"]
        assert run["error"]["retry_status"] and run["stop_reason"] == {"type": "retries_exhausted"}
        assert '"session.error"' in streamed.text


async def test_a_client_that_hangs_up_does_not_stop_its_run(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        for mode in ("wait", "sse"):
            title = f"left by its client: {mode}"
            with pytest.raises(httpx2.TimeoutException):
                body = {"agent": agent, "input": LONG, "response_mode": mode, "session": {"title": title}}
                await client.http.post("/v1/runs", json=body, timeout=0.5)
            sessions = (await client.call("GET", f"/v1/sessions?agent_id={agent}"))["data"]
            [left] = [session for session in sessions if session["title"] == title]
            log = await _idle(client, left["id"])
            assert log[-1]["type"] == "session.status_idle" and log[-1]["stop_reason"] == {"type": "end_turn"}


async def test_a_repeated_run_is_the_first_one_again(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        body = orjson.dumps({"agent": agent, "input": "Say hello once."})
        headers = {"content-type": "application/json", "idempotency-key": "the-same-run"}
        answers = [await client.http.post("/v1/runs", content=body, headers=headers) for _ in range(3)]
        assert len({answer.text for answer in answers}) == 1 and answers[0].status_code == 200
        assert len((await client.call("GET", f"/v1/sessions?agent_id={agent}"))["data"]) == 1
        other = orjson.dumps({"agent": agent, "input": "Say something else."})
        refused = await client.http.post("/v1/runs", content=other, headers=headers)
        assert refused.status_code == 409 and refused.headers["x-should-retry"] == "false"


async def test_the_session_of_a_run_is_made_with_what_the_run_says(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        settings = {"title": "A run", "metadata": {"from": "test"}, "resources": [], "vault_ids": []}
        run = (await _post(client, agent=agent, input="Hi.", session=settings | {"loop_engine": "builtin"})).json()
        session = await client.call("GET", f"/v1/sessions/{run['session_id']}")
        assert {name: session[name] for name in settings} == settings
        assert session["loop_engine"] == "builtin" and session["agent"]["id"] == agent


REFUSALS = [
    ({"agent": "agent_nope"}, 404, "agent_not_found"),
    ({"agent": {"type": "agent_with_overrides", "id": "agent_x", "system": "s"}}, 400, "invalid_agent_ref"),
    ({"agent": {"type": "agent", "id": "agent_x", "system": "s"}}, 400, "invalid_agent_ref"),
    ({"agent": None}, 400, "invalid_request"),
    ({"input": None}, 400, "invalid_request"),
    ({"input": " "}, 400, "invalid_request"),
    ({"input": [{"type": "redacted"}]}, 400, "invalid_request"),
    ({"response_mode": "poll"}, 400, "invalid_request"),
    ({"max_wait_seconds": -1}, 400, "invalid_request"),
    ({"max_wait_seconds": 3601}, 400, "invalid_request"),
    ({"max_wait_seconds": True}, 400, "invalid_request"),
    ({"session": {"loop_engine": "pi"}}, 400, "loop_engine_not_supported"),
    ({"session": {"loop_engine": "no-such"}}, 400, "loop_engine_invalid"),
    ({"session": {"vault_ids": ["vlt_nope"]}}, 400, "vault_not_found"),
    ({"session": {"title": 5}}, 400, "invalid_request"),
    ({"session": {"budget": {"type": "limit"}}}, 400, "unknown_field"),
    ({"session": {"environment_id": "env_default"}}, 400, "unknown_field"),
    ({"budget": {"type": "limit", "max_list_cost": {"amount": "5", "currency": "USD"}}}, 400, "unknown_field"),
    ({"loop_engine": "builtin"}, 400, "unknown_field"),
    ({"unknown": 1}, 400, "unknown_field"),
]


@pytest.mark.parametrize("mode", ["wait", "sse", "async"])
async def test_a_refusal_comes_before_the_turn_and_with_its_own_status(platform: Platform, mode: str) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        for wrong, status, code in REFUSALS:
            body = {"agent": agent, "input": "hi", "response_mode": mode} | wrong
            with pytest.raises(Refused) as refused:
                await client.call("POST", "/v1/runs", body)
            assert (refused.value.status, refused.value.body["error"]["code"]) == (status, code), wrong
        assert (await client.call("GET", f"/v1/sessions?agent_id={agent}"))["data"] == []


async def test_a_refusal_names_the_field_where_the_caller_put_it(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        for wrong, field in (
            ({"input": [{"type": "redacted"}]}, "input.0"),
            ({"session": {"vault_ids": ["vlt_nope"]}}, "vlt_nope"),
            ({"session": {"loop_engine": "no-such"}}, "session.loop_engine"),
        ):
            with pytest.raises(Refused) as refused:
                await client.call("POST", "/v1/runs", {"agent": agent, "input": "hi"} | wrong)
            message = refused.value.body["error"]["message"]
            assert field in message and "initial_events" not in message
