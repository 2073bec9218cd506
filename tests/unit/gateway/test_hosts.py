"""A gateway without a key answers to loopback names only, so no web page can reach it under a name of its own."""

from __future__ import annotations

import pytest

from tests.unit.gateway.support import http

LOOPBACK = ["127.0.0.1", "127.0.0.1:3000", "localhost", "LOCALHOST:3000", "a.localhost:80", "[::1]:3000", "127.8.8.8"]
OTHERS = [
    "evil.example",
    "evil.example:3000",
    "localhost.evil.example",
    "10.0.0.1",
    "[fd00::1]:3000",
    "127.0.0.1.evil.example",
    "",
]


@pytest.mark.parametrize("host", LOOPBACK)
async def test_loopback_names_are_answered(host: str) -> None:
    async with http() as client:
        assert (await client.get("/openapi.json", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", OTHERS)
async def test_other_names_are_refused_and_told_what_to_do(host: str) -> None:
    async with http() as client:
        answer = await client.get("/v1/agents", headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"
    assert "MANAGED_AGENTS_API_KEY" in answer.json()["error"]["message"]


@pytest.mark.parametrize("host", OTHERS[:2])
async def test_with_a_key_the_credential_decides_and_not_the_name(host: str) -> None:
    async with http(api_key="k") as client:
        headers = {"host": host, "x-forwarded-host": "other.example"}
        refused = await client.get("/v1/unknown", headers=headers)
        served = await client.get("/v1/unknown", headers={**headers, "authorization": "Bearer k"})
    assert (refused.status_code, served.status_code) == (401, 404)


async def test_a_gateway_that_listens_beyond_this_machine_has_no_names_to_keep_to() -> None:
    async with http(host="0.0.0.0") as client:
        assert (await client.get("/openapi.json", headers={"host": "gateway.internal"})).status_code == 200
