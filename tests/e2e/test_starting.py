"""How sessions start, over REST: each refusal with its code and nothing left behind, each form with what it freezes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import CUSTOM_TOOL, TOOLS, Api, Reader, Refused, api, message
from tests.support.platform import Platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

OUTCOME = {"type": "user.define_outcome", "description": "Done", "rubric": {"type": "text", "content": "It is done."}}
MCP = [{"type": "mcp_toolset", "mcp_server_name": "nowhere"}]


async def _refused(client: Api, body: dict[str, Any]) -> tuple[int, str, str]:
    with pytest.raises(Refused) as refused:
        await client.call("POST", "/v1/sessions", body)
    error = refused.value.body["error"]
    return refused.value.status, error["code"], error["message"]


async def _sessions_of(client: Api, agent: str) -> list[dict[str, Any]]:
    return (await client.call("GET", f"/v1/sessions?agent_id={agent}"))["data"]


INITIAL_EVENTS = [
    ("text", "invalid_initial_events"),
    ({"type": "user.message"}, "invalid_initial_events"),
    (None, "invalid_initial_events"),
    ([message("x")] * 51, "too_many_initial_events"),
    ([message("x"), "text"], "invalid_initial_events"),
    ([message("x"), None], "invalid_initial_events"),
    ([message("x"), {"type": "user.interrupt"}], "invalid_initial_event_type"),
    ([{"type": "system.message", "content": [{"type": "text", "text": "x"}]}], "invalid_initial_event_type"),
    ([{"type": "agent.message", "content": "x"}], "invalid_initial_event_type"),
    ([{}], "invalid_initial_event_type"),
    ([message("x"), {"type": "user.message", "content": 5}], "invalid_initial_events"),
    ([{"type": "user.message", "content": [{"type": "text"}]}], "invalid_initial_events"),
    ([{"type": "user.message", "content": {}}], "invalid_initial_events"),
    ([{**OUTCOME, "description": ""}], "invalid_initial_events"),
    ([{**OUTCOME, "rubric": {"type": "text"}}], "invalid_initial_events"),
    ([{**OUTCOME, "rubric": "good"}], "invalid_initial_events"),
    *(([{**OUTCOME, "max_iterations": wrong}], "invalid_initial_events") for wrong in (0, 21, 2.5, "3", True)),
]


async def test_unsound_initial_events_leave_no_session(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        for events, code in INITIAL_EVENTS:
            status, told, _ = await _refused(client, {"agent": agent, "initial_events": events})
            assert (status, told) == (400, code), events
        assert await _sessions_of(client, agent) == []


async def test_initial_events_are_in_the_log_of_a_running_session_before_it_is_answered(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        texts = [f"number {number}" for number in range(50)]
        first = {"type": "user.message", "content": texts[0]}
        body = {"agent": agent, "initial_events": [first, *(message(text) for text in texts[1:])]}
        made = await client.call("POST", "/v1/sessions", body)
        assert made["status"] == "running" and "initial_events" not in made
        log = await client.log(made["id"])
        assert [event["content"][0]["text"] for event in log[:50]] == texts
        assert [event["type"] for event in log[50:52]] == ["session.status_running", "session.thread_status_running"]
        for nothing in ({"initial_events": []}, {}):
            idle = await client.call("POST", "/v1/sessions", {"agent": agent, **nothing})
            assert idle["status"] == "idle" and await client.log(idle["id"]) == []


async def test_a_pinned_version_stays_what_it_was(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent(system="The first prompt.")
        pinned = {"type": "agent", "id": agent, "version": 1}
        before = await client.call("POST", "/v1/sessions", {"agent": pinned})
        await client.call("POST", f"/v1/agents/{agent}", {"system": "The second prompt.", "tools": [CUSTOM_TOOL]})
        after = await client.call("POST", "/v1/sessions", {"agent": pinned})
        newest = await client.call("POST", "/v1/sessions", {"agent": {"type": "agent", "id": agent}})
        for session in (before, after):
            now = (await client.call("GET", f"/v1/sessions/{session['id']}"))["agent"]
            assert (now["version"], now["system"], now["tools"][0]["type"]) == (
                1,
                "The first prompt.",
                TOOLS[0]["type"],
            )
        assert (newest["agent"]["version"], newest["agent"]["system"]) == (2, "The second prompt.")


async def test_agents_that_can_not_be_meant_are_refused(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        for wrong, status, code in (
            ("agent_nope", 404, "agent_not_found"),
            ({"type": "agent", "id": agent, "version": 2}, 404, "agent_version_not_found"),
            ({"type": "agent", "id": agent, "version": 0}, 400, "invalid_agent_ref"),
            ({"type": "agent", "id": agent, "version": "1"}, 400, "invalid_agent_ref"),
            ({"type": "agent", "id": agent, "system": "s"}, 400, "invalid_agent_ref"),
            ({"type": "agent"}, 400, "invalid_agent_ref"),
            ({"type": "other", "id": agent}, 400, "invalid_agent_ref"),
            ({"id": agent}, 400, "invalid_agent_ref"),
            ([], 400, "invalid_agent_ref"),
            ("", 400, "invalid_agent_ref"),
        ):
            assert (await _refused(client, {"agent": wrong}))[:2] == (status, code), wrong
        assert await _sessions_of(client, agent) == []


OVERRIDES = [
    ({"model": None}, "agent_model_required", "model"),
    ({"model": ""}, "invalid_model", "model"),
    ({"model": {"speed": "fast"}}, "invalid_model", "model"),
    ({"model": {"id": "m", "speed": "warp"}}, "invalid_model_speed", "standard"),
    ({"model": {"id": "m", "inference_geo": "us"}}, "unsupported_model_field", "inference_geo"),
    ({"model": {"id": "m", "colour": "red"}}, "unsupported_model_field", "colour"),
    ({"model": {"id": "m", "effort": "high"}}, "invalid_agent_override_field", "effort"),
    ({"system": 5}, "invalid_agent_override_field", "system"),
    ({"tools": "bash"}, "invalid_agent_override_field", "tools"),
    ({"tools": [{"type": "no_such_tool"}]}, "invalid_agent_override_field", "tools"),
    ({"mcp_servers": [{"name": "x"}]}, "invalid_agent_override_field", "mcp_servers"),
    ({"skills": "pdf"}, "invalid_agent_override_field", "skills"),
    ({"tools": MCP}, "agent_mcp_server_not_found", "nowhere"),
    (
        {"tools": None, "skills": [{"type": "anthropic", "skill_id": "pdf"}]},
        "agent_tools_cleared_with_skills",
        "skills",
    ),
    ({"tools": [], "skills": [{"type": "anthropic", "skill_id": "pdf"}]}, "agent_tools_cleared_with_skills", "skills"),
    ({"name": "other"}, "invalid_agent_overrides", "name"),
    ({"metadata": {}}, "invalid_agent_overrides", "metadata"),
    ({"id": ""}, "invalid_agent_ref", "agent.id"),
    ({"id": 5}, "invalid_agent_ref", "agent.id"),
    ({"version": 0}, "invalid_agent_ref", "version"),
]


async def test_unsound_overrides_leave_no_session(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        for override, code, named in OVERRIDES:
            body = {"agent": {"type": "agent_with_overrides", "id": agent} | override}
            status, told, text = await _refused(client, body)
            assert (status, told) == (400, code) and named in text, override
        assert await _sessions_of(client, agent) == []


async def test_overrides_replace_whole_fields_of_one_session_and_nothing_else(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent(tools=[*TOOLS, CUSTOM_TOOL])
        saved = await client.call("GET", f"/v1/agents/{agent}")

        async def made(**override: Any) -> dict[str, Any]:
            reference = {"type": "agent_with_overrides", "id": agent} | override
            return (await client.call("POST", "/v1/sessions", {"agent": reference}))["agent"]

        inherited = await made()
        assert inherited["tools"] == saved["tools"] and inherited["system"] == saved["system"]
        replaced = await made(model="other-model", system="Answer only in haiku.", tools=[CUSTOM_TOOL])
        assert replaced["model"] == "other-model" and replaced["system"] == "Answer only in haiku."
        assert [entry["type"] for entry in replaced["tools"]] == ["custom"]
        assert (replaced["id"], replaced["version"]) == (agent, 1)
        cleared = await made(system=None, tools=None)
        assert not cleared["system"] and cleared["tools"] == []
        assert (await made(tools=[]))["tools"] == []
        assert await client.call("GET", f"/v1/agents/{agent}") == saved
        assert len((await client.call("GET", f"/v1/agents/{agent}/versions"))["data"]) == 1


ENGINES = [
    ("pi", "loop_engine_not_supported"),
    ("harness", "loop_engine_not_supported"),
    ("codex", "loop_engine_not_supported"),
    ("claude", "loop_engine_not_supported"),
    ("Builtin", "loop_engine_invalid"),
    ("", "loop_engine_invalid"),
    (5, "loop_engine_invalid"),
    (True, "loop_engine_invalid"),
    ([], "loop_engine_invalid"),
    ({"provider": "nope"}, "loop_engine_invalid"),
    ({"provider": "pi"}, "loop_engine_not_supported"),
]


async def test_an_engine_that_can_not_run_is_refused_and_never_replaced(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        for engine, code in ENGINES:
            status, told, text = await _refused(client, {"agent": agent, "loop_engine": engine})
            assert (status, told) == (400, code) and "builtin" in text, engine
        assert await _sessions_of(client, agent) == []


async def test_the_engine_is_frozen_on_the_session_and_told_with_it(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        for asked in ({}, {"loop_engine": None}, {"loop_engine": "builtin"}, {"loop_engine": {"provider": "builtin"}}):
            made = await client.call("POST", "/v1/sessions", {"agent": agent, **asked})
            assert made["loop_engine"] == "builtin"
            path = f"/v1/sessions/{made['id']}"
            assert (await client.call("GET", path))["loop_engine"] == "builtin"
            with pytest.raises(Refused) as refused:
                await client.call("POST", path, {"loop_engine": "builtin"})
            assert refused.value.status == 400
        assert {each["loop_engine"] for each in await _sessions_of(client, agent)} == {"builtin"}


LIMITS = [
    {"metadata": {f"k{number}": "v" for number in range(17)}},
    {"metadata": {"k" * 65: "v"}},
    {"metadata": {"k": "v" * 513}},
    {"metadata": {"k": 5}},
    {"metadata": []},
    {"title": 5},
    {"title": "t" * 1001},
    {"resources": {}},
    {"vault_ids": "vlt_1"},
    {"vault_ids": [f"vlt_{number}" for number in range(51)]},
    {"environment_id": ""},
]


async def test_fields_beyond_their_limits_leave_no_session(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent = await client.agent()
        for wrong in LIMITS:
            status, _, text = await _refused(client, {"agent": agent, "initial_events": [message("go")], **wrong})
            assert status == 400 and next(iter(wrong)) in text, wrong
        for body, status, code in (
            ({"agent": agent, "environment_id": "env_nope"}, 404, "environment_not_found"),
            ({"agent": agent, "vault_ids": ["vlt_nope"]}, 400, "vault_not_found"),
            ({"agent": agent, "surprise": 1}, 400, "unknown_field"),
        ):
            assert (await _refused(client, body))[:2] == (status, code)
        assert await _sessions_of(client, agent) == []
        bag = {f"{'k' * 60}{number}": "v" * 512 for number in range(16)}
        made = await client.call("POST", "/v1/sessions", {"agent": agent, "metadata": bag, "title": "t" * 500})
        assert made["metadata"] == bag


async def test_a_session_that_was_started_works_at_once(platform: Platform) -> None:
    async with api(platform.url) as client:
        session_id = await client.session(await client.agent(), initial_events=[message("Say hello.")])
        assert await Reader(client, session_id).follow(lambda event: event["type"] == "session.status_idle")
