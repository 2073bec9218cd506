"""Bodies: whatever is not sound JSON of the declared shape is a 4xx that names the field."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from managed_agents.sessions.v1 import agents_pb2
from tests.unit.gateway.support import Stub, agent, http

JSON = {"content-type": "application/json"}


async def post(
    content: bytes, headers: dict[str, str] = JSON, path: str = "/v1/agents"
) -> tuple[httpx2.Response, Stub]:
    agents = Stub(
        CreateAgent=agents_pb2.CreateAgentResponse(agent=agent()),
        UpdateAgent=agents_pb2.UpdateAgentResponse(agent=agent()),
    )
    async with http(agents=agents) as client:
        return await client.post(path, content=content, headers=headers), agents


async def test_the_callers_own_bytes_go_on() -> None:
    body = b'{ "name" : "a\\u00e9", "model":{"id":"m"},"tools": [ {"type":"custom"} ] }'
    response, agents = await post(body)
    assert response.status_code == 200
    assert agents.asked[0][1].definition_json == body


@pytest.mark.parametrize(
    ("content", "code", "named"),
    [
        (b"", "invalid_json", "empty"),
        (b"  ", "invalid_json", "empty"),
        (b"{", "invalid_json", "line 1"),
        (b'{"name": NaN}', "invalid_json", "JSON"),
        (b'{"name": Infinity}', "invalid_json", "JSON"),
        (b'{"version": 1e999}', "invalid_json", "JSON"),
        (b'{"name": "\xff"}', "invalid_json", "JSON"),
        (b'{"name": "\\ud800"}', "invalid_json", "JSON"),
        (b'{"name": "a\x00"}', "invalid_json", "JSON"),
        (b"[" * 5000 + b"]" * 5000, "invalid_json", ""),
        (b'{"name":"a","tools":' + b"[" * 60 + b"]" * 60 + b"}", "invalid_json", "nested"),
        (b'{"name": "a\\u0000b"}', "invalid_request", "name must not hold NUL"),
        (b'{"name":"a","metadata": {"a\\u0000b": "c"}}', "invalid_request", "NUL"),
        (b"[]", "invalid_request", "The body must be an object"),
        (b"null", "invalid_request", "The body must be an object"),
        (b"{}", "invalid_request", "name is required"),
        (b'{"name": ""}', "invalid_request", "name must be at least 1"),
        (b'{"name": 7}', "invalid_request", "name must be a string"),
        (b'{"name": "' + b"n" * 257 + b'"}', "invalid_request", "name must be at most 256"),
        (b'{"name": "a", "nmae": "b"}', "unknown_field", 'Unknown field "nmae". Accepted here: '),
        (b'{"name": "a", "tools": {}}', "invalid_request", "tools must be a list"),
        (b'{"name": "a", "tools": [1]}', "invalid_request", "tools.0 must be an object"),
        (b'{"name": "a", "tools": [' + b"{}," * 256 + b"{}]}", "invalid_request", "tools must hold at most 256"),
        (b'{"name": "a", "metadata": {"k": 1}}', "invalid_request", "metadata.k must be a string"),
        (b'{"name": "a", "metadata": []}', "invalid_request", "metadata must be an object"),
        (b'{"name": "a", "system": "' + b"s" * 100_001 + b'"}', "invalid_request", "system must be at most 100000"),
        (b'{"name": "a", "mcp_servers": [{"url": "' + b"s" * 1_000_001 + b'"}]}', "invalid_request", "mcp_servers.0"),
    ],
)
async def test_refused(content: bytes, code: str, named: str) -> None:
    response, agents = await post(content)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert named in error["message"]
    assert agents.asked == []


async def test_an_escaped_backslash_before_u0000_is_only_text() -> None:
    response, _ = await post(b'{"name": "a\\\\u0000"}')
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"content-type": "application/json; charset=UTF-8"}, 200),
        ({"content-type": "Application/JSON"}, 200),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({**JSON, "content-encoding": "gzip"}, 415),
        ({**JSON, "content-length": "99999999999"}, 413),
    ],
)
async def test_headers(headers: dict[str, str], status: int) -> None:
    response, _ = await post(b'{"name": "a"}', headers)
    assert response.status_code == status, response.text


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b'{"version": 0}', "version must be at least 1"),
        (b'{"version": "1"}', "version must be an integer"),
        (b'{"version": 1.5}', "version must be an integer"),
        (b'{"version": null}', "version must be an integer"),
        (b'{"version": true}', "version must be an integer"),
        (b'{"expected_version": -1}', "expected_version must be at least 1"),
        (b'{"expected_version": 99999999999}', "expected_version must be at most"),
    ],
)
async def test_a_malformed_precondition_is_never_dropped(content: bytes, named: str) -> None:
    response, agents = await post(content, path="/v1/agents/agent_1")
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]
    assert agents.asked == []


@pytest.mark.parametrize("content", [b'{"name": null}', b'{"tools": null, "metadata": {"k": null}}', b'{"model": 5}'])
async def test_what_a_service_judges_is_passed_on(content: bytes) -> None:
    response, agents = await post(content, path="/v1/agents/agent_1")
    assert response.status_code == 200
    assert agents.asked[0][1].patch_json == content


@pytest.mark.parametrize(
    ("field", "value"), [("hosting_type", 5), ("config", "text"), ("sandbox_provider", []), ("network", 1)]
)
async def test_environment_fields_with_codes_of_their_own_are_left_to_their_service(field: str, value: Any) -> None:
    environments = Stub(CreateEnvironment=ValueError("reached"))
    async with http(environments=environments) as client:
        await client.post("/v1/environments", json={"name": "e", field: value})
    assert len(environments.asked) == 1


@pytest.mark.parametrize("field", ["hosting_type", "sandbox_provider"])
async def test_their_length_is_bounded_all_the_same(field: str) -> None:
    async with http() as client:
        response = await client.post("/v1/environments", json={"name": "e", field: "x" * 257})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == f"{field} must be at most 256 characters long."
