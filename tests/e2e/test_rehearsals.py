"""Rehearsals of our own agents on a whole platform: the demo model plays, by id and by the URL of its steps.

And one that goes in a circle: what the platform's engine `http` asks an outside agent, and what its steps answer, come
to the same as asking that agent itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.rehearse.running import Wanted, run
from tests.integration.rehearse.agents import EXAMPLES, example_agent
from tests.support.api import api, tool
from tests.support.platform import Platform, running_platform
from tests.unit.rehearse.domains import FILES, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

# The demo model calls the tools that a message names, so fixed turns play a whole agent.
LOOK, TAKE = tool("get_locker", id="A"), tool("take_locker", id="A", holder="Lou")
PAY = tool("pay", locker="C", amount=2)


def _task(*turns: str, end: str) -> str:
    return json.dumps({"turns": list(turns)})[:-1] + f', "end": [{end}]}}'


TASKS = {
    "tasks/take.yaml": _task(LOOK, TAKE, end="{equal: {table: lockers, key: A, columns: {holder: Lou, uses: 4}}}"),
    # The same words twice in a row are two turns.
    "tasks/pay-twice.yaml": _task(PAY, PAY, end="{present: {table: payments, where: {locker: C}, count: 2}}"),
    "tasks/both-at-once.yaml": _task(f"{LOOK} {PAY}", end="{present: {table: payments, count: 1}}"),
    "tasks/unseen.yaml": _task(TAKE, end="{present: {table: lockers, where: {holder: Lou}}}"),
}


async def _report(domain: Path, agent: str, base_url: str, **options: Any) -> dict[str, Any]:
    file = domain.parent / "report.json"
    await run(Wanted(domain, agent, base_url, json_file=file, timeout_seconds=60, **options))
    return json.loads(file.read_text())


async def test_an_agent_of_ours_is_rehearsed_by_its_id(platform: Platform, tmp_path: Path) -> None:
    domain = write(tmp_path / "lockers", {**FILES, **TASKS})
    async with api(platform.url, timeout=60) as client:
        agent = await client.agent()
        report = await _report(domain, agent, platform.url, trials=3, concurrency=6)
        failed = {(task["id"], f["name"]) for task in report["tasks"] for t in task["trials"] for f in t["failures"]}
        assert failed == {("unseen", "looked-first")}, report
        assert (report["passed"], report["failed"]) == (9, 3)
        # Each trial is a session of its own, named after the trial.
        found = await client.call("GET", f"/v1/sessions?agent_id={agent}&limit=100")
        sessions = [trial["session_id"] for task in report["tasks"] for trial in task["trials"]]
        assert sorted(each["title"] for each in found["data"]) == sorted(sessions)


async def test_the_steps_of_an_agent_of_ours_are_an_http_agent_like_any(platform: Platform, tmp_path: Path) -> None:
    domain = write(tmp_path / "lockers", {**FILES, "tasks/take.yaml": TASKS["tasks/take.yaml"]})
    async with api(platform.url, timeout=60) as client:
        url = f"{platform.url}/v1/agents/{await client.agent()}/step"
        report = await _report(domain, url, "", trials=2)
        assert report["passed"] == 2
        failing = write(
            tmp_path / "failing", {**FILES, "tasks/take.yaml": _task("FAIL:400", end="{unchanged: {table: lockers}}")}
        )
        (task,) = (await _report(failing, url, ""))["tasks"]
        (failure,) = task["trials"][0]["failures"]
        assert (
            failure["kind"] == "runtime" and "status 502: " in failure["told"] and "step_turn_failed" in failure["told"]
        )


@pytest.fixture(scope="module")
def open_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform whose operator lets it reach agents on loopback."""
    allowed = {"MANAGED_AGENTS_ALLOWED_PRIVATE_HOSTS": "127.0.0.1"}
    with running_platform(tmp_path_factory.mktemp("circle") / "data", environment=allowed) as running:
        yield running


async def _conversations(domain: Path, agent: str, base_url: str, file: Path) -> list[Any]:
    """Everything that was said, called and found, without the ids of calls."""
    await run(Wanted(domain, agent, base_url, trials=2, json_file=file))
    return _without_ids(file)


def _without_ids(file: Path) -> list[Any]:
    return [
        (trial["failures"], [{**line, "id": None} for line in trial["transcript"]])
        for task in json.loads(file.read_text())["tasks"]
        for trial in task["trials"]
    ]


@pytest.mark.parametrize("domain", ["hotel-desk", "parts-warehouse"])
async def test_an_outside_agent_does_the_same_through_our_platform(
    open_platform: Platform, tmp_path: Path, domain: str
) -> None:
    for name in ("agent", "wrong_agent"):
        with example_agent(domain, name) as url:
            async with api(open_platform.url, timeout=60) as client:
                engine = {"provider": "http", "options": {"url": url}}
                agent = await client.agent(tools=[], loop_engine=engine)
            itself = await _conversations(EXAMPLES / domain, url, "", tmp_path / "itself.json")
            through = await _conversations(EXAMPLES / domain, agent, open_platform.url, tmp_path / "through.json")
        assert through == itself
        assert any(failures for failures, _ in itself) is (name == "wrong_agent")
