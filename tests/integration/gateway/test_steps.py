"""Steps of the HTTP agent protocol over HTTP: answers, repeats, waiting, and refusals that leave no row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from kit.errors import Unavailable
from kit.testing.swept import SweptDatabases
from kit.waiting import within
from services.gateway.routes.steps import StepRoutes
from services.gateway.streams import Hub
from tests.integration.gateway.conftest import Gateway, serving
from tests.integration.gateway.further import another
from tests.integration.gateway.stepping import LOOKUP, TOOLSET, Stage, code, ok, own_call, stage
from tests.integration.sessions.turn_driver import answer, end, event

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAME = "20261018T210512-k3f9/walk-away-above-ceiling#0"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[Gateway]:
    """One gateway for all tests of this file."""
    async with swept_databases.maker() as make, serving(make, nats_url) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def here(shared: Gateway) -> AsyncIterator[Stage]:
    """An agent that no other test talks to, and a runner."""
    async with stage(shared) as made:
        yield made


def types(log: list[dict[str, Any]], *wanted: str) -> list[str]:
    return [entry["type"] for entry in log if entry["type"] in wanted]


async def test_a_turn_step_by_step(here: Stage) -> None:
    asked = here.begin(NAME, system="ignored", tools=[LOOKUP], message="MC 100202 here, I want L-1001.")
    first, second = await here.called("a", "b", says="Let me look.")
    called = await asked
    assert called.status_code == 200 and called.headers["content-type"] == "application/json"
    assert called.json() == {
        "tool_calls": [
            {"id": first, "name": "lookup", "arguments": {"id": "a"}},
            {"id": second, "name": "lookup", "arguments": {"id": "b"}},
        ]
    }
    results = [ok(first, {"mc": "100202", "ok": [True, None]}), {"id": second, "ok": False, "error": "unknown id"}]
    told = here.begin(NAME, system="ignored", tools=[LOOKUP], tool_results=results)
    grant = await here.replied("I'm sorry.")
    answered = await told
    assert answered.status_code == 200 and answered.json() == {"reply": "I'm sorry."}
    # The model has read both results, and the session is one of its owner's.
    read = [event.body for event in grant.context if event.type == "user.custom_tool_result"]
    assert b'{\\"mc\\":\\"100202\\",\\"ok\\":[true,null]}' in read[0] and b"unknown id" in read[1]
    session = await here.call("GET", f"/v1/sessions/{answered.headers['step-session']}")
    assert (session["title"], session["status"]) == (NAME, "idle")
    assert [tool.get("name") for tool in session["agent"]["tools"]] == [None, "lookup"]
    assert session["agent"]["system"] == "You are helpful."
    assert [each.headers["step-number"] for each in (called, answered)] == ["1", "2"]


async def test_tools_of_the_agents_own_run_inside_the_step(here: Stage) -> None:
    asked = here.begin(message="List the files.")
    grant = await here.runner.granted()
    call = own_call("a")
    result = event("agent.tool_result", tool_use_id=call.id, content=[{"type": "text", "text": "x"}], is_error=False)
    await here.replica.append(grant, event("span.model_request_start"), call)
    assert not asked.done()
    await here.replica.append(grant, result, *answer("There is x."), end=end())
    assert (await asked).json() == {"reply": "There is x."}


async def test_any_string_is_a_conversation_of_its_own(here: Stage) -> None:
    names = ["a", "a/b", "a#0", "a#1", "ü", "量 🦆", " ", "x" * 1000, "%2F", "../..", "a?b=c&d"]
    asked = [here.begin(name, message=f"I am {name}") for name in names]
    for _ in names:
        grant = await here.runner.granted()
        text = next(event.body for event in grant.context if event.type == "user.message").decode()
        await here.replica.append(grant, *answer(f"You are {text}"), end=end())
    sessions = set()
    for name, answered in zip(names, await asyncio.gather(*asked), strict=True):
        assert f"I am {name}" in answered.json()["reply"].replace('\\"', '"')
        sessions.add(answered.headers["step-session"])
    assert len(sessions) == len(names)
    # They go on in any order.
    again = [here.begin(name, message="and again") for name in reversed(names)]
    for _ in names:
        await here.replied()
    assert {answered.headers["step-session"] for answered in await asyncio.gather(*again)} == sessions


async def test_a_repeat_has_the_same_answer_and_no_second_turn(here: Stage, shared: Gateway, nats_url: str) -> None:
    asked = here.begin(tools=[LOOKUP], message="look")
    [call] = await here.called("a")
    first = await asked
    results = [ok(call, [1, 2])]
    told = here.begin(tool_results=results)
    await here.replied()
    second = await told
    third = here.begin(message="bye")
    await here.replied("Bye.")
    assert (await third).json() == {"reply": "Bye."}
    before = await here.rows()
    async with another(shared, nats_url) as (elsewhere, _ring):
        for http in (here.http, elsewhere):
            path = f"/v1/agents/{here.agent_id}/step"
            for body, expected in (({"message": "bye"}, third.result()), ({"tool_results": results}, second)):
                again = await http.post(path, json={"session_id": "c", **body})
                assert (again.status_code, again.content) == (200, expected.content)
                assert again.headers["step-repeated"] == "true"
                assert again.headers["step-number"] == expected.headers["step-number"]
    assert await here.rows() == before and await here.runner.nothing_granted(0.1)
    assert first.json()["tool_calls"][0]["id"] == call


async def test_a_repeat_waits_for_the_turn_that_the_first_one_began(here: Stage) -> None:
    left = here.begin(message="slow")
    grant = await here.runner.granted()
    left.cancel()
    waiting = [here.begin(message="slow") for _ in range(3)]
    await here.replica.append(grant, event("span.model_request_start"))
    assert not any(each.done() for each in waiting)
    await here.replica.append(grant, *answer("Done.")[1:], end=end())
    answers = await asyncio.gather(*waiting)
    assert {each.content for each in answers} == {b'{"reply":"Done."}'}
    assert types(await here.log(answers[0]), "user.message", "user.interrupt") == ["user.message"]


async def test_steps_of_one_instant_make_one_session_and_take_their_turns(here: Stage) -> None:
    same = [here.begin("same", message="hello") for _ in range(6)]
    await here.replied("Hello.")
    answers = await asyncio.gather(*same)
    assert {each.content for each in answers} == {b'{"reply":"Hello."}'}
    assert sorted(each.headers["step-repeated"] for each in answers) == ["false", *["true"] * 5]
    different = [here.begin("different", message=f"message {number}") for number in range(4)]
    for _ in different:
        grant = await here.runner.granted()
        newest = [event.body for event in grant.context if event.type == "user.message"][-1].decode()
        await here.replica.append(grant, *answer(newest.partition("message ")[2][:1]), end=end())
    answers = await asyncio.gather(*different)
    assert [each.json()["reply"] for each in answers] == ["0", "1", "2", "3"]
    assert len({each.headers["step-session"] for each in answers}) == 1


async def test_a_message_waits_for_a_turn_that_its_owner_began(here: Stage) -> None:
    asked = here.begin(message="one")
    await here.replied()
    session_id = (await asked).headers["step-session"]
    await here.send(session_id, type="user.message", content="from the console")
    grant = await here.runner.granted()
    asked = here.begin(message="two")
    assert await here.runner.nothing_granted(0.2) and not asked.done()
    await here.replica.append(grant, *answer("To the console."), end=end())
    await here.replied("To the caller.")
    assert (await asked).json() == {"reply": "To the caller."}


async def test_a_message_in_place_of_results_goes_on_without_them(here: Stage) -> None:
    """As a caller does whose own budget of rounds is used up."""
    asked = here.begin(tools=[LOOKUP], message="look")
    ids = await here.called("a", "b")
    await asked
    asked = here.begin(tools=[LOOKUP], message="never mind")
    grant = await here.runner.granted()
    assert [event.type for event in grant.context[-3:]] == ["agent.tool_result", "agent.tool_result", "user.message"]
    await here.replica.append(grant, *answer("As you like."), end=end())
    assert (await asked).json() == {"reply": "As you like."}
    late = await here.step(tool_results=[ok(each) for each in ids])
    assert code(late) == (400, "step_results_mismatch") and late.json()["error"]["details"]["pending_ids"] == []


async def test_names_of_steps(here: Stage) -> None:
    async def answered(text: str, **named: Any) -> httpx2.Response:
        asked = here.begin(**named)
        await here.replied(text)
        return await asked

    first = await answered("One.", key="1", message="yes")
    assert (await here.step(key="1", message="yes")).content == first.content
    second = await answered("Two.", key="2", message="yes")
    numbered = await answered("Three.", step=2, message="yes")
    assert [each.json()["reply"] for each in (first, second, numbered)] == ["One.", "Two.", "Three."]
    for again, expected in (({"key": "1"}, first), ({"key": "2"}, second), ({"step": 2}, numbered)):
        assert (await here.step(message="yes", **again)).content == expected.content
    for name in ({"key": "1"}, {"step": 2}):
        refused = await here.step(message="no", **name)
        assert code(refused) == (409, "idempotency_key_reused") and refused.headers["x-should-retry"] == "false"
    # Without a name the same right after itself is a repeat; once something came in between, it is said again.
    assert (await here.step(message="yes")).json() == {"reply": "Three."}
    await answered("No?", message="no")
    assert (await answered("Four.", message="yes")).json() == {"reply": "Four."}
    # Elsewhere the name is free.
    elsewhere = here.begin("elsewhere", key="1", message="other")
    await here.replied("Other.")
    assert (await elsewhere).json() == {"reply": "Other."}


async def test_refusals_come_before_any_row(here: Stage) -> None:
    before = await here.rows()
    archived = await here.agent(name="archived")
    await here.call("POST", f"/v1/agents/{archived}/archive", {})
    strange = await here.agent(name="strange", metadata={"step_system": "both"})
    homeless = await here.agent(name="homeless", metadata={"step_environment_id": "env_none"})
    locked = await here.agent(name="locked", metadata={"step_vault_ids": "vlt_none"})
    message = {"message": "hello"}
    for body, expected in (
        ({}, (400, "invalid_request")),
        ({**message, "tool_results": [ok("x")]}, (400, "invalid_request")),
        ({"tool_results": [ok("sevt_x")]}, (400, "step_results_mismatch")),
        ({"message": " "}, (400, "invalid_request")),
        ({**message, "name": ""}, (400, "invalid_request")),
        ({**message, "name": "x" * 1001}, (400, "invalid_request")),
        ({**message, "surprise": 1}, (400, "unknown_field")),
        ({**message, "tools": [{**LOOKUP, "name": "bash"}]}, (400, "invalid_request")),
        ({**message, "tools": [LOOKUP, LOOKUP]}, (400, "invalid_request")),
        ({**message, "key": "x" * 256}, (400, "invalid_request")),
        ({**message, "agent_id": "agent_none"}, (404, "agent_not_found")),
        ({**message, "agent_id": archived}, (400, "agent_archived")),
        ({**message, "agent_id": strange}, (400, "invalid_request")),
        ({**message, "agent_id": homeless}, (404, "environment_not_found")),
        ({**message, "agent_id": locked}, (400, "vault_not_found")),
    ):
        assert code(await here.step(**body)) == expected, body
    assert await here.rows() == before


async def test_refusals_within_a_conversation_change_nothing(here: Stage) -> None:
    asked = here.begin(tools=[LOOKUP], message="look")
    first, second = await here.called("a", "b")
    block_id = "toolu_a"
    await asked
    before = await here.rows()
    for results in (
        [ok("sevt_unknown")],
        [ok(first)],
        [ok(second)],
        [ok(first), ok(second), ok("sevt_unknown")],
        [ok(block_id), ok(second)],
    ):
        refused = await here.step(tool_results=results)
        assert code(refused) == (400, "step_results_mismatch"), results
        assert refused.json()["error"]["details"]["pending_ids"] == [first, second]
    twice = await here.step(tool_results=[ok(first), ok(first), ok(second)])
    assert code(twice) == (400, "invalid_request")
    for tools in ([], [{**LOOKUP, "description": "Other."}], [LOOKUP, {**LOOKUP, "name": "third"}]):
        for brought in ({"message": "hello"}, {"tool_results": [ok(first), ok(second)]}):
            refused = await here.step(tools=tools, **brought)
            assert code(refused) == (409, "step_tools_changed") and refused.headers["x-should-retry"] == "false"
    assert await here.rows() == before
    # The calls wait as before.
    told = here.begin(tools=[LOOKUP], tool_results=[ok(second), ok(first)])
    await here.replied()
    assert (await told).json() == {"reply": "Hi."}
    for answered in ([ok(first, "other"), ok(second)], [ok(first)]):
        assert code(await here.step(tool_results=answered)) == (400, "step_results_mismatch")


async def test_the_system_prompt_of_the_request(here: Stage) -> None:
    bare = await here.agent(name="bare", system=None)
    asking = await here.agent(name="asking", metadata={"step_system": "request"})
    for agent_id, expected in ((bare, "Sell."), (asking, "Sell."), (here.agent_id, "You are helpful.")):
        asked = here.begin(agent_id=agent_id, system="Sell.", message="hello")
        grant = await here.replied()
        assert f'"system":"{expected}"'.encode() in grant.session.agent.document_json
        await asked
        other = here.begin(agent_id=agent_id, system="Buy.", message="and now?")
        if agent_id == here.agent_id:
            await here.replied()
            assert (await other).status_code == 200
        else:
            assert code(await other) == (409, "step_system_changed")


async def test_a_conversation_runs_the_version_that_it_began_with(here: Stage) -> None:
    asked = here.begin(message="one")
    await here.replied()
    await asked
    await here.call("PUT", f"/v1/agents/{here.agent_id}", {"system": "Another."})
    for name, version in (("c", 1), ("new", 2)):
        asked = here.begin(name, message="two")
        assert (await here.replied()).session.agent.version == version
        await asked


async def test_a_confirmation_is_asked_for_by_a_refusal_and_the_same_step_goes_on_after_it(here: Stage) -> None:
    asked = here.begin(tools=[LOOKUP], message="careful")
    [call, asking] = await here.called("a", asking="b")
    refused = await asked
    assert code(refused) == (409, "step_requires_confirmation") and refused.headers["x-should-retry"] == "false"
    details = refused.json()["error"]["details"]
    assert details["event_ids"] == [asking]
    before = await here.rows()
    for body in ({"message": "careful"}, {"message": "something else"}):
        assert code(await here.step(**body)) == (409, "step_requires_confirmation")
    assert await here.rows() == before
    await here.send(details["session_id"], type="user.tool_confirmation", tool_use_id=asking, result="allow")
    again = await here.step(message="careful")
    assert [each["id"] for each in again.json()["tool_calls"]] == [call]
    told = here.begin(tool_results=[ok(call)])
    await here.replied("Done.")
    assert (await told).json() == {"reply": "Done."}


async def test_an_interrupted_a_failed_and_an_ended_turn_are_told_as_such(here: Stage) -> None:
    async def session_id() -> str:
        return (await here.call("GET", "/v1/sessions?limit=1"))["data"][0]["id"]

    asked = here.begin("interrupted", message="slow")
    grant = await here.runner.granted()
    await here.send(await session_id(), type="user.interrupt")
    await here.replica.append(grant, *answer("Half a"), end=end("INTERRUPTED"))
    assert code(await asked) == (409, "step_interrupted")
    asked = here.begin("failed", message="hard")
    grant = await here.runner.granted()
    failure = event("session.error", error={"type": "model_overloaded_error", "message": "The model is busy."})
    await here.replica.append(grant, event("span.model_request_start"), failure, end=end("RETRIES_EXHAUSTED"))
    failed = await asked
    assert code(failed) == (502, "step_turn_failed") and "The model is busy" in failed.json()["error"]["message"]
    assert failed.headers["x-should-retry"] == "false"
    # Each of them is the step's answer, and the conversation goes on.
    for name, text, expected in (("interrupted", "slow", (409, "step_interrupted")), ("failed", "hard", code(failed))):
        assert code(await here.step(name, message=text)) == expected
        asked = here.begin(name, message="another")
        await here.replied("Fine.")
        assert (await asked).json() == {"reply": "Fine."}
    asked = here.begin("stopped", message="slow")
    await here.runner.granted()
    stopped = await session_id()
    await here.replica.stop(stopped)
    assert code(await asked) == (400, "session_ended")
    for text in ("slow", "more"):
        assert code(await here.step("stopped", message=text)) == (400, "session_ended")
    await here.call("DELETE", f"/v1/sessions/{stopped}")
    # The name stays with the session that it had.
    for text in ("slow", "more"):
        assert code(await here.step("stopped", message=text)) == (400, "session_ended")


async def test_an_agent_says_where_its_conversations_work(here: Stage) -> None:
    environment = await here.call("POST", "/v1/environments", {"name": "e", "config": {"type": "cloud"}})
    vault = await here.call("POST", "/v1/vaults", {"display_name": "v"})
    metadata = {"step_environment_id": environment["id"], "step_vault_ids": vault["id"]}
    agent_id = await here.agent(name="placed", metadata=metadata)
    asked = here.begin(agent_id=agent_id, message="hello")
    grant = await here.replied()
    assert (await asked).status_code == 200
    assert grant.session.environment_id == environment["id"] and list(grant.session.vault_ids) == [vault["id"]]


async def test_the_wait_has_an_end_and_the_turn_has_none(
    here: Stage, shared: Gateway, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body = f"/v1/agents/{here.agent_id}/step", {"session_id": "c", "message": "slow"}
    with monkeypatch.context() as patched:
        patched.setattr(StepRoutes.__init__, "__kwdefaults__", {"wait_seconds": 0.2})
        async with another(shared, nats_url) as (hasty, _ring):
            assert code(await hasty.post(path, json=body)) == (504, "step_still_running")
            assert code(await hasty.post(path, json=body | {"message": "more"})) == (504, "step_still_running")
    asked = here.begin(message="slow")
    await here.replied("At last.")
    assert (await asked).json() == {"reply": "At last."}
    assert types(await here.log(await asked), "user.message") == ["user.message"]


async def test_a_gateway_that_stops_says_that_the_step_can_be_sent_again(
    here: Stage, shared: Gateway, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    join, joined = Hub.join, asyncio.Event()

    async def told(self: Hub, *arguments: Any, **options: Any) -> Any:
        tail = await join(self, *arguments, **options)
        joined.set()
        return tail

    monkeypatch.setattr(Hub, "join", told)
    path, body = f"/v1/agents/{here.agent_id}/step", {"session_id": "c", "message": "slow"}
    async with AsyncExitStack() as stack:
        stopping, _ring = await stack.enter_async_context(another(shared, nats_url))
        async with httpx2.AsyncClient(base_url=stopping.base_url, timeout=30) as http:
            asked = asyncio.create_task(http.post(path, json=body))
            await within(joined.wait(), 30)
            await stack.aclose()
            ended = await asked
    assert code(ended) == (503, "step_wait_ended") and int(ended.headers["retry-after"]) >= 1
    asked = here.begin(message="slow")
    await here.replied("At last.")
    assert (await asked).json() == {"reply": "At last."}


async def test_a_service_that_comes_back_soon_is_waited_for_and_nothing_is_done_twice(
    here: Stage, shared: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, tries = shared.clients.steps.TakeStep, 0

    async def lost(request: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Unavailable("away")
        taken = await take(request, **options)
        if tries == 2:
            raise Unavailable("its answer is lost")
        return taken

    monkeypatch.setattr(shared.clients.steps, "TakeStep", lost, raising=False)
    asked = here.begin(message="hello")
    await here.replied()
    answered = await asked
    assert answered.json() == {"reply": "Hi."} and tries == 3
    assert types(await here.log(answered), "user.message") == ["user.message"]


async def test_a_call_that_two_answer_at_once_has_one_result(here: Stage) -> None:
    asked = here.begin(tools=[LOOKUP], message="look")
    [call] = await here.called("a")
    await asked
    told = [here.begin(tool_results=[ok(call, number)]) for number in range(4)]
    told += [here.begin(tool_results=[ok(call, 0)]) for _ in range(2)]
    await here.replied("Seen.")
    answers = await asyncio.gather(*told)
    verdicts = [each.status_code for each in answers]
    assert verdicts.count(400) in (3, 5) and set(verdicts) == {200, 400}
    log = await here.log(next(each for each in answers if each.status_code == 200))
    assert types(log, "user.custom_tool_result") == ["user.custom_tool_result"]


async def test_published_callers_have_the_same_answers(here: Stage) -> None:
    headers = {"anthropic-version": "2026-10-21", "anthropic-beta": "managed-agents-2026-04-01"}
    path = f"/v1/agents/{here.agent_id}/step"
    asked = asyncio.create_task(here.http.post(path, json={"session_id": "p", "message": "hello"}, headers=headers))
    await here.replied()
    assert (await asked).json() == {"reply": "Hi."}
    refused = await here.http.post(path, json={"session_id": "p"}, headers=headers)
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert TOOLSET["type"] in str((await here.call("GET", "/v1/sessions?limit=1"))["data"][0]["agent"])
