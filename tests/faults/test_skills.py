"""Skills on a whole platform that dies with -9 in the worst moments of an upload and of a mount."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kit.archives import Limits, read_zip
from kit.testing import await_until
from tests.e2e.leftovers import processes_of
from tests.faults.ground import Ground
from tests.support.api import Api, Refused, api, message, tool
from tests.support.skills import as_form, package

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
# A runner that unpacked a skill dies at once; the next one finds it in its place.
POINTS = ("skills.stored=kill@3", "skills.before_commit=kill@4", "runner.skills.unpacked=kill@1")
VERSIONS = 8


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    made = Ground(tmp_path / "data", failpoints=",".join(POINTS))
    try:
        await made.until_ready()
        yield made
    finally:
        made.stop()
    await await_until(lambda: processes_of(made.data_dir) == [], timeout=30)


async def _upload(http: httpx2.AsyncClient, path: str, body: str) -> dict[str, Any]:
    """Send until it is answered, as a client with a key does."""
    answers: list[httpx2.Response] = []

    async def taken() -> bool:
        try:
            answer = await http.post(path, files=as_form(package(body=body)), headers={"idempotency-key": body})
        except httpx2.TransportError:
            return False
        assert answer.status_code == 200 or answer.status_code >= 500, answer.text
        answers.append(answer)
        return answer.status_code == 200

    await await_until(taken, timeout=60, message=f"{body} is uploaded")
    return answers[-1].json()


async def test_an_upload_is_there_whole_or_not_at_all_and_a_mount_is_made_again(ground: Ground) -> None:
    async with httpx2.AsyncClient(base_url=ground.platform.url, timeout=30) as http, api(ground.platform.url) as client:
        skill = await _upload(http, "/v1/skills", "body 0")
        path = f"/v1/skills/{skill['id']}/versions"
        told = [skill["latest_version_id"]]
        for number in range(1, VERSIONS):
            told.append((await _upload(http, path, f"body {number}"))["id"])
        assert "ended with SIGKILL" in ground.platform.output(), "no point was reached"

        listed = (await http.get(path, params={"limit": 100})).json()["data"]
        # What was answered is there, in its order; nothing came twice.
        assert [each["id"] for each in listed] == told[::-1]
        for number, version in enumerate(reversed(listed)):
            content = (await http.get(f"{path}/{version['id']}/content")).content
            assert hashlib.sha256(content).hexdigest() == version["sha256"]
            files = {file.name: file.data for file in read_zip(content, Limits())}
            assert files == package(body=f"body {number}")

        await _runs_with(client, skill["id"])


async def _runs_with(client: Api, skill_id: str) -> None:
    """Each session costs a runner its life."""
    agent = await client.agent(skills=[{"type": "custom", "skill_id": skill_id}])
    for _ in range(2):
        session = await client.call("POST", "/v1/sessions", {"agent": agent})
        await client.send(session["id"], message(tool("bash", command="cat /mnt/session/skills/greeter/SKILL.md")))

        async def idle(session_id: str = session["id"]) -> bool:
            try:
                log = await client.log(session_id)
            except (httpx2.TransportError, Refused):
                return False
            return log[-1]["type"] == "session.status_idle"

        await await_until(idle, timeout=60, message="the turn is over")
        log = await client.log(session["id"])
        result = next(event for event in log if event["type"] == "agent.tool_result")
        assert f"body {VERSIONS - 1}" in result["content"][0]["text"]
