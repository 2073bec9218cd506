"""Outcomes, threads, budgets and the choice of an engine, where an outside agent runs the turns."""

from typing import Any

import orjson
import pytest

from kit.errors import DomainError, Unavailable
from kit.nats import connect
from kit.rpc.client import channel
from kit.rpc.server import Server
from kit.testing import await_until
from managed_agents.sessions.v1 import agents_pb2, sessions_pb2
from managed_agents.vault.v1.injections_pb2_grpc import add_InjectionServiceServicer_to_server
from managed_agents.vault.v1.vault_pb2 import GetLoopEngineResponse
from services.sessions.app import MIGRATIONS
from services.sessions.domain.loop_engine import BUILTIN
from services.sessions.operations import default_engines
from tests.integration.engines.sessions import remote_session, runner
from tests.integration.runner.harness import World, of, text_of, world
from tests.integration.runner.outcomes import outcome, results, verdict
from tests.integration.runner.played import TOOLSET, PlayedSandboxes, ScriptedModel, say
from tests.support.http_agent import Answer, calls, http_agent, reply

URL = "https://agent.example.com/step"
LIMIT = {"type": "limit", "max_list_cost": {"amount": "100", "currency": "USD"}}


async def test_an_outcome_is_graded_here_and_revised_by_the_agent(platform: World) -> None:
    grader = ScriptedModel([verdict("needs_revision", "It returns 500."), verdict("satisfied")])
    async with http_agent(reply("Done."), reply("Now it is.")) as agent, runner(platform, grader):
        session = await remote_session(platform, agent)
        await platform.clients.send(session, outcome(max_iterations=3))
        log = await platform.until(session)
        assert results(log) == [(0, "needs_revision"), (1, "satisfied")]
        first, second = agent.steps
        assert "Ship a working endpoint" in first["message"] and "The endpoint returns 200" in first["message"]
        assert "It returns 500." in second["message"] and second["step"] == 2
        assert [text_of(event) for event in of(log, "agent.message")] == ["Done.", "Now it is."]


async def test_an_outcome_is_measured_although_a_system_message_waits(platform: World) -> None:
    grader = ScriptedModel([verdict("satisfied")])
    french = {"type": "system.message", "content": [{"type": "text", "text": "Answer in French."}]}
    session = ""

    async def tell() -> None:
        await platform.clients.send(session, french)

    async with http_agent(Answer([reply("Done.").body[0]], first=tell)) as agent, runner(platform, grader):
        session = await remote_session(platform, agent)
        await platform.clients.send(session, outcome())
        log = await platform.until(session)
        assert results(log) == [(0, "satisfied")] and len(agent.steps) == 1


async def test_threads_are_conversations_of_their_own_with_the_same_agent(platform: World) -> None:
    def plan(step: dict[str, Any]) -> Answer:
        if step["system"].startswith("You write."):
            return reply("Once upon a time.")
        if "tool_results" in step:
            return reply(f"It wrote: {step['tool_results'][0]['result']}")
        return calls(("c1", "start_thread", {"agent": "writer", "message": "Write a story."}))

    async with http_agent(plan=plan) as agent, runner(platform):
        writer = await platform.agent({"name": "writer", "model": "default", "system": "You write.", "tools": []})
        roster = {"type": "coordinator", "agents": [writer]}
        session = await remote_session(platform, agent, multiagent=roster)
        await platform.say(session, "go")
        log = await platform.until(session)
        assert "Once upon a time." in text_of(of(log, "agent.message")[-1])
        by_session = [(step["session_id"], step["step"]) for step in agent.steps]
        ((thread, number),) = [each for each in by_session if each[0] != session]
        assert thread.startswith("sthr_") and number == 1
        assert [number for found, number in by_session if found == session] == [1, 2]


async def test_a_built_in_model_is_never_asked(platform: World) -> None:
    model = ScriptedModel([say("never said")])
    asked = calls(("c1", "bash", {}))
    async with http_agent(asked, reply("Hi.")) as agent, runner(platform, model, PlayedSandboxes()):
        session = await remote_session(platform, agent, TOOLSET)
        await platform.say(session, "hello")
        await platform.until(session)
        assert model.requests == []


async def made(platform: World, agent: dict[str, Any] | None = None, **session: Any) -> sessions_pb2.Session:
    definition = {"name": "tester", "model": "default", "system": "Be brief."} | (agent or {})
    body = {"agent": await platform.agent(definition), "environment_id": "env_default", **session}
    request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps(body))
    return (await platform.clients.sessions.CreateSession(request)).session


def frozen_on(session: sessions_pb2.Session) -> tuple[str, Any]:
    return session.loop_engine, orjson.loads(session.loop_engine_options_json or b"null")


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"loop_engine": "pi"}, "LOOP_ENGINE_NOT_SUPPORTED", "loop_engine"),
    ({"loop_engine": "x"}, "LOOP_ENGINE_INVALID", "loop_engine"),
    ({"loop_engine": "http"}, "INVALID_REQUEST", "loop_engine_options.url"),
    (
        {"loop_engine": {"provider": "http", "options": {"url": "x"}}},
        "INVALID_REQUEST",
        "loop_engine.options.url",
    ),
    (
        {"loop_engine": "http", "loop_engine_options": {"url": URL}, "budget": LIMIT},
        "BUDGET_MODEL_WITHOUT_LIST_PRICE",
        "budget",
    ),
    (
        {"loop_engine": "http", "loop_engine_options": {"url": URL}, "budget": {"type": "limit"}},
        "BUDGET_INVALID_SHAPE",
        "budget",
    ),
]


class TestChoice:
    async def test_the_session_before_its_agent(self, platform: World) -> None:
        chosen = {"loop_engine": "http", "loop_engine_options": {"url": URL, "max_rounds": 3}}
        assert frozen_on(await made(platform)) == ("builtin", None)
        assert frozen_on(await made(platform, chosen)) == ("http", {"url": URL, "max_rounds": 3})
        assert frozen_on(await made(platform, chosen, loop_engine="builtin")) == ("builtin", None)
        engine = {"provider": "http", "options": {"max_rounds": 9}}
        assert frozen_on(await made(platform, chosen, loop_engine=engine)) == ("http", {"url": URL, "max_rounds": 9})

    async def test_a_later_change_of_the_agent_does_not_reach_it(self, platform: World) -> None:
        session = await made(platform, {"loop_engine": "http", "loop_engine_options": {"url": URL}})
        patch = orjson.dumps({"loop_engine": None})
        update = agents_pb2.UpdateAgentRequest(agent_id=session.agent.id, patch_json=patch)
        changed = (await platform.clients.agents.UpdateAgent(update)).agent
        assert changed.version == 2 and b"loop_engine" not in changed.document_json
        read = await platform.clients.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=session.id))
        assert frozen_on(read.session) == ("http", {"url": URL})

    async def test_an_update_that_repeats_what_was_read_makes_no_version(self, platform: World) -> None:
        headers = {"Authorization": "Bearer ${AGENT_TOKEN}"}
        session = await made(platform, {"loop_engine": "http", "loop_engine_options": {"url": URL, "headers": headers}})
        masked = {"url": URL, "headers": {"Authorization": "********"}}
        patch = orjson.dumps({"loop_engine": "http", "loop_engine_options": masked})
        update = agents_pb2.UpdateAgentRequest(agent_id=session.agent.id, patch_json=patch)
        assert (await platform.clients.agents.UpdateAgent(update)).agent.version == 1

    async def test_refusals_leave_nothing_behind(self, platform: World) -> None:
        for fields, reason, field in REFUSALS:
            with pytest.raises(DomainError) as caught:
                await made(platform, **fields)
            assert (caught.value.reason, caught.value.field) == (reason, field)
        listed = await platform.clients.sessions.ListSessions(sessions_pb2.ListSessionsRequest(page={"limit": 10}))
        assert not listed.sessions

    async def test_an_agent_is_judged_when_it_is_saved(self, platform: World) -> None:
        for fields, field in (
            ({"loop_engine": "codex"}, "loop_engine"),
            ({"loop_engine": "http", "loop_engine_options": {"url": 5}}, "loop_engine_options.url"),
            ({"loop_engine_options": {"url": URL}}, "loop_engine_options"),
        ):
            with pytest.raises(DomainError) as caught:
                await made(platform, fields)
            assert caught.value.field == field


class TestDefaults:
    @pytest.fixture
    async def settled(self, make_database: Any, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
        """A platform whose sessions service may ask for settings, and what they say."""
        told: dict[str, Any] = {"answer": GetLoopEngineResponse(provider="builtin"), "asked": 0, "down": None}

        async def read(workspace_id: str) -> Any:
            told["asked"] += 1
            if told["down"] is not None:
                raise told["down"]
            answer = told["answer"]
            options = orjson.loads(answer.options_json or b"{}")
            return default_engines.settings_choice(answer.provider, options)

        monkeypatch.setattr("services.sessions.app.engine_reader", lambda _: read)
        dsn = await make_database("sessions", MIGRATIONS)
        async with world(dsn, nats_url, vault_address="unix:/nowhere") as platform:
            yield platform, told

    async def test_they_are_for_sessions_that_name_none_and_are_asked_for_once(self, settled: Any) -> None:
        platform, told = settled
        options = {"url": URL, "timeout_seconds": 9}
        told["answer"] = GetLoopEngineResponse(provider="http", options_json=orjson.dumps(options))
        assert frozen_on(await made(platform)) == ("http", options)
        assert frozen_on(await made(platform, loop_engine="builtin")) == ("builtin", None)
        more = {"loop_engine": "http", "loop_engine_options": {"max_rounds": 2}}
        assert frozen_on(await made(platform, **more)) == ("http", {"url": URL, "max_rounds": 2, "timeout_seconds": 9})
        assert told["asked"] == 1

    async def test_a_save_is_heard_of(self, settled: Any) -> None:
        platform, told = settled
        before = await made(platform)
        assert before.loop_engine == "builtin"
        told["answer"] = GetLoopEngineResponse(provider="http", options_json=orjson.dumps({"url": URL}))
        nats = await connect(platform.nats_url, "test")
        await nats.publish("settings.saved.wrkspc_default", b"")

        async def changed() -> bool:
            return (await made(platform)).loop_engine == "http"

        await await_until(changed, message="new sessions have the new default")
        await nats.close()
        read = await platform.clients.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=before.id))
        assert read.session.loop_engine == "builtin"

    async def test_no_session_is_made_on_an_engine_that_nobody_chose(self, settled: Any) -> None:
        platform, told = settled
        told["down"] = Unavailable("The vault is away.")
        with pytest.raises(DomainError) as caught:
            await made(platform)
        assert caught.value.code == "UNAVAILABLE"
        assert (await made(platform, loop_engine="builtin")).loop_engine == "builtin"
        told["down"] = None
        assert (await made(platform)).loop_engine == "builtin"


async def test_a_runner_of_a_former_build_is_not_given_a_turn_of_this_engine(platform: World) -> None:
    async with http_agent(reply("Hi.")) as agent:
        session = await remote_session(platform, agent)
        plain = await platform.session()
        # It tells no engines.
        async with platform.clients.runner(slots=4) as former:
            await platform.say(session, "hello")
            await platform.say(plain, "hello")
            grant = await former.granted()
            assert grant.session.id == plain
            assert await platform.clients.status(session) == "running" and agent.steps == []
            async with runner(platform):
                await platform.until(session)
        assert len(agent.steps) == 1


async def test_a_vault_of_a_former_build_has_no_other_default(platform: World) -> None:
    address = f"unix:{platform.folder}/former.sock"
    server, connection = Server(address, service="vault"), channel(address)
    # It serves something, and not this.
    server.add(add_InjectionServiceServicer_to_server, platform.injections)
    await server.start()
    try:
        assert await default_engines.engine_reader(connection)("wrkspc_default") == BUILTIN
    finally:
        await connection.close()
        await server.stop()


async def test_guardrails_hold_for_what_is_said_to_the_agent_and_by_it(platform: World) -> None:
    checks = {"input": {"deny_patterns": ["4711"]}, "output": {"deny_patterns": ["secret plan"]}}
    async with http_agent(reply("Here is the secret plan."), reply("Hello.")) as agent, runner(platform):
        session = await remote_session(platform, agent, guardrails=checks)
        for text, code in (("what is 4711?", "input_pattern_denied"), ("tell me", "output_pattern_denied")):
            seen = len(await platform.clients.log(session))
            await platform.say(session, text)
            log = (await platform.until_logged(session, "session.status_idle", 1 + bool(seen)))[seen:]
            assert [event["error"]["type"] for event in of(log, "session.error")] == [code]
            assert not of(log, "agent.message")
        await platform.say(session, "and now?")
        log = await platform.until_logged(session, "session.status_idle", 3)
        assert [step["message"] for step in agent.steps] == ["tell me", "and now?"]
        assert [text_of(event) for event in of(log, "agent.message")] == ["Hello."]
