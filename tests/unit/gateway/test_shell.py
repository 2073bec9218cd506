"""The outermost layer: every answer has a request id, every failure the one envelope."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.responses import StreamingResponse

from kit.errors import Unavailable
from kit.ids import is_id
from managed_agents.sessions.v1 import agents_pb2
from services.gateway.operation import Answer, Call, Operation
from services.gateway.operation import body as body_module
from services.gateway.operation.shell import Shell
from tests.unit.gateway.support import PUBLISHED, Stub, agent, http

JSON = {"content-type": "application/json"}


async def fail(call: Call) -> bytes:
    raise ValueError("token=abc")


async def answer_other(call: Call) -> Answer:
    return Answer(b"null", status=202, headers=(("x-extra", "1"),))


async def stream(call: Call) -> StreamingResponse:
    async def frames() -> Any:
        yield b"data: 1\n\n"

    return StreamingResponse(frames(), media_type="text/event-stream")


EXTRA = (
    Operation("GET", "/v1/test/fail", fail, tag="t", summary="s"),
    Operation("POST", "/v1/test/other", answer_other, tag="t", summary="s"),
    Operation("GET", "/v1/test/stream", stream, tag="t", summary="s", stream=True),
)


def refused(response: httpx2.Response, status: int, code: str) -> str:
    body = response.json()
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert body["type"] == "error" and body["error"]["code"] == code
    assert body["request_id"] == response.headers["request-id"]
    assert is_id("req", body["request_id"])
    return body["error"]["message"]


async def test_an_unrouted_path() -> None:
    async with http() as client:
        for path in ("/v1/nope", "/nope", "/v1/agents/", "/v1/x/nope", "/"):
            message = refused(await client.get(path), 404, "route_not_found")
            assert message == "No route matches this request"


async def test_error_types_follow_the_vocabulary_of_the_caller() -> None:
    async with http() as client:
        assert (await client.get("/v1/nope")).json()["error"]["type"] == "not_found"
        assert (await client.get("/v1/nope", headers=PUBLISHED)).json()["error"]["type"] == "not_found_error"


async def test_a_wrong_method_names_the_right_ones() -> None:
    async with http(operations=EXTRA) as client:
        response = await client.delete("/v1/agents")
        refused(response, 405, "method_not_allowed")
        assert response.headers["allow"] == "GET, HEAD, POST"
        refused(await client.options("/v1/agents"), 405, "method_not_allowed")
        refused(await client.post("/docs"), 405, "method_not_allowed")
        stream_head = await client.head("/v1/test/stream")
        assert (stream_head.status_code, stream_head.headers["allow"]) == (405, "GET")


async def test_admission_runs_before_routing() -> None:
    async with http() as client:
        refused(await client.get("/v1/nope", headers={"x-api-key": "k"}), 400, "missing_anthropic_version")
    async with http(api_key="secret") as client:
        refused(await client.get("/v1/nope"), 401, "invalid_credential")
        both = {"x-api-key": "secret", "authorization": "Bearer secret"}
        refused(await client.get("/v1/nope", headers=both), 401, "ambiguous_credential")
        known = {"authorization": "Bearer secret"}
        refused(await client.get("/v1/nope", headers=known), 404, "route_not_found")


async def test_two_credentials_are_no_fault_while_authentication_is_off() -> None:
    async with http(agents=Stub(ListAgents=agents_pb2.ListAgentsResponse())) as client:
        both = {"x-api-key": "a", "authorization": "Bearer b", **PUBLISHED}
        assert (await client.get("/v1/agents", headers=both)).status_code == 200


async def test_health_and_reference_need_no_credential() -> None:
    async with http(api_key="secret") as client:
        for path in ("/v1/x/health", "/docs", "/openapi.json"):
            response = await client.get(path)
            assert response.status_code == 200
            assert is_id("req", response.headers["request-id"])
        refused(await client.get("/v1/x/runtime"), 401, "invalid_credential")


async def test_an_unforeseen_fault_is_masked() -> None:
    async with http(operations=EXTRA) as client:
        message = refused(await client.get("/v1/test/fail"), 500, "internal")
        assert "abc" not in message
        assert (await client.get("/v1/test/fail", headers=PUBLISHED)).json()["error"]["type"] == "api_error"


async def test_other_kinds_of_answers() -> None:
    async with http(operations=EXTRA) as client:
        response = await client.post("/v1/test/other")
        assert (response.status_code, response.content, response.headers["x-extra"]) == (202, b"null", "1")
        response = await client.get("/v1/test/stream")
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.text == "data: 1\n\n"


async def test_an_unknown_parameter_wins_over_a_missing_resource() -> None:
    agents = Stub()
    async with http(agents=agents) as client:
        refused(await client.get("/v1/agents/agent_x?nope=1"), 400, "unknown_query_parameter")
    assert agents.asked == []


async def test_context_of_a_call() -> None:
    agents = Stub(GetAgent=agents_pb2.GetAgentResponse(agent=agent()))
    async with http(agents=agents) as client:
        response = await client.get("/v1/agents/agent_1?version=2", headers=PUBLISHED)
    (name, request, options) = agents.asked[0]
    assert (name, request.agent_id, request.version) == ("GetAgent", "agent_1", 2)
    context = options["context"]
    assert (context.workspace_id, context.published_contract) == ("wrkspc_default", True)
    assert context.request_id == response.headers["request-id"]


async def test_cross_origin_rules() -> None:
    preflight = {"origin": "https://console.example", "access-control-request-method": "POST"}
    async with http(api_key="secret", cors_origins="https://console.example, https://b.example") as client:
        response = await client.options("/v1/agents", headers=preflight)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://console.example"
        refusal = await client.get("/v1/agents", headers={"origin": "https://b.example"})
        refused(refusal, 401, "invalid_credential")
        assert refusal.headers["access-control-allow-origin"] == "https://b.example"
        stranger = await client.get("/v1/agents", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in stranger.headers
    async with http() as client:
        closed = await client.options("/v1/agents", headers=preflight)
        assert "access-control-allow-origin" not in closed.headers


@pytest.mark.parametrize("path_id", ["a%00b", "a" * 300])
async def test_impossible_ids(path_id: str) -> None:
    async with http() as client:
        message = refused(await client.get(f"/v1/agents/{path_id}"), 400, "invalid_request")
        assert message.startswith("agent_id")


async def test_a_body_that_grows_too_large_is_cut_off_while_it_arrives() -> None:
    async def chunks() -> Any:
        for _ in range(100):
            yield b"x" * 65_536

    async with http() as client:
        refused(await client.post("/v1/agents", content=chunks(), headers=JSON), 413, "request_too_large")


async def test_a_caller_that_hangs_up_in_its_body_gets_no_answer() -> None:
    sent: list[Any] = []
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    async with http() as client:
        shell = client._transport.app  # type: ignore[attr-defined]
        assert isinstance(shell, Shell)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/agents",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        }
        await shell(scope, receive, send)
    assert sent == []


async def test_requests_do_not_share_their_ids() -> None:
    async with http() as client:
        answers = await asyncio.gather(*(client.get("/v1/x/health") for _ in range(20)))
    assert len({answer.headers["request-id"] for answer in answers}) == 20


async def test_a_read_waits_a_moment_for_a_service_that_is_away() -> None:
    agents = Stub(GetAgent=Unavailable("away"), ArchiveAgent=Unavailable("away"))
    async with http(agents=agents) as client:
        response = await client.get("/v1/agents/agent_1")
        refused(response, 503, "unavailable")
        assert response.headers["retry-after"] == "1"
        assert [options.get("retry", False) for _, _, options in agents.asked] == [False, True]
        refused(await client.post("/v1/agents/agent_1/archive"), 503, "unavailable")
        assert len(agents.asked) == 3


async def test_a_body_that_never_arrives_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "MAX_READ_SECONDS", 0.05)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with http() as client:
        refused(await client.post("/v1/agents", content=chunks(), headers=JSON), 400, "invalid_request")
