"""Lists of sessions and events over REST: both directions, and filters that are either honoured or refused."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import httpx2
import pytest

from managed_agents.sessions.v1.sessions_pb2 import ListSessionsRequest
from tests.integration.gateway.conftest import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="package")

PUBLISHED = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}


async def _sessions(http: httpx2.AsyncClient, count: int) -> list[str]:
    agent = {"name": "a", "model": "demo", "system": "s"}
    agent_id = (await http.post("/v1/agents", json=agent)).json()["id"]
    made = [(await http.post("/v1/sessions", json={"agent": agent_id})).json()["id"] for _ in range(count)]
    return made[::-1]


async def _page(http: httpx2.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await http.get("/v1/sessions", params={"limit": 2, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_pages_of_sessions_lead_on_and_back(http: httpx2.AsyncClient) -> None:
    made = await _sessions(http, 5)
    first = await _page(http)
    assert first["prev_page"] is None
    second = await _page(http, page=first["next_page"])
    third = await _page(http, page=second["next_page"])
    assert third["next_page"] is None
    walked = [session["id"] for page in (first, second, third) for session in page["data"]]
    assert walked == made
    back = await _page(http, page=third["prev_page"])
    assert back["data"] == second["data"]
    assert (await _page(http, page=back["prev_page"]))["data"] == first["data"]


async def test_a_listing_shows_what_single_reads_show_after_every_change(http: httpx2.AsyncClient) -> None:
    made = await _sessions(http, 2)
    for patch_ in ({}, {"title": "One"}, {"metadata": {"a": "b"}}, {"title": None}):
        await http.post(f"/v1/sessions/{made[1]}", json=patch_)
        for headers in ({}, PUBLISHED):
            listed = (await http.get("/v1/sessions", headers=headers)).json()["data"]
            assert listed == [(await http.get(f"/v1/sessions/{each}", headers=headers)).json() for each in made]


async def test_a_sessions_service_of_a_former_build_is_understood(http: httpx2.AsyncClient, gateway: Gateway) -> None:
    await _sessions(http, 3)
    today, original = await _page(http), gateway.clients.sessions.ListSessions

    async def former(request: ListSessionsRequest, **options: Any) -> Any:
        request.ClearField("takes_encoded")
        answer = await original(request, **options)
        assert answer.sessions and not answer.encoded_sessions
        return answer

    with patch.object(gateway.clients.sessions, "ListSessions", former):
        assert await _page(http) == today


async def test_the_filter_for_archived_sessions_is_of_the_published_contract(http: httpx2.AsyncClient) -> None:
    [session_id] = await _sessions(http, 1)
    await http.post(f"/v1/sessions/{session_id}/archive")
    for value in ("true", "false"):
        refused = await http.get("/v1/sessions", params={"include_archived": value})
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert message.startswith('Unknown query parameter "include_archived". This route accepts: limit, ')
        assert "include_archived" not in message.partition("accepts")[2]
    taken = await http.get("/v1/sessions", params={"include_archived": "true"}, headers=PUBLISHED)
    assert [session["id"] for session in taken.json()["data"]] == [session_id]
    assert (await _page(http))["data"] == []


async def test_event_pages_lead_on_and_say_so_that_there_is_no_way_back(http: httpx2.AsyncClient) -> None:
    [session_id] = await _sessions(http, 1)
    path = f"/v1/sessions/{session_id}/events"
    events = [{"type": "user.interrupt"}] * 5
    sent = (await http.post(path, json={"events": events})).json()["data"]
    walked: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = (await http.get(path, params=query)).json()
        assert page["prev_page"] is None
        walked += page["data"]
        if page["next_page"] is None:
            break
        query["page"] = page["next_page"]
    assert walked == sent
    after = (await http.get(path, params={"after_id": sent[2]["id"]})).json()["data"]
    assert after == sent[3:]
    for wrong in ({"page": "nonsense"}, {"after_id": "sevt_00000000000000000000000000"}, {"order": "sideways"}):
        refused = await http.get(path, params=wrong)
        assert refused.status_code == 400 and refused.json()["error"]["type"] == "invalid_request_error"
