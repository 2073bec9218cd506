"""People in the loop, over REST: policies, confirmations, custom tools, messages in flight, and what the log says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import CUSTOM_TOOL, TOOLS, Api, Event, Reader, Refused, api, message, tool
from tests.support.platform import Platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ASK, ALLOW = {"permission_policy": {"type": "always_ask"}}, {"permission_policy": {"type": "always_allow"}}
PUBLISHED = {"anthropic_version": "2023-06-01", "anthropic_beta": "managed-agents-2026-04-01"}
SYSTEM = {"type": "system.message", "content": [{"type": "text", "text": "Answer in Japanese."}]}


def toolset(**fields: Any) -> dict[str, Any]:
    """The built-in tools with policies."""
    return {"type": TOOLS[0]["type"], **fields}


class Talk:
    """One session and everything that its stream brought."""

    def __init__(self, client: Api, session_id: str) -> None:
        self.client, self.id = client, session_id
        self.reader = Reader(client, session_id)

    @classmethod
    async def of(cls, client: Api, *tools: dict[str, Any]) -> Talk:
        return cls(client, await client.session(await client.agent(tools=list(tools))))

    async def say(self, *events: Event) -> list[Event]:
        """What comes from a request to the next idle event."""
        start = len(self.reader.events)
        await self.client.send(self.id, *events)
        assert await self.reader.follow(lambda event: event["type"] == "session.status_idle")
        return self.reader.events[start:]

    async def refused(self, *events: Event, **headers: str) -> dict[str, Any]:
        """The error of a request that leaves no trace."""
        before = await self.client.log(self.id)
        with pytest.raises(Refused) as refused:
            await self.client.call("POST", f"/v1/sessions/{self.id}/events", {"events": list(events)}, **headers)
        assert refused.value.status == 400
        assert await self.client.log(self.id) == before
        return refused.value.body["error"]


def of(events: list[Event], kind: str) -> list[Event]:
    """The events of one type."""
    return [event for event in events if event["type"] == kind]


def confirm(call_id: str, result: str = "allow", **more: Any) -> Event:
    """A decision."""
    return {"type": "user.tool_confirmation", "tool_use_id": call_id, "result": result, **more}


def answer(call_id: str, text: str = "a word") -> Event:
    """The result of a custom tool."""
    content = [{"type": "text", "text": text}]
    return {"type": "user.custom_tool_result", "custom_tool_use_id": call_id, "content": content}


@pytest.mark.parametrize(
    ("tools", "asks"),
    [
        ([toolset()], False),
        ([toolset(default_config=ASK)], True),
        ([toolset(default_config=ASK, configs=[{"name": "bash", **ALLOW}])], False),
        ([toolset(configs=[{"name": "bash", **ASK}])], True),
        ([toolset(default_config=ALLOW, configs=[{"name": "bash", **ASK}])], True),
        ([toolset(configs=[{"name": "read", **ASK}])], False),
    ],
)
async def test_the_policy_of_a_tool_decides_whether_its_call_asks(platform: Platform, tools: Any, asks: bool) -> None:
    async with api(platform.url) as client:
        talk = await Talk.of(client, *tools)
        events = await talk.say(message(tool("bash", command="echo ran")))
        [call] = of(events, "agent.tool_use")
        assert call["evaluated_permission"] == ("ask" if asks else "allow")
        assert ("requires_confirmation" in call["content"][0]) is asks
        assert (events[-1]["stop_reason"]["type"] == "requires_action") is asks
        assert bool(of(events, "agent.tool_result")) is not asks


async def test_calls_that_ask_wait_as_a_group_while_what_is_allowed_runs(platform: Platform) -> None:
    async with api(platform.url) as client:
        talk = await Talk.of(client, toolset(configs=[{"name": "bash", **ASK}]), CUSTOM_TOOL)
        text = f"{tool('bash', command='echo one')} {tool('glob', pattern='*')} {tool('bash', command='echo two')}"
        events = await talk.say(message(f"{text} {tool('lookup', word='w')}"))
        one, glob, two = of(events, "agent.tool_use")
        [custom] = of(events, "agent.custom_tool_use")
        group = one["content"][0]["confirmation_group_id"]
        assert group and two["content"][0]["confirmation_group_id"] == group
        assert "confirmation_group_id" not in glob["content"][0] and "requires_confirmation" not in glob
        assert [event["tool_use_id"] for event in of(events, "agent.tool_result")] == [glob["id"]]
        idle = events[-1]
        assert idle["stop_reason"] == {"type": "requires_action", "event_ids": [one["id"], two["id"], custom["id"]]}
        assert idle["metadata"]["stop_reason"] == idle["stop_reason"]
        session = await client.call("GET", f"/v1/sessions/{talk.id}")
        assert (session["status"], session["stop_reason"]) == ("requires_action", idle["stop_reason"])
        published = await client.call("GET", f"/v1/sessions/{talk.id}", **PUBLISHED)
        assert published["status"] == "idle"


async def test_a_call_carries_its_payload_twice_and_two_ids(platform: Platform) -> None:
    async with api(platform.url) as client:
        talk = await Talk.of(client, toolset(default_config=ASK), CUSTOM_TOOL)
        events = await talk.say(message(f"{tool('bash', command='echo hi')} {tool('lookup', word='w')}"))
        for call in (*of(events, "agent.tool_use"), *of(events, "agent.custom_tool_use")):
            block = call["content"][0]
            assert (block["name"], block["input"]) == (call["name"], call["input"])
            assert block["id"] != call["id"] and call["id"].startswith("sevt_")
            assert "mcp_server_name" not in call


@pytest.mark.parametrize("by_block", [False, True])
async def test_an_answer_names_its_call_by_either_id_and_the_log_keeps_both(platform: Platform, by_block: bool) -> None:
    async with api(platform.url) as client:
        talk = await Talk.of(client, toolset(default_config=ASK), CUSTOM_TOOL)
        events = await talk.say(message(f"{tool('bash', command='echo hi')} {tool('lookup', word='w')}"))
        [asked], [custom] = of(events, "agent.tool_use"), of(events, "agent.custom_tool_use")
        ids = [call["content"][0]["id"] if by_block else call["id"] for call in (asked, custom)]
        events = await talk.say(confirm(ids[0]), answer(ids[1]))
        [confirmation], [result] = of(events, "user.tool_confirmation"), of(events, "user.custom_tool_result")
        assert confirmation["tool_use_id"] == asked["id"] and result["custom_tool_use_id"] == custom["id"]
        block_id = asked["content"][0]["id"]
        assert confirmation["metadata"] == {"tool_use_id": block_id, "decision": "allow"}
        assert result["metadata"] == {"custom_tool_use_id": custom["content"][0]["id"]}
        [ran] = of(events, "agent.tool_result")
        assert ran["tool_use_id"] == asked["id"] and ran["metadata"]["tool_use_id"] == block_id


async def test_partial_answers_keep_the_session_waiting_for_the_rest(platform: Platform) -> None:
    async with api(platform.url) as client:
        talk = await Talk.of(client, toolset(default_config=ASK), CUSTOM_TOOL)
        text = f"{tool('bash', command='echo hi')} {tool('lookup', word='w')} {tool('bash', command='echo no')}"
        ids = (await talk.say(message(text)))[-1]["stop_reason"]["event_ids"]
        assert len(ids) == 3
        first = await talk.say(answer(ids[1]))
        assert [event["type"] for event in first] == [
            "user.custom_tool_result",
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
        ]
        assert first[-1]["stop_reason"]["event_ids"] == [ids[0], ids[2]]
        second = await talk.say(confirm(ids[2], "deny", deny_message="Rather not."))
        assert second[-1]["stop_reason"]["event_ids"] == [ids[0]]
        assert await client.status(talk.id) == "requires_action"
        last = await talk.say(confirm(ids[0]))
        assert last[-1]["stop_reason"] == {"type": "end_turn"}
        results = {event["tool_use_id"]: event for event in of(last, "agent.tool_result")}
        assert results[ids[2]]["is_error"] and "Rather not." in results[ids[2]]["content"][0]["text"]
        assert "hi" in results[ids[0]]["content"][0]["text"] and ids[1] not in results
        assert not of(talk.reader.events, "session.error")


async def test_wrong_second_and_late_answers_are_refused_and_leave_no_trace(platform: Platform) -> None:
    async with api(platform.url) as client:
        talk, other = [await Talk.of(client, toolset(default_config=ASK), CUSTOM_TOOL) for _ in range(2)]
        text = f"{tool('bash', command='echo hi')} {tool('lookup', word='w')}"
        asked, custom = (await talk.say(message(text)))[-1]["stop_reason"]["event_ids"]
        foreign = (await other.say(message(text)))[-1]["stop_reason"]["event_ids"][0]
        wrong = [
            confirm("sevt_00000000000000000000000000"),
            confirm("toolu_unknown"),
            confirm(foreign),
            confirm(custom),
            answer(asked),
            confirm(asked, "maybe"),
            confirm(asked, "allow", deny_message="but why"),
            confirm(asked, "deny", deny_message=5),
        ]
        for event in wrong:
            error = await talk.refused(event)
            assert error["type"] == "invalid_request_error", event
            if error["code"] == "tool_call_not_pending":
                assert asked in error["message"] and custom in error["message"]
        assert (await talk.refused(confirm(asked), confirm(asked)))["code"] == "tool_call_not_pending"
        await talk.say(answer(custom))
        assert (await talk.refused(answer(custom)))["code"] == "tool_call_not_pending"
        await talk.say({"type": "user.interrupt"})
        assert (await talk.refused(confirm(asked)))["code"] == "tool_call_not_pending"
        await talk.say(message("Something else."))
        assert (await talk.refused(confirm(asked)))["code"] == "tool_call_not_pending"


async def test_a_message_while_calls_wait_is_read_once_they_are_answered(platform: Platform) -> None:
    async with api(platform.url) as client:
        talk = await Talk.of(client, CUSTOM_TOOL)
        [call_id] = (await talk.say(message(tool("lookup", word="w"))))[-1]["stop_reason"]["event_ids"]
        [waiting] = await client.send(talk.id, message("By the way."))
        assert waiting["processed_at"] is None and await client.status(talk.id) == "requires_action"
        await talk.say(answer(call_id))
        log = await client.log(talk.id)
        assert all(event["processed_at"] for event in of(log, "user.message"))


async def test_an_interrupt_ends_a_wait_and_answers_what_nobody_decided(platform: Platform) -> None:
    async with api(platform.url) as client:
        talk = await Talk.of(client, toolset(default_config=ASK), CUSTOM_TOOL)
        text = f"{tool('bash', command='echo hi')} {tool('lookup', word='w')}"
        ids = (await talk.say(message(text)))[-1]["stop_reason"]["event_ids"]
        events = await talk.say({"type": "user.interrupt"})
        assert events[-1]["stop_reason"] == {"type": "end_turn"}
        assert [event["tool_use_id"] for event in of(events, "agent.tool_result")] == ids
        assert not of(events, "session.error")
        assert (await talk.say(message("Go on.")))[-1]["stop_reason"] == {"type": "end_turn"}


async def test_a_system_message_alone_starts_nothing_and_is_read_with_what_comes_next(platform: Platform) -> None:
    async with api(platform.url) as client:
        talk = await Talk.of(client, *TOOLS)
        await client.send(talk.id, SYSTEM)
        assert await client.status(talk.id) == "idle"
        assert [event["type"] for event in await client.log(talk.id)] == ["system.message"]
        events = await talk.say(message("Hello."))
        assert events[-1]["stop_reason"] == {"type": "end_turn"}
        again = await talk.say(message("Hello again."), SYSTEM)
        assert [event["type"] for event in again[:2]] == ["user.message", "system.message"]


async def test_where_a_system_message_is_taken_depends_on_the_contract(platform: Platform) -> None:
    async with api(platform.url) as client:
        talk = await Talk.of(client, CUSTOM_TOOL)
        for misplaced in ([SYSTEM, message("x")], [message("x"), SYSTEM, SYSTEM]):
            assert (await talk.refused(*misplaced))["code"] == "invalid_system_message"
        for alone in ([SYSTEM], [{"type": "user.interrupt"}, SYSTEM]):
            assert (await talk.refused(*alone, **PUBLISHED))["code"] == "invalid_system_message"
        [call_id] = (await talk.say(message(tool("lookup", word="w"))))[-1]["stop_reason"]["event_ids"]
        assert (await talk.refused(message("x"), SYSTEM, **PUBLISHED))["code"] == "invalid_system_message"
        [waiting] = await client.send(talk.id, SYSTEM)
        assert waiting["processed_at"] is None
        # The answer that ends the wait may bring one along.
        body = {"events": [answer(call_id), SYSTEM]}
        taken = await client.call("POST", f"/v1/sessions/{talk.id}/events", body, **PUBLISHED)
        assert [event["type"] for event in taken["data"]] == ["user.custom_tool_result", "system.message"]
        assert await talk.reader.follow(lambda event: event.get("stop_reason") == {"type": "end_turn"})


async def test_a_steer_is_answered_with_its_receipt_and_is_no_message(platform: Platform) -> None:
    async with api(platform.url) as client:
        talk = await Talk.of(client, *TOOLS)
        path = f"/v1/sessions/{talk.id}/events"
        steer = {"type": "user.steer", "input_id": "steer_1", "text": "Prefer the smaller change."}
        told = await client.call("POST", path, {"events": [steer]})
        assert told["accepted"] is False
        assert told["steer"]["input_id"] == "steer_1" and told["steer"]["state"] == "rejected"
        [stored] = await client.log(talk.id)
        assert stored["type"] == "user.steer" and stored["metadata"]["steer_state"] == "rejected"
        assert await client.status(talk.id) == "idle"
        told = await client.call("POST", path, {"events": [steer | {"text": "Another one."}]})
        assert (told["accepted"], told["steer"]["state"]) == (False, "conflict")
        for wrong in ({"content": "x"}, {"text": " "}, {"input_id": ""}, {"tools": []}, {"expected_turn_id": 5}):
            await talk.refused(steer | wrong)
