"""Safe repeats: a key is scoped to caller and route; blind retries are recognised by content."""

from __future__ import annotations

from typing import Any

import pytest

from managed_agents.sessions.v1 import agents_pb2
from managed_agents.sessions.v1.common_pb2 import Idempotency
from services.gateway.operation import tries
from tests.unit.gateway.support import Stub, agent, http

BODY = b'{"name":"a"}'


async def mark(
    headers: dict[str, str], *, content: bytes = BODY, path: str = "/v1/agents", **options: Any
) -> Idempotency:
    agents = Stub(
        CreateAgent=agents_pb2.CreateAgentResponse(agent=agent()),
        UpdateAgent=agents_pb2.UpdateAgentResponse(agent=agent()),
    )
    async with http(agents=agents, **options) as client:
        response = await client.post(path, content=content, headers={"content-type": "application/json", **headers})
    assert response.status_code == 200, response.text
    return agents.asked[0][1].idempotency


async def test_without_any_sign_nothing_is_kept() -> None:
    assert await mark({}) == Idempotency()
    assert await mark({"x-stainless-retry-count": "many"}) == Idempotency()


async def test_a_key_is_kept_for_a_day_and_scoped() -> None:
    first = await mark({"idempotency-key": "k"})
    assert (first.keep_seconds, first.first_try, len(first.fingerprint)) == (86_400, False, 32)
    assert await mark({"idempotency-key": "k", "x-stainless-retry-count": "1"}) == first
    other_body = await mark({"idempotency-key": "k"}, content=b'{"name":"b"}')
    assert other_body.key == first.key and other_body.fingerprint != first.fingerprint
    assert (await mark({"idempotency-key": "k"}, path="/v1/agents/agent_1")).key != first.key
    assert (await mark({"idempotency-key": "K"})).key != first.key
    keyed = await mark({"idempotency-key": "k", "authorization": "Bearer secret"}, api_key="secret")
    assert keyed.key != first.key


async def test_retries_of_the_published_client_are_recognised_by_content() -> None:
    first = await mark({"x-stainless-retry-count": "0"})
    again = await mark({"x-stainless-retry-count": "1"})
    assert (first.keep_seconds, first.first_try, again.first_try) == (120, True, False)
    assert (first.not_before, again.not_before) == ("", ""), "the retry came to a gateway that saw no first try"
    assert first.try_id < again.try_id
    assert (first.key, first.fingerprint) == (again.key, again.fingerprint)
    assert (await mark({"x-stainless-retry-count": "1"}, content=b'{"name":"b"}')).key != first.key


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_a_key_of_impossible_length(key: str) -> None:
    agents = Stub()
    async with http(agents=agents) as client:
        response = await client.post("/v1/agents", json={"name": "a"}, headers={"idempotency-key": key})
    assert response.status_code == 400
    assert "Idempotency-Key" in response.json()["error"]["message"]
    assert agents.asked == []


async def test_a_retry_is_about_the_newest_first_try_of_its_content() -> None:
    agents = Stub(CreateAgent=agents_pb2.CreateAgentResponse(agent=agent()))
    async with http(agents=agents) as client:
        for count in ("0", "1", "0", "2", "1"):
            headers = {"content-type": "application/json", "x-stainless-retry-count": count}
            await client.post("/v1/agents", content=BODY, headers=headers)
        headers["x-stainless-retry-count"] = "1"
        await client.post("/v1/agents", content=b'{"name":"b"}', headers=headers)
    marks = [request.idempotency for _, request, _ in agents.asked]
    first, second = marks[0].try_id, marks[2].try_id
    assert [mark.not_before for mark in marks] == ["", first, "", second, second, ""]
    assert [mark.try_id for mark in marks] == sorted({mark.try_id for mark in marks})


def test_only_so_many_first_tries_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "MAX_REMEMBERED", 3)
    remembered = tries.FirstTries()
    ids = [remembered.begin(key) for key in ("a", "b", "c", "a", "d")]
    assert [remembered.newest(key) for key in "abcd"] == [ids[3], "", ids[2], ids[4]]
