"""Guardrails in real turns: what is objected to reaches neither the model nor a reader, and is told by its code.

One sessions service for the file; each test has an agent, a played model and a runner of its own.
"""

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kit.nats import connect
from kit.testing import await_until
from kit.testing.swept import SweptDatabases
from managed_agents.sessions.v1.events_pb2 import Preview
from services.sessions.app import MIGRATIONS
from services.worker.runner.loop import guardrails
from services.worker.runner.models.base import TextDelta
from tests.integration.runner.harness import World, of, text_of, types, world
from tests.integration.runner.played import (
    ASKING,
    CUSTOM,
    TOOLSET,
    Gate,
    PlayedSandboxes,
    ScriptedModel,
    call,
    say,
    wait_at,
)
from tests.support.vendor import Answer, refusal, vendor

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET = "the secret number is 4711"
HERE = "127.0.0.1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[World]:
    async with (
        swept_databases.database("sessions", MIGRATIONS) as dsn,
        world(dsn, nats_url, lease_seconds=1.0) as made,
    ):
        yield made


def blocked(log: list[dict[str, Any]]) -> dict[str, Any]:
    """What the log says of the one objection, after the forms of it agree."""
    (told,) = of(log, "session.guardrail_blocked")
    (error,) = of(log, "session.error")
    assert error["error"]["type"] == told["code"] and error["error"]["message"] == told["message"]
    assert log[-1]["stop_reason"] == {"type": "retries_exhausted"}
    return told


async def one(platform: World, checks: dict[str, Any], text: str, answer: str = "Fine.") -> tuple[Any, Any]:
    """The log of a turn under these checks, and what the model was asked."""
    session, model = await platform.session(guardrails=checks), ScriptedModel([say(answer)])
    async with platform.runner(model, allowed_private_hosts=HERE):
        await platform.say(session, text)
        return await platform.until(session), model.requests


@pytest.mark.parametrize(
    ("checks", "text", "code", "message"),
    [
        ({"max_characters": 5}, "123456", "input_too_long", ""),
        ({"deny_patterns": ["(?i)PRICE"]}, "What is your price?", "input_pattern_denied", ""),
        ({"deny_patterns": ["a", {"pattern": "b", "code": "no_b", "message": "No b."}]}, "xbx", "no_b", "No b."),
        ({"max_characters": 1, "code": "too_much", "message": "Shorter."}, "ab", "too_much", "Shorter."),
        ({"deny_patterns": [{"pattern": "b", "code": "own"}], "code": "side", "message": "Side."}, "b", "own", "Side."),
        ({"deny_patterns": ["é+😀"]}, "xéé😀", "input_pattern_denied", ""),
    ],
)
async def test_an_input_that_is_objected_to_does_not_reach_the_model(
    platform: World, checks: Any, text: str, code: str, message: str
) -> None:
    log, requests = await one(platform, {"input": checks}, text)
    told = blocked(log)
    assert (told["side"], told["code"]) == ("input", code) and (not message or told["message"] == message)
    assert requests == [] and not of(log, "span.model_request_start")


async def test_what_no_check_objects_to_goes_on_as_ever(platform: World) -> None:
    checks = {"max_characters": 20, "deny_patterns": ["nothing like it"]}
    log, requests = await one(platform, {"input": checks, "output": checks}, "Hello")
    assert text_of(of(log, "agent.message")[0]) == "Fine." and len(requests) == 1
    assert not of(log, "session.error") and log[-1]["stop_reason"] == {"type": "end_turn"}


async def test_what_was_blocked_stays_out_of_every_later_context(platform: World) -> None:
    session = await platform.session(guardrails={"input": {"deny_patterns": ["4711"]}})
    first, second = ScriptedModel([say("one")]), ScriptedModel([say("two")])
    async with platform.runner(first):
        await platform.say(session, "Hello")
        await platform.until(session)
        await platform.say(session, SECRET)
        blocked(await platform.until(session))
        await platform.say(session, "Still there?")
        await platform.until_logged(session, "agent.message", 2)
    # Another runner, which has nothing but the log.
    async with platform.runner(second):
        await platform.say(session, "And now?")
        await platform.until_logged(session, "agent.message", 3)
    for request in (*first.requests, *second.requests):
        assert "4711" not in str(request.messages)
    assert "Still there?" in str(second.requests[0].messages)


async def test_only_what_is_objected_to_is_kept_from_the_model(platform: World) -> None:
    session = await platform.session(guardrails={"input": {"deny_patterns": ["4711"]}})
    model = ScriptedModel([say("one")])
    async with platform.runner(model):
        await platform.say(session, "This is fine.", SECRET)
        blocked(await platform.until(session))
        await platform.say(session, "Go on.")
        await platform.until_logged(session, "agent.message")
    assert "This is fine." in str(model.requests[0].messages) and "4711" not in str(model.requests[0].messages)


async def test_an_answer_to_a_question_is_an_input_too(platform: World) -> None:
    # Also where what stands in its place would be objected to.
    checks = {"deny_patterns": ["4711"], "max_characters": 40}
    session = await platform.session(CUSTOM, guardrails={"input": checks})
    model = ScriptedModel([call(("lookup", {"name": "n"})), say("later")])
    async with platform.runner(model):
        await platform.say(session, "Ask me.")
        (asked,) = of(await platform.until(session, "requires_action"), "agent.custom_tool_use")
        content = [{"type": "text", "text": SECRET}]
        result = {"type": "user.custom_tool_result", "custom_tool_use_id": asked["id"], "content": content}
        await platform.clients.send(session, result)
        told = blocked(await platform.until(session))
        assert told["call_ids"] == [asked["id"]]
        await platform.say(session, "Go on.")
        await platform.until_logged(session, "agent.message")
    assert "4711" not in str(model.requests) and "withheld" in str(model.requests[1].messages)


async def test_the_reason_of_a_denial_is_an_input_too(platform: World) -> None:
    session = await platform.session(ASKING, guardrails={"input": {"deny_patterns": ["4711"]}})
    model = ScriptedModel([call(("bash", {"command": "ls"})), say("later")])
    async with platform.runner(model):
        await platform.say(session, "Try.")
        (use,) = of(await platform.until(session, "requires_action"), "agent.tool_use")
        denial = {"type": "user.tool_confirmation", "tool_use_id": use["id"], "result": "deny", "deny_message": SECRET}
        await platform.clients.send(session, denial)
        blocked(await platform.until(session))
        await platform.say(session, "Go on.")
        await platform.until_logged(session, "agent.message")
    assert "4711" not in str(model.requests)


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ({"max_characters": 10}, "output_too_long"),
        ({"deny_patterns": ["secret"]}, "output_pattern_denied"),
        ({"deny_patterns": [{"pattern": "47", "code": "leak"}]}, "leak"),
    ],
)
async def test_an_answer_that_is_objected_to_is_nowhere(platform: World, checks: Any, code: str) -> None:
    log, _ = await one(platform, {"output": checks}, "Tell me.", SECRET)
    told = blocked(log)
    assert (told["side"], told["code"]) == ("output", code)
    assert "4711" not in str(log) and not of(log, "agent.message")
    (ended,) = of(log, "span.model_request_end")
    assert ended["is_error"] is False and ended["model_usage"]["output_tokens"] == 5


async def test_calls_of_an_answer_that_is_objected_to_are_not_made(platform: World) -> None:
    session = await platform.session(TOOLSET, guardrails={"output": {"deny_patterns": ["secret"]}})
    model, sandboxes = ScriptedModel([[TextDelta(SECRET), *call(("bash", {"command": "ls"}))]]), PlayedSandboxes()
    async with platform.runner(model, sandboxes):
        await platform.say(session, "Do it.")
        log = await platform.until(session)
    blocked(log)
    assert sandboxes.calls == [] and not of(log, "agent.tool_use")


async def test_nothing_of_an_answer_is_told_before_its_check_has_passed(platform: World, nats_url: str) -> None:
    session = await platform.session(guardrails={"output": {"deny_patterns": ["4711"]}})
    gate, heard = Gate(), list[Preview]()
    model = ScriptedModel([[TextDelta("the secret number "), wait_at(gate), *say("is 4711")]])
    bus = await connect(nats_url, "listener")

    async def hear(message: Any) -> None:
        heard.append(Preview.FromString(message.data))

    try:
        await bus.subscribe(f"sessions.preview.{session}", hear)
        await bus.client.flush()
        async with platform.runner(model):
            await platform.say(session, "Go.")
            await gate.reached.wait()
            # What an interrupt cuts off did not pass either.
            await platform.clients.send(session, {"type": "user.interrupt"})
            log = await platform.until(session)
            assert not of(log, "agent.message") and not of(log, "session.error")
            gate.opened.set()
            await platform.say(session, "Again.")
            blocked(await platform.until(session))
        await bus.client.flush()
    finally:
        await bus.close()
    assert heard == []


async def test_an_endpoint_is_asked_and_decides(platform: World) -> None:
    denial = {"allow": False, "code": "house_rule", "message": "Not in this house."}
    async with vendor(refusal(200, {"allow": True}), refusal(200, denial)) as judge:
        endpoint = {"url": f"{judge.url}/check"}
        log, requests = await one(platform, {"input": {"endpoint": endpoint}}, "Hello")
        assert len(requests) == 1 and not of(log, "session.error")
        told = blocked((await one(platform, {"output": {"endpoint": endpoint}}, "Hello", SECRET))[0])
        assert (told["code"], told["message"]) == ("house_rule", "Not in this house.")
    asked_of_input, asked_of_output = judge.requests
    assert (asked_of_input["side"], asked_of_input["text"]) == ("input", "Hello")
    assert (asked_of_output["side"], asked_of_output["text"]) == ("output", SECRET)
    assert asked_of_output["session_id"] and asked_of_output["agent_id"] and asked_of_output["agent_version"] == 1


@pytest.mark.parametrize(
    "answer",
    [
        refusal(500, {"allow": True}),
        refusal(200, {"allowed": True}),
        refusal(200, {"allow": "yes"}),
        Answer(200, [b"no json"], {"content-type": "text/plain"}),
        Answer(302, [], {"location": "http://127.0.0.1:1/"}),
        Answer(200, [b'{"allow":true,"x":"' + b"x" * 70_000 + b'"}'], {"content-type": "application/json"}),
        Answer(200, [b'{"allow"'], hang=True),
    ],
    ids=["status", "field", "type", "text", "redirect", "size", "hangs"],
)
async def test_an_endpoint_that_does_not_answer_as_it_should_blocks_unless_the_agent_says_otherwise(
    platform: World, answer: Answer
) -> None:
    async with vendor(answer) as judge:
        endpoint = {"url": judge.url, "timeout_seconds": 0.3}
        log, requests = await one(platform, {"input": {"endpoint": endpoint}}, "Hello")
        assert blocked(log)["code"] == "input_check_unavailable" and requests == []
        log, requests = await one(platform, {"input": {"endpoint": endpoint | {"on_failure": "allow"}}}, "Hello")
        assert len(requests) == 1 and not of(log, "session.error")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.2:9/", "http://169.254.169.254/latest", "http://[::1]:9/", "http://no-such-host.invalid/"]
)
async def test_an_endpoint_is_only_connected_to_at_an_address_that_may_be(platform: World, url: str) -> None:
    log, requests = await one(platform, {"output": {"endpoint": {"url": url, "timeout_seconds": 3}}}, "Hello", SECRET)
    assert blocked(log)["code"] == "output_check_unavailable" and len(requests) == 1
    assert url not in str(of(log, "session.error"))


async def test_an_interrupt_is_obeyed_while_an_endpoint_is_asked(platform: World) -> None:
    async with vendor(Answer(200, [b"{"], hang=True)) as judge:
        endpoint = {"url": judge.url, "timeout_seconds": 30}
        session = await platform.session(guardrails={"input": {"endpoint": endpoint}})
        async with platform.runner(ScriptedModel([say("no")]), allowed_private_hosts=HERE):
            await platform.say(session, "Hello")
            await await_until(lambda: bool(judge.requests))
            await platform.clients.send(session, {"type": "user.interrupt"})
            log = await platform.until(session)
    assert not of(log, "session.error") and types(log)[-1] == "session.status_idle"


@pytest.mark.parametrize("side", ["input", "output"])
async def test_patterns_that_take_long_hold_up_neither_other_turns_nor_an_interrupt(
    platform: World, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = await platform.session(guardrails={side: {"deny_patterns": ["slow"]}})
    quick = await platform.session(guardrails={side: {"deny_patterns": ["quick"]}})
    begun, opened, search = threading.Event(), threading.Event(), guardrails.search

    def hold(pattern: str, text: str) -> bool:
        if pattern == "slow":
            begun.set()
            opened.wait(30)
        return search(pattern, text)

    monkeypatch.setattr(guardrails, "search", hold)
    try:
        async with platform.runner(ScriptedModel([say("Fine."), say("Fine.")])):
            await platform.say(slow, "Hello")
            await await_until(begun.is_set)
            await platform.say(quick, "Hello")
            assert text_of(of(await platform.until(quick), "agent.message")[0]) == "Fine."
            await platform.clients.send(slow, {"type": "user.interrupt"})
            assert not of(await platform.until(slow), "session.error")
    finally:
        opened.set()


@pytest.mark.parametrize("side", ["input", "output"])
async def test_patterns_that_take_too_long_block(platform: World, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()
    monkeypatch.setattr(guardrails, "search", lambda pattern, text: opened.wait(30))
    monkeypatch.setattr(guardrails, "MATCH_SECONDS", 0.05)
    try:
        log, _ = await one(platform, {side: {"deny_patterns": ["a"]}}, "Hello")
        assert blocked(log)["code"] == f"{side}_check_unavailable" and not of(log, "agent.message")
    finally:
        opened.set()


async def test_a_repeat_after_a_crash_blocks_once(platform: World) -> None:
    session = await platform.session(guardrails={"input": {"deny_patterns": ["4711"]}})
    async with platform.runner_process("runner.before_append=kill") as process:
        await platform.say(session, SECRET)
        await process.wait()
    async with platform.runner(ScriptedModel([say("no")])):
        blocked(await platform.until(session, seconds=40))
