"""A plain caller over the wire: local shapes, safe repeats, refusals that write nothing."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest

from tests.integration.gateway.conftest import Gateway, calling

pytestmark = pytest.mark.asyncio(loop_scope="package")

AGENT = {"name": "assistant", "model": "default", "system": "You are helpful."}


async def test_an_agent_has_the_local_shape(http: httpx2.AsyncClient) -> None:
    created = (await http.post("/v1/agents", json=AGENT)).json()
    assert (created["type"], created["model"], created["status"], created["version"]) == (
        "agent",
        "default",
        "active",
        1,
    )
    assert created["model_config"]["id"] == "default"
    saved = await http.put(f"/v1/agents/{created['id']}", json={"description": "d", "expected_version": 1})
    assert saved.json()["version"] == 2
    stale = await http.put(f"/v1/agents/{created['id']}", json={"description": "e", "expected_version": 1})
    assert stale.status_code == 409
    assert stale.json()["error"]["type"] == "conflict"
    both = await http.post(f"/v1/agents/{created['id']}", json={"version": 1, "expected_version": 2})
    assert both.status_code == 400
    page = (await http.get("/v1/agents?limit=1")).json()
    assert [each["id"] for each in page["data"]] == [created["id"]]
    assert (page["prev_page"], page["next_page"]) == (None, None)


async def test_a_cursor_fits_only_its_query(http: httpx2.AsyncClient) -> None:
    for _ in range(3):
        await http.post("/v1/agents", json=AGENT)
    cursor = (await http.get("/v1/agents?limit=1")).json()["next_page"]
    assert (await http.get("/v1/agents", params={"limit": 1, "page": cursor})).status_code == 200
    for path, page in (
        ("/v1/environments", cursor),
        ("/v1/agents?include_archived=true", cursor),
        ("/v1/agents", cursor[:-2]),
        ("/v1/agents", "junk"),
    ):
        answer = await http.get(httpx2.URL(path).copy_merge_params({"page": page}))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_cursor")


async def test_a_key_makes_a_creation_safe_to_repeat(http: httpx2.AsyncClient) -> None:
    headers = {"idempotency-key": "k1"}
    first, again = [await http.post("/v1/agents", json=AGENT, headers=headers) for _ in range(2)]
    assert first.json()["id"] == again.json()["id"]
    other = await http.post("/v1/agents", json={**AGENT, "name": "other"}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert other.headers["x-should-retry"] == "false"
    assert len((await http.get("/v1/agents")).json()["data"]) == 1


async def test_repeats_at_the_same_moment_have_one_effect(http: httpx2.AsyncClient) -> None:
    headers = {"idempotency-key": "k2"}
    answers = await asyncio.gather(
        *(http.post("/v1/environments", json={"name": "e"}, headers=headers) for _ in "abcd")
    )
    made = {answer.json()["id"] for answer in answers if answer.status_code == 200}
    assert len(made) == 1
    assert all(answer.status_code in (200, 409) for answer in answers)


async def test_blind_retries_of_the_published_client_have_one_effect(http: httpx2.AsyncClient) -> None:
    first, again, later = [
        (await http.post("/v1/agents", json=AGENT, headers={"x-stainless-retry-count": count})).json()["id"]
        for count in ("0", "1", "0")
    ]
    assert first == again
    assert later != first


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/agents", {"name": "a", "model": 5, "system": "s"}, "invalid_model"),
        ("/v1/agents", {"name": "a", "system": "s"}, "invalid_model"),
        (
            "/v1/agents",
            {"name": "a", "model": {"id": "m", "inference_geo": "us"}, "system": "s"},
            "unsupported_model_field",
        ),
        ("/v1/environments", {"name": "e", "hosting_type": "cloud"}, "unsupported_hosting_type"),
        ("/v1/environments", {"name": "e", "hosting_type": 5}, "unsupported_hosting_type"),
        ("/v1/environments", {"name": "e", "config": "text"}, "invalid_environment_config"),
    ],
)
async def test_the_services_own_codes_arrive(http: httpx2.AsyncClient, path: str, body: dict, code: str) -> None:
    answer = await http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), answer.text
    listed = (await http.get(path)).json()["data"]
    assert all(each["id"] == "env_default" for each in listed)


async def test_runtime_and_capabilities(http: httpx2.AsyncClient) -> None:
    runtime = (await http.get("/v1/x/runtime")).json()
    assert (runtime["type"], runtime["status"], runtime["auth_enabled"]) == ("runtime", "running", False)
    assert runtime["models"] == [
        {
            "name": "default",
            "provider": "openai",
            "model": "m",
            "api_key_state": "configured",
            "base_url_state": "not_set",
        }
    ]
    inventory = (await http.get("/v1/x/capabilities")).json()
    assert {"id": "bash", "kind": "tool", "status": "available"} in inventory["capabilities"]
    assert inventory["contract"]["type"] == "capability_matrix"


async def test_a_service_that_is_away_is_told_and_comes_back(
    fresh_http: httpx2.AsyncClient, fresh_gateway: Gateway
) -> None:
    http, gateway = fresh_http, fresh_gateway
    ready = await http.get("/v1/x/health?ready=true")
    assert (ready.status_code, set(ready.json()["checks"].values())) == (200, {"ok"})
    await gateway.services["runner"].stop()
    unready = await http.get("/v1/x/health?ready=true")
    assert unready.status_code == 503
    assert unready.json()["error"]["details"]["checks"]["runner"] != "ok"
    assert (await http.get("/v1/x/health")).status_code == 200
    models = await http.get("/v1/models")
    assert models.status_code == 503
    assert int(models.headers["retry-after"]) >= 1
    assert (await http.get("/v1/x/runtime")).json()["status"] == "degraded"
    inventory = (await http.get("/v1/x/capabilities")).json()
    assert {each["status"] for each in inventory["capabilities"]} == {"unavailable"}


async def test_a_request_in_flight_ends_before_the_listener_does(own_vault: Gateway) -> None:
    async with calling(own_vault) as http:
        await _in_flight(http, own_vault)


async def _in_flight(http: httpx2.AsyncClient, gateway: Gateway) -> None:
    answers = [asyncio.create_task(http.post("/v1/agents", json=AGENT)) for _ in range(8)]
    await answers[0]
    await gateway.server.stop()
    for answer in answers:
        result = (await asyncio.gather(answer, return_exceptions=True))[0]
        assert isinstance(result, httpx2.ConnectError) or result.status_code == 200
    with pytest.raises(httpx2.TransportError):
        await http.get("/v1/x/health")


async def test_bytes_that_are_no_http_get_the_envelope(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.port)
    writer.write(b"NONSENSE\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 400") and b"request-id: req_" in head
    assert json.loads(body)["error"]["code"] == "invalid_request"
