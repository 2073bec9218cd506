"""The session gateway on a whole platform: what a turn really does, and what outlives the end of everything."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from kit.testing import await_until
from tests.e2e.leftovers import kill_all
from tests.support.api import Api, api, tool
from tests.support.platform import Platform, running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ASKING = [{"type": "agent_toolset_20260401", "default_config": {"permission_policy": {"type": "always_ask"}}}]
QUESTION = {
    "type": "custom",
    "name": "ask_person",
    "description": "Asks the person.",
    "input_schema": {"type": "object", "properties": {"question": {"type": "string"}}},
}


class Door:
    """The session gateway of one agent, as a client sees it."""

    def __init__(self, client: Api, agent_id: str) -> None:
        self.http = client.http
        self.base = f"/api/agents/{agent_id}/eve/v1/session"

    async def send(self, body: Any, session_id: str = "", *, key: str = "") -> list[dict[str, Any]]:
        """One POST to its end."""
        headers = {"content-type": "application/json"} | ({"idempotency-key": key} if key else {})
        path = f"{self.base}/{session_id}" if session_id else self.base
        answered = await self.http.post(path, content=orjson.dumps(body), headers=headers)
        assert answered.status_code == 200, answered.text
        return read(answered.text)

    async def history(self, session_id: str, index: int, last: int) -> list[dict[str, Any]]:
        """The stream of a session from one index to another."""
        told: list[dict[str, Any]] = []
        async with self.http.stream("GET", f"{self.base}/{session_id}/stream?startIndex={index}") as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    told.append(orjson.loads(line[6:]))
                    if told[-1]["index"] == last:
                        break
        return told


def read(text: str) -> list[dict[str, Any]]:
    """The events of a whole answer."""
    return [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def types(told: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in told]


async def test_a_run_with_a_tool_that_is_approved_and_one_that_is_denied(platform: Platform) -> None:
    async with api(platform.url) as client:
        door = Door(client, await client.agent(tools=ASKING))
        said = f"{tool('bash', command='echo from the sandbox')} {tool('bash', command='echo not this')}"
        paused = await door.send({"message": said})
        assert types(paused)[-2:] == ["input-requested"] * 2
        first, second = (event["requestId"] for event in paused[-2:])
        responses = [{"requestId": first, "optionId": "approve"}, {"requestId": second, "optionId": "deny"}]
        session_id = paused[0]["sessionId"]
        rest = await door.send({"inputResponses": responses}, session_id)
        assert types(rest)[0] == "started" and rest[0]["resumed"] and types(rest)[-1] == "completed"
        log = await client.log(session_id)
        results = {each["tool_use_id"]: str(each["content"]) for each in log if each["type"] == "agent.tool_result"}
        assert "from the sandbox" in results[first] and "denied" in results[second]
        whole = paused + rest
        assert [event["index"] for event in whole] == list(range(len(whole)))
        for index in range(len(whole)):
            assert await door.history(session_id, index, len(whole) - 1) == whole[index:]


async def test_a_slow_answer_arrives_bit_by_bit_and_can_be_cancelled(platform: Platform) -> None:
    async with api(platform.url) as client:
        door = Door(client, await client.agent())
        told: list[dict[str, Any]] = []
        headers = {"content-type": "application/json"}
        content = orjson.dumps({"message": "LEN:100 DELAY:100"})
        async with client.http.stream("POST", door.base, content=content, headers=headers) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                told.append(orjson.loads(line[6:]))
                if types(told).count("text-delta") == 3:
                    cancelled = await client.http.post(f"{door.base}/{told[0]['sessionId']}/cancel")
                    assert cancelled.json()["status"] == "cancelling"
        assert types(told)[-1] == "cancelled"
        assert await door.history(told[0]["sessionId"], 0, told[-1]["index"]) == told


def test_a_paused_run_and_the_keys_of_starts_outlive_the_end_of_everything(tmp_path: Path) -> None:
    data = tmp_path / "data"
    platform = Platform(data)
    try:
        platform.wait_healthy()
        agent_id, paused = asyncio.run(_before(platform.url, data))
    finally:
        kill_all(data)
        platform.process.wait(30)
    with running_platform(data) as again:
        asyncio.run(_after(again.url, agent_id, paused))


ASK = {"message": tool("ask_person", question="Which month?")}
# Longer than a busy machine needs to kill everything.
SLOW = {"message": "LEN:10 DELAY:1000"}


async def _before(url: str, data: Path) -> tuple[str, list[dict[str, Any]]]:
    async with api(url) as client:
        agent_id = await client.agent(tools=[QUESTION])
        door = Door(client, agent_id)
        paused = await door.send(ASK, key="once")
        assert types(paused)[-1] == "input-requested"
        # Its client is never told the end: everything dies first.
        lost = asyncio.create_task(door.send(SLOW, key="lost"))
        await await_until(lambda: _sessions(client, agent_id, 2), timeout=30)
        kill_all(data)
        # The gateway may see the others die, and end its answer, in the moment before it dies itself.
        with suppress(httpx2.TransportError):
            assert types(await lost)[-1] not in ("completed", "failed", "cancelled")
    return agent_id, paused


async def _after(url: str, agent_id: str, paused: list[dict[str, Any]]) -> None:
    async with api(url, timeout=60) as client:
        door = Door(client, agent_id)
        assert await door.send(ASK, key="once") == paused
        another = await client.http.post(door.base, json={"message": "another"}, headers={"idempotency-key": "once"})
        assert another.status_code == 409
        response = {"requestId": paused[-1]["requestId"], "text": "January."}
        rest = await door.send({"inputResponses": [response]}, paused[0]["sessionId"])
        assert types(rest)[-1] == "completed"
        # The same run again, with the end that it has found by itself, and no second one.
        told = await door.send(SLOW, key="lost")
        assert types(told)[0] == "started" and types(told)[-1] == "completed"
        assert await door.history(told[0]["sessionId"], 0, told[-1]["index"]) == told
        assert await _sessions(client, agent_id, 2)


async def _sessions(client: Api, agent_id: str, count: int) -> bool:
    return len((await client.call("GET", f"/v1/sessions?agent_id={agent_id}"))["data"]) == count
