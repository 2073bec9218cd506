"""What a session cost, in both shapes: whole cents locally, an amount with its currency for published callers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from managed_agents.sessions.v1.events_pb2 import Event
from managed_agents.sessions.v1.sessions_pb2 import ModelSpend, Session, SessionStatus, Usage
from services.gateway.render.events import render_event
from services.gateway.render.sessions import render_session
from tests.unit.gateway.support import agent


def shown(*, published: bool = False, **fields: Any) -> dict[str, Any]:
    session = Session(id="sess_1", agent=agent(), status=SessionStatus.SESSION_STATUS_IDLE, **fields)
    return orjson.loads(render_session(session, published=published))


def test_a_session_tells_its_list_cost_in_cents() -> None:
    assert shown(list_cost_cents=7)["usage"]["list_cost"] == 7
    assert shown(list_cost_cents=0)["usage"]["list_cost"] == 0


def test_a_published_caller_reads_an_amount() -> None:
    assert shown(list_cost_cents=7, published=True)["usage"]["list_cost"] == {"amount": "7", "currency": "USD"}


@pytest.mark.parametrize("published", [False, True])
def test_a_cost_that_is_not_whole_is_withheld(published: bool) -> None:
    assert "list_cost" not in shown(published=published)["usage"]


@pytest.mark.parametrize("published", [False, True])
def test_each_model_has_its_part(published: bool) -> None:
    spend = [
        ModelSpend(model_id="a", usage=Usage(input_tokens=2, cache_creation_1h_input_tokens=3), list_cost_usd="0.5"),
        ModelSpend(model_id='b"', usage=Usage(output_tokens=1)),
    ]
    first, second = shown(spend=spend, published=published)["usage"]["models"]
    assert (first["model"], first["input_tokens"], first["list_cost_usd"]) == ("a", 2, "0.5")
    assert first["cache_creation"] == {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 3}
    assert (second["model"], second["output_tokens"], "list_cost_usd" in second) == ('b"', 1, False)


def test_a_snapshot_is_rendered_again_for_published_callers_only() -> None:
    body = b'{"id":"sevt_1","type":"session.usage","usage":{"input_tokens":1,"list_cost":7},"budget":null}'
    event = Event(id="sevt_1", seq=1, type="session.usage", body=body)
    assert render_event(event, published=False) == body
    published = orjson.loads(render_event(event, published=True))
    assert published["usage"]["list_cost"] == {"amount": "7", "currency": "USD"}
    assert {**published, "usage": {**published["usage"], "list_cost": 7}} == orjson.loads(body)


def test_a_budget_reads_back_as_it_is_and_null_after_its_removal() -> None:
    assert "budget" not in shown()
    assert shown(budget_json=b"null")["budget"] is None
    assert shown(budget_json=b'{"type":"limit"}')["budget"] == {"type": "limit"}
