"""Answers that are none, agents that hang, interrupts and steers: one session.error at most, and the turn ends."""

import asyncio
from typing import Any

import orjson

from kit.testing import await_until
from services.worker.tools import ToolOutcome
from tests.integration.engines.sessions import remote_session, runner
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.runner.played import TOOLSET, Gate, PlayedSandboxes
from tests.support.http_agent import Answer, body, calls, http_agent, reply

FRENCH = [{"type": "text", "text": "Answer in French."}]
BAD_CALLS = {"tool_calls": [{"id": "a", "name": "bash", "arguments": {}}, {"id": "a", "name": "bash", "arguments": {}}]}


NO_ANSWERS = [
    (body({"error": "no"}, 500), 'answered with status 500: {"error": "no"}'),
    (Answer([], 302, {"location": "http://127.0.0.1:1/"}), "redirects are not followed"),
    (body(b"<html>"), "not JSON: <html>"),
    (body({"answer": "Hi."}), "neither reply nor tool_calls"),
    (body(BAD_CALLS), "two have the same id"),
    (body({"tool_calls": [{"id": "a", "name": "bash", "arguments": []}]}), "not an object"),
    (Answer(hang=True), "did not answer within 1 seconds"),
]


async def test_what_is_no_answer_is_one_error_and_the_end_of_the_turn(platform: World) -> None:
    sandboxes = PlayedSandboxes()
    async with runner(platform, None, sandboxes):
        await asyncio.gather(*(_check_no_answer(platform, answer, told) for answer, told in NO_ANSWERS))
    assert sandboxes.calls == []


async def _check_no_answer(platform: World, answer: Answer, told: str) -> None:
    async with http_agent(answer, reply("Better.")) as agent:
        session = await remote_session(platform, agent, TOOLSET, options={"timeout_seconds": 1})
        await platform.say(session, "go")
        log = await platform.until_logged(session, "session.status_idle")
        (error,) = of(log, "session.error")
        assert error["error"]["type"] == "model_request_failed_error" and told in error["error"]["message"]
        assert error["error"]["retry_status"] == "unknown"
        assert len(agent.steps) == 1 and not of(log, "session.status_rescheduled")
        assert types(log)[-4] == "session.error" and types(log)[-1] == "session.status_idle"
        (end,) = of(log, "span.model_request_end")
        assert (end["is_error"], end["step_outcome"]) == (True, "failed")
        # The session can be used again, and what failed is not posted a second time.
        await platform.say(session, "again")
        log = await platform.until_logged(session, "session.status_idle", 2)
        assert [(step["step"], step.get("message")) for step in agent.steps] == [(1, "go"), (2, "again")]
        assert text_of(of(log, "agent.message")[-1]) == "Better." and len(of(log, "session.error")) == 1


async def test_an_agent_that_was_not_reached_is_sent_what_it_did_not_get_before_anything_new(platform: World) -> None:
    async with http_agent(reply("First."), reply("Second.")) as agent:
        session = await remote_session(platform, agent)
        # This runner's operator allows no private hosts.
        async with platform.runner():
            await platform.say(session, "one")
            log = await platform.until(session)
            assert "may not be connected to" in of(log, "session.error")[0]["error"]["message"]
            assert agent.steps == [] and "step_outcome" not in of(log, "span.model_request_end")[0]
        async with runner(platform):
            await platform.say(session, "two")
            log = await platform.until_logged(session, "session.status_idle", 2)
            assert [(step["step"], step["message"]) for step in agent.steps] == [(1, "one"), (2, "two")]
            assert [text_of(event) for event in of(log, "agent.message")] == ["First.", "Second."]


async def test_results_that_could_not_be_posted_are_posted_first(platform: World) -> None:
    async with http_agent(calls(("c1", "bash", {})), reply("Second.")) as agent:
        gate = Gate()
        sandboxes = PlayedSandboxes(gate)
        session = await remote_session(platform, agent, TOOLSET)
        async with runner(platform, None, sandboxes):
            await platform.say(session, "go")
            await gate.reached.wait()
            await platform.clients.send(session, {"type": "user.interrupt"})
            log = await platform.until(session)
            assert "Interrupted" in text_of(of(log, "agent.tool_result")[0]) and len(agent.steps) == 1
            await platform.say(session, "something else")
            log = await platform.until_logged(session, "session.status_idle", 2)
            (result,) = agent.steps[1]["tool_results"]
            assert (result["id"], result["ok"]) == ("c1", False) and "Interrupted" in result["error"]
            assert agent.steps[2]["message"] == "something else"
            assert not of(log, "session.error")


class TestInterrupt:
    async def test_it_breaks_the_post_off_at_once(self, platform: World) -> None:
        reached = asyncio.Event()

        async def wait() -> None:
            reached.set()
            await asyncio.Event().wait()

        async with http_agent(Answer(first=wait), reply("Yes?")) as agent, runner(platform):
            session = await remote_session(platform, agent)
            await platform.say(session, "go")
            await reached.wait()
            await platform.clients.send(session, {"type": "user.interrupt"})
            log = await platform.until(session)
            await await_until(lambda: agent.broken == 1, message="the connection is closed")
            assert not of(log, "session.error") and not of(log, "agent.message")
            (end,) = of(log, "span.model_request_end")
            assert (end["is_error"], end["step_outcome"]) == (False, "interrupted")
            # What was interrupted is not posted again: the agent may have acted on it.
            await platform.say(session, "hello?")
            await platform.until_logged(session, "session.status_idle", 2)
            assert [(step["step"], step["message"]) for step in agent.steps] == [(1, "go"), (2, "hello?")]

    async def test_a_message_with_it_is_the_next_step(self, platform: World) -> None:
        reached = asyncio.Event()

        async def wait() -> None:
            reached.set()
            await asyncio.Event().wait()

        async with http_agent(Answer(first=wait), reply("Yes?")) as agent, runner(platform):
            session = await remote_session(platform, agent)
            await platform.say(session, "go")
            await reached.wait()
            await platform.clients.send(
                session, {"type": "user.interrupt"}, {"type": "user.message", "content": "stop that"}
            )
            log = await platform.until_logged(session, "agent.message")
            log = await platform.until(session)
            assert [step["message"] for step in agent.steps] == ["go", "stop that"]
            assert len(of(log, "session.status_idle")) == 1


async def test_a_steer_is_refused_since_the_protocol_has_no_way_for_it(platform: World) -> None:
    reached, gate = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await gate.wait()

    slow = reply("Done.")
    slow.first = wait
    async with http_agent(slow) as agent, runner(platform):
        session = await remote_session(platform, agent)
        await platform.say(session, "go")
        await reached.wait()
        answer = await platform.clients.send(session, {"type": "user.steer", "input_id": "s1", "text": "smaller"})
        (receipt,) = orjson.loads(answer.steer_receipts_json)
        assert receipt["state"] == "rejected" and "detail" in receipt
        gate.set()
        log = await platform.until(session)
        assert of(log, "user.steer")[0]["metadata"]["steer_state"] == "rejected"
        assert len(agent.steps) == 1 and "smaller" not in str(agent.steps)


class TestQueued:
    async def test_what_is_said_while_calls_run_waits_until_the_agent_has_replied(self, platform: World) -> None:
        gate = Gate()

        async def run(name: str, value: Any) -> ToolOutcome:
            return await gate(name, value)

        asked, more = calls(("c1", "bash", {})), calls(("c2", "read", {"file_path": "a"}))
        async with (
            http_agent(asked, more, reply("First."), reply("Second.")) as agent,
            runner(platform, None, PlayedSandboxes(run)),
        ):
            session = await remote_session(platform, agent, TOOLSET)
            await platform.say(session, "go")
            await gate.reached.wait()
            await platform.say(session, "one more", "and another")
            gate.opened.set()
            log = await platform.until(session)
            kinds = [("message" in step, step.get("message")) for step in agent.steps]
            assert kinds == [(True, "go"), (False, None), (False, None), (True, "one more\n\nand another")]
            assert [text_of(event) for event in of(log, "agent.message")] == ["First.", "Second."]
            # It is shown unread until the agent is sent it.
            first_reply = of(log, "agent.message")[0]
            assert all(each["processed_at"] >= first_reply["created_at"] for each in of(log, "user.message")[1:])
            assert len(of(log, "session.status_idle")) == 1

    async def test_a_system_message_stands_in_the_system_prompt_from_then_on(self, platform: World) -> None:
        async with http_agent(reply("Ok.")) as agent, runner(platform):
            session = await remote_session(platform, agent)
            await platform.clients.send(
                session,
                {"type": "user.message", "content": "go"},
                {"type": "system.message", "content": FRENCH},
            )
            await platform.until(session)
            await platform.say(session, "again")
            await platform.until_logged(session, "session.status_idle", 2)
            assert [step["system"] for step in agent.steps] == ["Be brief.\n\nAnswer in French."] * 2
            assert [step["message"] for step in agent.steps] == ["go", "again"]

    async def test_a_system_message_alone_asks_for_no_step(self, platform: World) -> None:
        reached, gate = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            reached.set()
            await gate.wait()

        slow = reply("Done.")
        slow.first = wait
        async with http_agent(slow, reply("More.")) as agent, runner(platform):
            session = await remote_session(platform, agent)
            await platform.say(session, "go")
            await reached.wait()
            await platform.clients.send(session, {"type": "system.message", "content": FRENCH})
            gate.set()
            log = await platform.until(session)
            assert len(agent.steps) == 1 and len(of(log, "session.status_idle")) == 1
            await platform.say(session, "again")
            await platform.until_logged(session, "session.status_idle", 2)
            assert agent.steps[1]["system"] == "Be brief.\n\nAnswer in French."

    async def test_pictures_are_named_since_a_message_is_text(self, platform: World) -> None:
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
        async with http_agent(reply("Ok.")) as agent, runner(platform):
            session = await remote_session(platform, agent)
            content = [{"type": "text", "text": "Look:"}, picture]
            await platform.clients.send(session, {"type": "user.message", "content": content})
            await platform.until(session)
            assert agent.steps[0]["message"] == "Look:\n\n[image that this model can't be shown]"
