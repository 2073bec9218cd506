"""Memory on a whole platform that dies with -9 around the write-back: each edit is in the store, once."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kit.testing import await_until
from tests.faults.ground import Ground
from tests.support.api import Api, Refused, api, message, tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
NOTES = "/mnt/memory/notes"


async def _session(client: Api) -> tuple[str, str]:
    store_id = (await client.call("POST", "/v1/memory_stores", {"name": "Notes"}))["id"]
    await client.call("POST", f"/v1/memory_stores/{store_id}/memories", {"path": "/log.md", "content": "start\n"})
    resources = [{"type": "memory_store", "memory_store_id": store_id}]
    session = await client.call("POST", "/v1/sessions", {"agent": await client.agent(), "resources": resources})
    return session["id"], store_id


async def _run(client: Api, session_id: str, command: str, turns: int) -> None:
    key = uuid.uuid4().hex

    async def sent() -> bool:
        try:
            await client.send(session_id, message(tool("bash", command=command)), key=key)
        except (Refused, httpx2.TransportError) as failed:
            assert not isinstance(failed, Refused) or failed.status >= 500, failed
            return False
        return True

    async def idle() -> bool:
        try:
            log = await client.log(session_id)
        except (Refused, httpx2.TransportError):
            return False
        return sum(event["type"] == "session.status_idle" for event in log) >= turns

    await await_until(sent, timeout=60, message="the message is taken")
    await await_until(idle, timeout=90, message=f"{session_id} is idle after {turns} turns")


async def _texts(client: Api, store_id: str) -> dict[str, str]:
    answer = await client.call("GET", f"/v1/memory_stores/{store_id}/memories?view=full")
    return {each["path"]: each["content"] for each in answer["data"]}


async def _versions(client: Api, store_id: str) -> list[dict[str, Any]]:
    return (await client.call("GET", f"/v1/memory_stores/{store_id}/memory_versions?limit=100"))["data"]


@pytest.mark.parametrize(
    "point", [pytest.param("runner.memory.changed=kill@2", marks=pytest.mark.long), "runner.memory.pushed=kill@2"]
)
async def test_each_edit_is_stored_once_whatever_dies(tmp_path: Path, point: str) -> None:
    ground = Ground(tmp_path / "data", failpoints=point)
    try:
        await ground.until_ready()
        async with api(ground.platform.url) as client:
            session_id, store_id = await _session(client)
            expected = {"/log.md": "start\n"}
            for number in range(4):
                command = f"cd {NOTES}; echo {number} >> log.md; echo {number} > {number}.md"
                await _run(client, session_id, command, number + 1)
                expected["/log.md"] += f"{number}\n"
                expected[f"/{number}.md"] = f"{number}\n"
                assert await _texts(client, store_id) == expected
            assert "ended with SIGKILL" in ground.platform.output(), "no point was reached"
            versions = await _versions(client, store_id)
            assert len(versions) == 1 + 4 * 2
            assert {each["session_id"] for each in versions if each["version"] > 1} == {session_id}
    finally:
        ground.stop()


async def test_a_power_cut_takes_no_edit_and_the_next_turn_starts_in_the_folder(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "data")
    try:
        await ground.until_ready()
        async with api(ground.platform.url) as client:
            session_id, store_id = await _session(client)
            await _run(client, session_id, f"echo edited > {NOTES}/log.md", 1)
        ground.kill_everything()
        ground.start_again()
        await ground.until_ready()
        async with api(ground.platform.url) as client:
            assert await _texts(client, store_id) == {"/log.md": "edited\n"}
            await _run(client, session_id, f"cat {NOTES}/log.md > {NOTES}/copy.md", 2)
            assert await _texts(client, store_id) == {"/copy.md": "edited\n", "/log.md": "edited\n"}
            log = await client.log(session_id)
            assert not [each for each in log if each["type"] == "session.error"]
    finally:
        ground.stop()
