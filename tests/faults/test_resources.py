"""Files, repositories and outputs on a whole platform that dies with -9 in the worst moments."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from kit.testing import await_until
from tests.faults.ground import Ground
from tests.support.api import Api, Refused, api, message, tool
from tests.support.git_server import GitServer, Repository, git_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TOKEN = "ghp_canary0123456789"
OUT = "/mnt/session/outputs"
PRIVATE = {"MANAGED_AGENTS_ALLOWED_PRIVATE_HOSTS": "127.0.0.1"}


async def _session(client: Api, server: GitServer) -> tuple[str, list[dict[str, Any]]]:
    file = {"name": "given.txt", "content": "given", "encoding": "utf8"}
    file_id = (await client.call("POST", "/v1/files", file))["id"]
    repository = {"type": "github_repository", "url": server.url("project"), "authorization_token": TOKEN}
    resources = [{"type": "file", "file_id": file_id, "mount_path": "/src/given.txt"}, repository]
    session = await client.call("POST", "/v1/sessions", {"agent": await client.agent(), "resources": resources})
    assert [each["type"] for each in session["resources"]] == ["file", "github_repository"]
    assert session["resources"][0]["file_id"] == file_id
    return session["id"], session["resources"]


async def _idle(client: Api, session_id: str, turns: int) -> list[dict[str, Any]]:
    async def reached() -> bool:
        try:
            log = await client.log(session_id)
        except (Refused, httpx2.TransportError):
            return False
        return sum(event["type"] == "session.status_idle" for event in log) >= turns

    await await_until(reached, timeout=90, message=f"{session_id} is idle after {turns} turns")
    return await client.log(session_id)


async def _run(client: Api, session_id: str, command: str, turns: int) -> list[dict[str, Any]]:
    key = uuid.uuid4().hex

    async def sent() -> bool:
        # A client asks again with the same key, as the published one does.
        try:
            await client.send(session_id, message(tool("bash", command=command)), key=key)
        except (Refused, httpx2.TransportError) as failed:
            assert not isinstance(failed, Refused) or failed.status >= 500, failed
            return False
        return True

    await await_until(sent, timeout=60, message="the message is taken")
    return await _idle(client, session_id, turns)


async def _outputs(client: Api, session_id: str) -> dict[str, str]:
    listed = await client.call("GET", f"/v1/files?scope_id={session_id}&limit=100")
    return {each["filename"]: each["id"] for each in listed["data"] if each["filename"] != "given.txt"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GitServer]:
    async with git_server(tmp_path / "served") as running:
        running.token = TOKEN
        made = Repository(running.root, "project")
        made.commit("README.md", "hello\n")
        made.publish()
        yield running


@pytest.mark.parametrize(
    "point",
    [
        "runner.outputs.recorded=kill@2",
        *(pytest.param(f"{point}=kill@3", marks=pytest.mark.long) for point in ("blobs.kept", "files.saved")),
    ],
)
async def test_outputs_are_listed_once_whatever_dies(tmp_path: Path, server: GitServer, point: str) -> None:
    ground = Ground(tmp_path / "data", failpoints=point, environment=PRIVATE)
    try:
        await ground.until_ready()
        async with api(ground.platform.url) as client:
            session_id, _ = await _session(client, server)
            for number in range(3):
                command = f"cat /mnt/session/uploads/src/given.txt project/README.md > {OUT}/{number}.txt"
                await _run(client, session_id, command, number + 1)
                assert len(await _outputs(client, session_id)) == number + 1
            found = await _outputs(client, session_id)
            await _run(client, session_id, f"for n in 0 1 2; do echo again >> {OUT}/$n.txt; done", 4)
            assert await _outputs(client, session_id) == found, "a file keeps its id"
            assert "ended with SIGKILL" in ground.platform.output(), "no point was reached"
    finally:
        ground.stop()


async def test_a_power_cut_takes_nothing_that_was_attached_or_delivered(tmp_path: Path, server: GitServer) -> None:
    ground = Ground(tmp_path / "data", environment=PRIVATE)
    try:
        await ground.until_ready()
        async with api(ground.platform.url) as client:
            session_id, resources = await _session(client, server)
            await _run(client, session_id, f"cp project/README.md {OUT}; echo mine > project/mine.txt", 1)
            delivered = await _outputs(client, session_id)
        ground.kill_everything()
        ground.start_again()
        await ground.until_ready()
        async with api(ground.platform.url) as client:
            listed = await client.call("GET", f"/v1/sessions/{session_id}/resources")
            assert listed["data"] == resources and TOKEN not in orjson.dumps(listed).decode()
            assert await _outputs(client, session_id) == delivered
            log = await _run(client, session_id, "cat /mnt/session/uploads/src/given.txt project/mine.txt", 2)
            (result,) = [each for each in log if each["type"] == "agent.tool_result"][-1]["content"]
            assert result["text"].startswith("givenmine")
            assert not [each for each in log if each["type"] == "session.error"]
    finally:
        ground.stop()
