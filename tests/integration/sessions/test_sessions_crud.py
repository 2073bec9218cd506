"""Sessions over a real database: a refusal leaves no row, and each change is told once."""

from typing import Any

import orjson
import pytest

from managed_agents.sessions.v1 import sessions_pb2
from managed_agents.sessions.v1.sessions_pb2 import SessionStatus
from tests.integration.sessions.harness import MESSAGE, WORKSPACE, Harness, refusal

pytestmark = pytest.mark.asyncio(loop_scope="package")

TOOLSET = {"type": "agent_toolset_20260401"}
SERVER = {"type": "url", "name": "docs", "url": "https://mcp.example.com"}
MCP_TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "docs"}
BUDGET = {"type": "limit", "max_list_cost": {"amount": "500", "currency": "USD"}}


class TestCreate:
    async def test_a_session_is_idle_and_runs_the_newest_version(self, h: Harness) -> None:
        agent_id = await h.agent()
        session = await h.create(agent_id, title="T", metadata={"source": "docs"})
        assert session.id.startswith("sess_")
        assert (session.agent.id, session.agent.version, session.agent.model_id) == (agent_id, 1, "default")
        assert orjson.loads(session.agent.document_json)["system"] == "Be brief."
        assert orjson.loads(session.metadata_json) == {"source": "docs"}
        assert (session.title, session.environment_id, session.loop_engine) == ("T", "env_default", "builtin")
        assert (session.status, session.last_seq) == (SessionStatus.SESSION_STATUS_IDLE, 0)
        assert await h.get(session.id) == session
        assert await h.count("events") == 0

    async def test_the_session_shows_no_effort(self, h: Harness) -> None:
        session = await h.create(await h.agent())
        assert orjson.loads(session.agent.model_json) == {"id": "default", "speed": "standard"}

    async def test_initial_events_start_it_in_one_step(self, h: Harness) -> None:
        session = await h.create(await h.agent(), initial_events=[MESSAGE, MESSAGE])
        assert session.status == SessionStatus.SESSION_STATUS_RUNNING
        log = await h.log(session.id)
        assert [event["type"] for event in log] == [
            "user.message",
            "user.message",
            "session.status_running",
            "session.thread_status_running",
        ]
        assert [event["seq"] for event in log] == [1, 2, 3, 4]
        assert log[0]["content"] == [{"type": "text", "text": "Hello"}]

    async def test_an_empty_list_of_initial_events_starts_nothing(self, h: Harness) -> None:
        session = await h.create(await h.agent(), initial_events=[])
        assert session.status == SessionStatus.SESSION_STATUS_IDLE

    async def test_a_pinned_version_stays(self, h: Harness) -> None:
        agent_id = await h.agent()
        await h.save_another_version(agent_id)
        pinned = await h.create({"type": "agent", "id": agent_id, "version": 1})
        newest = await h.create(agent_id)
        assert (pinned.agent.version, newest.agent.version) == (1, 2)
        assert orjson.loads(pinned.agent.document_json)["system"] == "Be brief."
        assert orjson.loads(newest.agent.document_json)["system"] == "Be long."

    async def test_a_later_version_does_not_change_a_session(self, h: Harness) -> None:
        agent_id = await h.agent()
        session = await h.create(agent_id)
        await h.save_another_version(agent_id)
        assert await h.get(session.id) == session

    async def test_overrides_are_the_sessions_own(self, h: Harness) -> None:
        agent_id = await h.agent()
        override = {"type": "agent_with_overrides", "id": agent_id, "model": "other", "system": None, "tools": []}
        session = await h.create(override)
        document = orjson.loads(session.agent.document_json)
        assert (document["system"], document["tools"], document["name"]) == (None, [], "assistant")
        assert (session.agent.version, session.agent.model_id) == (1, "other")
        assert await h.get(session.id) == session
        assert orjson.loads((await h.create(agent_id)).agent.document_json)["system"] == "Be brief."

    async def test_a_repeat_with_the_same_key_is_answered_as_the_first(self, h: Harness) -> None:
        request = sessions_pb2.CreateSessionRequest(
            definition_json=orjson.dumps({"agent": await h.agent(), "initial_events": [MESSAGE]}),
            idempotency={"key": "k", "fingerprint": b"f", "keep_seconds": 60},
        )
        first = await h.call(h.sessions.CreateSession, request)
        again = await h.call(h.sessions.CreateSession, request)
        assert first == again
        assert await h.count("sessions") == 1
        request.idempotency.fingerprint = b"other"
        assert (await refusal(h.call(h.sessions.CreateSession, request))).reason == "IDEMPOTENCY_KEY_REUSED"

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            pytest.param({"agent": "agent_unknown"}, "AGENT_NOT_FOUND", id="agent"),
            pytest.param({"agent": {}}, "INVALID_AGENT_REF", id="agent-ref"),
            pytest.param({"version": 9}, "AGENT_VERSION_NOT_FOUND", id="agent-version"),
            pytest.param({"model": None}, "AGENT_MODEL_REQUIRED", id="override-model"),
            pytest.param({"name": "x"}, "INVALID_AGENT_OVERRIDES", id="override-name"),
            pytest.param({"tools": [MCP_TOOLSET]}, "AGENT_MCP_SERVER_NOT_FOUND", id="override-toolset"),
            pytest.param({"skills": [{"type": "custom", "skill_id": "skill_1"}]}, "SKILL_NOT_FOUND", id="skills"),
            pytest.param(
                {"tools": [{"type": "agent_toolset_20260401", "configs": [{"name": "web_search"}]}]},
                "UNSUPPORTED_CAPABILITY",
                id="search",
            ),
            pytest.param({"environment_id": "env_unknown"}, "ENVIRONMENT_NOT_FOUND", id="environment"),
            pytest.param({"loop_engine": "pi"}, "LOOP_ENGINE_NOT_SUPPORTED", id="engine"),
            pytest.param({"loop_engine": "x"}, "LOOP_ENGINE_INVALID", id="engine-unknown"),
            pytest.param({"budget": BUDGET}, "BUDGET_MODEL_WITHOUT_LIST_PRICE", id="budget"),
            pytest.param({"budget": None}, "BUDGET_INVALID_SHAPE", id="budget-null"),
            pytest.param({"resources": [{}]}, "INVALID_REQUEST", id="resources"),
            pytest.param({"resources": [{"type": "file", "file_id": "file_none"}]}, "FILE_NOT_FOUND", id="file"),
            pytest.param({"vault_ids": ["vlt_1"]}, "VAULT_NOT_FOUND", id="vault"),
            pytest.param({"initial_events": [MESSAGE] * 51}, "TOO_MANY_INITIAL_EVENTS", id="51-events"),
            pytest.param({"initial_events": [MESSAGE, {"type": "x"}]}, "INVALID_INITIAL_EVENT_TYPE", id="bad-event"),
            pytest.param({"metadata": {"a": 1}}, "INVALID_REQUEST", id="metadata"),
            pytest.param({"unknown": 1}, "UNKNOWN_FIELD", id="unknown-field"),
        ],
    )
    async def test_a_refused_creation_leaves_nothing(self, h: Harness, fields: dict[str, Any], reason: str) -> None:
        overrides = {"version", "model", "name", "tools", "skills", "mcp_servers"} & fields.keys()
        agent = fields.pop("agent", None) or await h.agent()
        if overrides:
            agent = {"type": "agent_with_overrides", "id": agent} | {key: fields.pop(key) for key in overrides}
        elif reason == "INVALID_AGENT_REF":
            agent = {}
        request = sessions_pb2.CreateSessionRequest(
            definition_json=orjson.dumps({"agent": agent, "initial_events": [MESSAGE]} | fields),
            idempotency={"key": "k", "fingerprint": b"f", "keep_seconds": 60},
        )
        assert (await refusal(h.call(h.sessions.CreateSession, request))).reason == reason
        for table in ("sessions", "events", "outbox", "idempotency"):
            assert await h.count(table) == 0

    async def test_agents_whose_skills_are_not_here_start_no_session(self, h: Harness) -> None:
        refused = await refusal(h.create(await h.agent(skills=[{"type": "anthropic", "skill_id": "xlsx"}])))
        assert (refused.reason, refused.field) == ("SKILL_NOT_FOUND", "agent.skills.0.skill_id")
        assert await h.count("sessions") == 0

    async def test_environments_that_can_not_be_honoured_take_no_session(self, h: Harness) -> None:
        agent_id = await h.agent()
        for name, config, reason in (
            ("env_docker", '{"hosting_type":"docker"}', "SANDBOX_PROVIDER_NOT_REGISTERED"),
            ("env_own", '{"sandbox_provider":"acme"}', "SANDBOX_PROVIDER_NOT_REGISTERED"),
            ("env_cloud", '{"hosting_type":"cloud"}', "UNSUPPORTED_HOSTING_TYPE"),
            ("env_broken", "{not json", "INVALID_ENVIRONMENT_CONFIG"),
        ):
            await h.execute(
                """
                INSERT INTO environments (workspace_id, id, created_at, updated_at, name, config, scope)
                VALUES (%(workspace_id)s, %(id)s, now(), now(), 'x', %(config)s, 'organization')
                """,
                id=name,
                config=config,
            )
            assert (await refusal(h.create(agent_id, environment_id=name))).reason == reason
        await h.execute("UPDATE environments SET archived_at = now() WHERE workspace_id = %(workspace_id)s")
        assert (await refusal(h.create(agent_id, environment_id="env_docker"))).reason == "ENVIRONMENT_ARCHIVED"
        assert await h.count("sessions") == 0

    async def test_an_archived_agent_takes_no_session(self, h: Harness) -> None:
        agent_id = await h.agent()
        await h.execute("UPDATE agents SET archived_at = now() WHERE workspace_id = %(workspace_id)s")
        assert (await refusal(h.create(agent_id))).reason == "AGENT_ARCHIVED"


class TestUpdate:
    async def test_only_what_changed_is_told(self, h: Harness) -> None:
        session = await h.create(await h.agent(), title="Old", metadata={"a": "1", "b": "2"})
        updated = await h.update(session.id, title="New", metadata={"a": "3", "b": None, "c": "4"})
        assert updated.title == "New"
        assert orjson.loads(updated.metadata_json) == {"a": "3", "c": "4"}
        (event,) = await h.log(session.id)
        assert event["type"] == "session.updated"
        assert (event["title"], event["metadata"]) == ("New", {"a": "3", "c": "4"})
        assert not {"agent", "budget"} & event.keys()
        await h.update(session.id, title="Newer")
        assert "metadata" not in (await h.log(session.id))[1]

    async def test_an_update_without_a_change_writes_nothing(self, h: Harness) -> None:
        session = await h.create(await h.agent(), title="T", metadata={"a": "1"})
        assert await h.update(session.id, title="T", metadata={"a": "1", "b": None}, budget=None) == session
        assert await h.update(session.id) == session
        assert await h.log(session.id) == []

    async def test_null_clears(self, h: Harness) -> None:
        session = await h.create(await h.agent(), title="T", metadata={"a": "1"})
        updated = await h.update(session.id, title=None, metadata=None)
        assert not updated.HasField("title")
        assert orjson.loads(updated.metadata_json) == {}

    async def test_tools_become_the_sessions_own(self, h: Harness) -> None:
        agent_id = await h.agent()
        session = await h.create(agent_id)
        tool = {"type": "custom", "name": "ask", "description": "d", "input_schema": {"type": "object"}}
        updated = await h.update(session.id, agent={"tools": [tool]})
        assert orjson.loads(updated.agent.document_json)["tools"][0]["name"] == "ask"
        (event,) = await h.log(session.id)
        told = event["agent"]
        assert (told["type"], told["id"], told["version"]) == ("agent", agent_id, 1)
        assert told["model"] == {"id": "default", "speed": "standard"}
        assert told["tools"][0]["name"] == "ask"
        assert "metadata" not in told
        assert orjson.loads((await h.create(agent_id)).agent.document_json)["tools"][0]["type"] == TOOLSET["type"]

    @pytest.mark.parametrize(
        ("patch", "reason"),
        [
            ({"budget": BUDGET}, "BUDGET_CREATE_ONLY"),
            ({"vault_ids": []}, "IMMUTABLE_FIELD"),
            ({"metadata": {str(n): "x" for n in range(17)}}, "INVALID_REQUEST"),
            ({"agent": {"mcp_servers": [SERVER]}}, "AGENT_MCP_SERVER_NOT_FOUND"),
            ({"agent": {"tools": [{**TOOLSET, "configs": [{"name": "web_search"}]}]}}, "UNSUPPORTED_CAPABILITY"),
        ],
    )
    async def test_refusals_change_nothing(self, h: Harness, patch: dict[str, Any], reason: str) -> None:
        session = await h.create(await h.agent())
        assert (await refusal(h.update(session.id, title="New", **patch))).reason == reason
        assert await h.get(session.id) == session
        assert await h.log(session.id) == []

    async def test_a_running_session_keeps_its_agent_and_takes_the_rest(self, h: Harness) -> None:
        session = await h.create(await h.agent(), initial_events=[MESSAGE])
        assert (await refusal(h.update(session.id, agent={"tools": []}))).reason == "SESSION_RUNNING"
        assert (await h.update(session.id, title="New")).title == "New"

    async def test_an_ended_session_takes_no_update(self, h: Harness) -> None:
        session = await h.create(await h.agent())
        await h.call(h.sessions.ArchiveSession, sessions_pb2.ArchiveSessionRequest(session_id=session.id))
        assert (await refusal(h.update(session.id, title="New"))).reason == "SESSION_ENDED"


class TestEnd:
    async def test_archiving_is_final_and_idempotent(self, h: Harness) -> None:
        session = await h.create(await h.agent())
        request = sessions_pb2.ArchiveSessionRequest(session_id=session.id)
        archived = (await h.call(h.sessions.ArchiveSession, request)).session
        assert archived.archived_at
        assert (await h.call(h.sessions.ArchiveSession, request)).session.archived_at == archived.archived_at
        assert (await h.get(session.id)).archived_at == archived.archived_at

    @pytest.mark.parametrize("published", [True, False])
    async def test_a_running_session_is_not_archived(self, h: Harness, published: bool) -> None:
        session = await h.create(await h.agent(), initial_events=[MESSAGE])
        request = sessions_pb2.ArchiveSessionRequest(session_id=session.id)
        refused = await refusal(h.call(h.sessions.ArchiveSession, request, published=published))
        assert refused.reason == "SESSION_RUNNING"
        assert "interrupt" in refused.message

    async def test_published_callers_interrupt_before_they_delete(self, h: Harness) -> None:
        session = await h.create(await h.agent(), initial_events=[MESSAGE])
        request = sessions_pb2.DeleteSessionRequest(session_id=session.id)
        refused = await refusal(h.call(h.sessions.DeleteSession, request, published=True))
        assert (refused.reason, refused.code) == ("SESSION_RUNNING", "FAILED_PRECONDITION")
        assert "interrupt" in refused.message
        assert (await h.get(session.id)).status == SessionStatus.SESSION_STATUS_RUNNING

    async def test_local_callers_delete_what_runs(self, h: Harness) -> None:
        session = await h.create(await h.agent(), initial_events=[MESSAGE])
        await h.hold_turn(session.id)
        await h.call(h.sessions.DeleteSession, sessions_pb2.DeleteSessionRequest(session_id=session.id))
        async with h.database.read(WORKSPACE) as tx:
            types = await tx.all("SELECT type FROM events WHERE workspace_id = %(workspace_id)s ORDER BY seq")
            waiting = await tx.all("SELECT session_id FROM turns WHERE workspace_id = %(workspace_id)s")
        assert [row[0] for row in types][-2:] == ["session.status_terminated", "session.deleted"]
        assert waiting == []

    async def test_a_deleted_session_is_gone_everywhere(self, h: Harness) -> None:
        session = await h.create(await h.agent())
        await h.call(h.sessions.DeleteSession, sessions_pb2.DeleteSessionRequest(session_id=session.id))
        for attempt in self._every_call(h, session.id):
            assert (await refusal(attempt)).reason == "SESSION_NOT_FOUND"
        assert list((await h.listed(include_archived=True)).sessions) == []

    async def test_another_workspaces_session_is_not_found(self, h: Harness) -> None:
        other = "wrkspc_other"
        session = await h.create(await h.agent(workspace=other), workspace=other)
        for attempt in self._every_call(h, session.id):
            assert (await refusal(attempt)).reason == "SESSION_NOT_FOUND"
        assert list((await h.listed()).sessions) == []
        assert (await h.get(session.id, workspace=other)).id == session.id

    async def test_another_workspaces_agent_is_not_found(self, h: Harness) -> None:
        refused = await refusal(h.create(await h.agent(workspace="wrkspc_other")))
        assert refused.reason == "AGENT_NOT_FOUND"

    @pytest.mark.parametrize("session_id", ["", "sess_unknown", "sess_\x00", "x" * 5000])
    async def test_ids_that_name_nothing(self, h: Harness, session_id: str) -> None:
        for attempt in self._every_call(h, session_id):
            assert (await refusal(attempt)).code == "NOT_FOUND"

    async def test_a_stopped_session_stays_ended(self, h: Harness) -> None:
        session = await h.create(await h.agent(), initial_events=[MESSAGE])
        request = sessions_pb2.StopSessionRequest(session_id=session.id)
        stopped = (await h.call(h.sessions.StopSession, request)).session
        assert stopped.status == SessionStatus.SESSION_STATUS_TERMINATED
        assert (await h.call(h.sessions.StopSession, request)).session.last_seq == stopped.last_seq
        assert [event["type"] for event in await h.log(session.id)].count("session.status_terminated") == 1

    @staticmethod
    def _every_call(h: Harness, session_id: str) -> list[Any]:
        return [
            h.get(session_id),
            h.update(session_id, title="x"),
            h.call(h.sessions.ArchiveSession, sessions_pb2.ArchiveSessionRequest(session_id=session_id)),
            h.call(h.sessions.StopSession, sessions_pb2.StopSessionRequest(session_id=session_id)),
            h.call(h.sessions.DeleteSession, sessions_pb2.DeleteSessionRequest(session_id=session_id)),
            h.page(session_id),
            h.replay(session_id),
        ]
