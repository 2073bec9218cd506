"""`POST /v1/agents/{id}/step` on a whole platform: conversations with the demo model, and what their owner sees."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import httpx2
import pytest

from kit.testing import await_until
from tests.support.api import CUSTOM_TOOL, Api, api, tool
from tests.support.platform import Platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LOOKUP = {key: value for key, value in CUSTOM_TOOL.items() if key != "type"}


async def step(client: Api, agent_id: str, name: str, **body: Any) -> httpx2.Response:
    return await client.http.post(f"/v1/agents/{agent_id}/step", json={"session_id": name, **body})


async def turn(client: Api, agent_id: str, name: str, message: str) -> tuple[str, list[list[dict[str, Any]]]]:
    """One turn as the protocol's own client plays it: its reply, and the calls of each round."""
    answered = await step(client, agent_id, name, tools=[LOOKUP], message=message)
    rounds = []
    while answered.status_code == 200 and "reply" not in (body := answered.json()):
        assert body.keys() == {"tool_calls"} and len(rounds) < 16
        rounds.append(body["tool_calls"])
        results = [{"id": each["id"], "ok": True, "result": each["arguments"]} for each in rounds[-1]]
        answered = await step(client, agent_id, name, tools=[LOOKUP], tool_results=results)
    assert answered.status_code == 200, answered.text
    assert answered.json().keys() == {"reply"}
    return answered.json()["reply"], rounds


async def test_interleaved_conversations_are_each_their_own(platform: Platform) -> None:
    async with api(platform.url, timeout=60) as client:
        agent = await client.agent()

        async def conversation(number: int) -> None:
            name, word = f"run-3/interleaved case#{number}", hashlib.sha256(str(number).encode()).hexdigest()[:12]
            reply, rounds = await turn(client, agent, name, tool("lookup", word=f"{word}-1"))
            assert f"{word}-1" in reply and [len(calls) for calls in rounds] == [1]
            both = " ".join(tool("lookup", word=f"{word}-{each}") for each in (2, 3))
            reply, rounds = await turn(client, agent, name, both)
            assert [call["arguments"] for call in rounds[0]] == [{"word": f"{word}-2"}, {"word": f"{word}-3"}]
            reply, rounds = await turn(client, agent, name, f"Say {word}.")
            assert word in reply and not rounds

        await asyncio.gather(*(conversation(number) for number in range(12)))
        found = await client.call("GET", f"/v1/sessions?agent_id={agent}&limit=100")
        assert sorted(each["title"] for each in found["data"]) == sorted(
            f"run-3/interleaved case#{number}" for number in range(12)
        )
        for session in found["data"]:
            log = await client.log(session["id"])
            assert len([event for event in log if event["type"] == "user.message"]) == 3
            calls = [event["id"] for event in log if event["type"] == "agent.custom_tool_use"]
            results = [e["custom_tool_use_id"] for e in log if e["type"] == "user.custom_tool_result"]
            assert sorted(results) == sorted(calls) and len(calls) == 3


async def test_a_built_in_tool_and_its_confirmation(platform: Platform) -> None:
    async with api(platform.url, timeout=60) as client:
        agent = await client.agent()
        answered = await step(client, agent, "built-in", message=tool("bash", command="echo $((6*7))"))
        assert "42" in answered.json()["reply"]
        log = await client.log(answered.headers["step-session"])
        assert [event["name"] for event in log if event["type"] == "agent.tool_use"] == ["bash"]
        careful = {"type": "agent_toolset_20260401", "default_config": {"permission_policy": {"type": "always_ask"}}}
        agent = await client.agent(tools=[careful])
        asking = {"message": tool("bash", command="echo $((6*7))")}
        refused = await step(client, agent, "careful", **asking)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "step_requires_confirmation")
        details = refused.json()["error"]["details"]
        for event_id in details["event_ids"]:
            allow = {"type": "user.tool_confirmation", "tool_use_id": event_id, "result": "allow"}
            await client.send(details["session_id"], allow)
        again = await step(client, agent, "careful", **asking)
        assert "42" in again.json()["reply"] and again.headers["step-repeated"] == "true"


async def test_a_coordinator_and_the_tools_of_its_threads(platform: Platform) -> None:
    """What agents of its roster ask of the caller is told with its own calls, and goes back to them."""
    async with api(platform.url, timeout=60) as client:
        helper = await client.agent(name="helper", tools=[CUSTOM_TOOL])
        roster = {"type": "coordinator", "agents": [helper]}
        lead = await client.agent(name="lead", multiagent=roster)
        # The demo model of the lead calls what its text names, also what is meant for the helper.
        task = tool("start_thread", agent="helper", message=tool("lookup", word="of the helper"))
        reply, rounds = await turn(client, lead, "led", f"{task} {tool('lookup', word='of the lead')}")
        words = {call["arguments"].get("word") for calls in rounds for call in calls}
        assert words >= {"of the helper", "of the lead"} and reply
        before = await step(client, lead, "led", tools=[LOOKUP], message=f"{task} {tool('lookup', word='again')}")
        assert before.json()["tool_calls"]
        given_up = await step(client, lead, "led", tools=[LOOKUP], message="Never mind.")
        assert "Never mind." in given_up.json()["reply"]


async def test_a_client_that_vanishes_changes_nothing(platform: Platform) -> None:
    async with api(platform.url, timeout=60) as client:
        agent = await client.agent()
        slow = {"message": "LEN:10 DELAY:200 slowly"}
        with pytest.raises(httpx2.TimeoutException):
            await client.http.post(f"/v1/agents/{agent}/step", json={"session_id": "left", **slow}, timeout=0.5)
        [session] = (await client.call("GET", f"/v1/sessions?agent_id={agent}"))["data"]
        waiting = asyncio.gather(*(step(client, agent, "left", **slow) for _ in range(3)))
        answers = {answered.text for answered in await waiting}
        assert answers == {'{"reply":"' + "".join(f"t{number} " for number in range(10)) + '"}'}

        async def idle() -> bool:
            return await client.status(session["id"]) == "idle"

        await await_until(idle)
        log = await client.log(session["id"])
        assert len([event for event in log if event["type"] == "user.message"]) == 1
        assert not [event for event in log if event["type"] in ("user.interrupt", "session.error")]


async def test_a_turn_that_fails_is_told_with_its_cause(platform: Platform) -> None:
    async with api(platform.url, timeout=60) as client:
        agent = await client.agent()
        for _ in range(2):
            failed = await step(client, agent, "failing", message="FAIL:400")
            assert failed.status_code == 502 and "status 400" in failed.json()["error"]["message"]
        refused = await step(client, agent, "refusing", message="STOP:refusal LEN:3")
        assert refused.json() == {"reply": "t0 t1 t2 "}
