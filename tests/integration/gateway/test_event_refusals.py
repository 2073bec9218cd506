"""What may not be asked of an event log over the wire: each refusal names its field and leaves the log as it is."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
import pytest_asyncio

pytestmark = pytest.mark.asyncio(loop_scope="package")

AGENT = {"name": "assistant", "model": "default", "system": "You are helpful."}
INTERRUPT = {"type": "user.interrupt"}


@pytest_asyncio.fixture(loop_scope="package")
async def session_id(http: httpx2.AsyncClient) -> str:
    """An idle session."""
    agent = (await http.post("/v1/agents", json=AGENT)).json()
    return (await http.post("/v1/sessions", json={"agent": agent["id"]})).json()["id"]


async def send(http: httpx2.AsyncClient, session_id: str, *events: dict[str, Any]) -> httpx2.Response:
    return await http.post(f"/v1/sessions/{session_id}/events", json={"events": list(events)})


async def log(http: httpx2.AsyncClient, session_id: str) -> list[dict[str, Any]]:
    return (await http.get(f"/v1/sessions/{session_id}/events")).json()["data"]


async def test_an_interrupt_names_a_thread_of_its_session_or_none(http: httpx2.AsyncClient, session_id: str) -> None:
    message = {"type": "user.message", "content": "hello"}
    assert (await send(http, session_id, message)).status_code == 200
    before = await log(http, session_id)
    own = next(event["session_thread_id"] for event in before if "session_thread_id" in event)
    for unknown in ("sthr_x", own[:-1], own.upper(), session_id, "a\x00b"):
        refused = await send(http, session_id, INTERRUPT, INTERRUPT | {"session_thread_id": unknown})
        error = refused.json()["error"]
        assert (refused.status_code, error["type"]) == (400, "invalid_request_error"), unknown
        assert "events.1.session_thread_id" in error["message"]
    assert await log(http, session_id) == before
    for fields in ({}, {"session_thread_id": None}, {"session_thread_id": own}):
        assert (await send(http, session_id, INTERRUPT | fields)).status_code == 200


@pytest.mark.parametrize("path", ["events/stream", "stream"])
async def test_a_cursor_beyond_the_end_of_the_log_is_refused(
    http: httpx2.AsyncClient, session_id: str, path: str
) -> None:
    url = f"/v1/sessions/{session_id}/{path}"
    await send(http, session_id, INTERRUPT, INTERRUPT)
    for beyond in (3, 4, 10**17):
        refused = await http.get(url, headers={"last-event-id": str(beyond)})
        error = refused.json()["error"]
        assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
        assert "Last-Event-ID" in error["message"] and "2" in error["message"]
    for position in ("0", "1", "2", ""):
        async with http.stream("GET", url, headers={"last-event-id": position}) as response:
            assert response.status_code == 200
    for junk in ("-1", "x", "1.0", "9" * 19, "²"):
        refused = await http.get(url, headers={"last-event-id": junk.encode()})
        assert refused.status_code == 400, junk


async def test_wrong_preview_types_are_refused_before_the_stream_opens(
    http: httpx2.AsyncClient, session_id: str
) -> None:
    url = f"/v1/sessions/{session_id}/events/stream"
    message = "agent.message"
    for wrong in (["agent.tool_use"], [""], [message, "x"], [message] * 101):
        refused = await http.get(url, params={"event_deltas[]": wrong})
        assert refused.status_code == 400 and refused.headers["content-type"] == "application/json"
        error = refused.json()["error"]
        assert error["type"] == "invalid_request_error" and "event_deltas[]" in error["message"]
    for sound in ([message], [message, "agent.thinking"], [message] * 100):
        async with http.stream("GET", url, params={"event_deltas[]": sound}) as response:
            assert response.status_code == 200
