"""Projections: one resource, two readers; nothing that a service rendered is changed on its way."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from managed_agents.sessions.v1.common_pb2 import PageInfo
from managed_agents.sessions.v1.events_pb2 import Event
from managed_agents.worker.v1.runner_pb2 import DescribeRunnerResponse, Model
from services.gateway.render.agents import render_agent
from services.gateway.render.environments import render_environment
from services.gateway.render.events import render_event
from services.gateway.render.models import render_model
from services.gateway.render.runtime import MATRIX, STATUSES, render_capabilities
from services.gateway.render.splice import collection, extension_collection
from tests.unit.gateway.support import agent, environment


def test_an_agent_locally() -> None:
    shown = orjson.loads(render_agent(agent(), published=False))
    assert (shown["model"], shown["model_config"]) == ("m", {"id": "m", "speed": "standard"})
    assert (shown["type"], shown["status"], shown["version"], shown["archived_at"]) == ("agent", "active", 3, None)
    assert shown["system"] == "s"


def test_an_agent_for_a_published_caller() -> None:
    shown = orjson.loads(render_agent(agent(archived_at="2026-07-13T00:00:00Z"), published=True))
    assert shown["model"] == {"id": "m", "speed": "standard"}
    assert (shown["status"], shown["archived_at"]) == ("archived", "2026-07-13T00:00:00Z")


def test_a_local_speed_is_not_shown_under_a_published_name() -> None:
    extended = agent(model_json=b'{"id":"m","speed":"extended","effort":{"type":"high"}}')
    assert orjson.loads(render_agent(extended, published=True))["model"] == {"id": "m", "effort": {"type": "high"}}
    assert orjson.loads(render_agent(extended, published=False))["model_config"]["speed"] == "extended"


def test_a_model_name_that_needs_escaping() -> None:
    odd = agent(model_id='a"b\\c', model_json=orjson.dumps({"id": 'a"b\\c'}))
    assert orjson.loads(render_agent(odd, published=False))["model"] == 'a"b\\c'


def test_an_environment_holds_both_spellings() -> None:
    shown = orjson.loads(render_environment(environment()))
    assert (shown["hosting_type"], shown["sandbox_provider"], shown["packages"]) == ("local", "local", [])
    assert shown["config"]["type"] == "cloud"
    assert shown["description"] is None
    assert "worker_protocol" not in shown


def test_an_environment_with_everything() -> None:
    full = environment(description="", worker_protocol="tool", archived_at="2026-07-13T00:00:00Z")
    shown = orjson.loads(render_environment(full))
    assert (shown["description"], shown["worker_protocol"], shown["status"]) == ("", "tool", "archived")


def test_an_unreadable_environment_is_told_as_such() -> None:
    broken = environment(config_json=b"", hosting_type="unknown", sandbox_provider="", network_json=b"")
    shown = orjson.loads(render_environment(broken))
    assert (shown["hosting_type"], shown["sandbox_provider"], shown["config"]) == ("unknown", None, None)


def test_a_model_with_unknown_limits() -> None:
    shown = orjson.loads(render_model(Model(id="m", max_input_tokens=5)))
    assert (shown["display_name"], shown["max_input_tokens"], shown["max_tokens"]) == ("m", 5, None)
    assert shown["created_at"] == "1970-01-01T00:00:00Z"


def test_envelopes() -> None:
    page = orjson.loads(collection([b"1", b"2"], PageInfo(next_cursor="n")))
    assert page == {"data": [1, 2], "prev_page": None, "next_page": "n"}
    extension = orjson.loads(extension_collection([], has_more=False, first_id="", last_id=""))
    assert extension == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize("runner", [None, DescribeRunnerResponse(tools=["bash"], sandbox_providers=["local"])])
def test_capabilities_say_what_the_runner_says(runner: DescribeRunnerResponse | None) -> None:
    shown = orjson.loads(render_capabilities(runner))
    by_id = {each["id"]: each for each in shown["capabilities"]}
    expected = "available" if runner is not None else "unavailable"
    assert {by_id[name]["status"] for name in ("bash", "local", "builtin")} == {expected}
    assert all(each.get("reason") for each in by_id.values() if each["status"] == "unavailable")
    assert by_id["web_search"]["status"] == "unavailable"


def test_the_contract_matrix_is_whole() -> None:
    entries = MATRIX["capabilities"]
    assert len({entry["id"] for entry in entries}) == len(entries)
    assert sum(MATRIX["summary"].values()) == len(entries)
    for entry in entries:
        assert entry["status"] in STATUSES
        assert (entry["status"] == "supported") == ("reason" not in entry)


@pytest.mark.parametrize(
    ("error", "published"),
    [
        ({"type": "model_overloaded_error", "retry_status": "retryable"}, ("model_overloaded_error", "retrying")),
        ({"type": "model_overloaded_error", "retry_status": "unknown"}, ("model_overloaded_error", "exhausted")),
        ({"type": "unsupported_capability", "retry_status": "not_retryable"}, ("unknown_error", "exhausted")),
        ({"type": "requires_action_timeout", "retry_status": "not_retryable"}, ("unknown_error", "terminal")),
    ],
)
def test_an_error_tells_a_published_caller_whether_the_session_goes_on(error: Any, published: tuple[str, str]) -> None:
    stored = {"id": "sevt_1", "type": "session.error", "error": error | {"message": "m"}}
    event = Event(id="sevt_1", type="session.error", body=orjson.dumps(stored))
    told = orjson.loads(render_event(event, published=True))["error"]
    assert told == {"type": published[0], "message": "m", "retry_status": {"type": published[1]}}
    assert render_event(event, published=False) == event.body


def test_the_two_web_tools_are_told_apart() -> None:
    """A search takes a provider, a fetch takes a runner."""
    for tools, expected in (
        (["web_fetch"], ("available", "unavailable")),
        (["web_fetch", "web_search"], ("available", "available")),
        ([], ("unavailable", "unavailable")),
    ):
        shown = orjson.loads(render_capabilities(DescribeRunnerResponse(tools=tools)))
        by_id = {each["id"]: each for each in shown["capabilities"]}
        assert (by_id["web_fetch"]["status"], by_id["web_search"]["status"]) == expected
    assert "provider" in by_id["web_search"]["reason"]
