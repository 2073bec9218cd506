"""Threads and rosters for both kinds of readers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from managed_agents.sessions.v1.sessions_pb2 import SessionStatus
from managed_agents.sessions.v1.threads_pb2 import SessionThread
from services.gateway.render.agents import render_session_agent
from services.gateway.render.threads import render_thread
from tests.unit.gateway.support import CREATED_AT, agent

MEMBER = {"type": "agent", "id": "agent_2", "version": 4, "name": "writer", "model": {"id": "m", "speed": "extended"}}


def thread(**changes: Any) -> SessionThread:
    """A thread as sessions sends it."""
    fields: dict[str, Any] = {
        "id": "sthr_2",
        "session_id": "sess_1",
        "parent_thread_id": "sthr_1",
        "agent": agent(),
        "status": SessionStatus.SESSION_STATUS_REQUIRES_ACTION,
        "created_at": CREATED_AT,
        "updated_at": CREATED_AT,
    }
    return SessionThread(**(fields | changes))


@pytest.mark.parametrize(("published", "status"), [(True, "idle"), (False, "requires_action")])
def test_a_thread(published: bool, status: str) -> None:
    shown = orjson.loads(render_thread(thread(), published=published))
    assert (shown["id"], shown["type"], shown["session_id"]) == ("sthr_2", "session_thread", "sess_1")
    assert (shown["status"], shown["parent_thread_id"], shown["archived_at"]) == (status, "sthr_1", None)
    assert shown["workflow_run_id"] is None


def test_a_primary_thread_has_no_parent() -> None:
    assert orjson.loads(render_thread(thread(parent_thread_id=""), published=True))["parent_thread_id"] is None


@pytest.mark.parametrize(("published", "model"), [(True, {"id": "m"}), (False, "m")])
def test_the_agents_of_a_roster_show_their_model_as_an_agent_does(published: bool, model: Any) -> None:
    document = {"name": "lead", "multiagent": {"type": "coordinator", "agents": [MEMBER]}}
    shown = orjson.loads(render_session_agent(agent(document_json=orjson.dumps(document)), published=published))
    (member,) = shown["multiagent"]["agents"]
    assert (member["model"], member["model_config"]["speed"]) == (model, "extended")


def test_a_tool_may_have_a_field_by_the_name_of_the_roster() -> None:
    schema = {"type": "object", "properties": {"multiagent": {"type": "string"}}}
    document = {"tools": [{"type": "custom", "name": "x", "input_schema": schema}], "multiagent": None}
    shown = orjson.loads(render_session_agent(agent(document_json=orjson.dumps(document)), published=True))
    assert shown["multiagent"] is None and shown["tools"] == document["tools"]
