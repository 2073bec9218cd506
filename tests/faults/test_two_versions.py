"""While an upgrade is under way, runners and services of two versions work together.

The former version comes from the history. Where a checkout has none, the contracts are still compared with the frozen
copy of them in this folder: whatever a process of the former version says must mean the same to one of today.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import versions
from tests.faults.conftest import SHORT_KILLS
from tests.faults.ground import Ground
from tests.faults.test_kills import check_outbox, check_session
from tests.faults.versions import ROOT, NoHistory
from tests.faults.workload import Client
from tests.support.api import CUSTOM_TOOL, TOOLS, api

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# Made by `buf build protos -o tests/faults/contracts.binpb`, anew with each release.
FROZEN = Path(__file__).with_name("contracts.binpb")
RULES = {
    "version": "v2",
    "modules": [{"path": "protos"}],
    "breaking": {"use": ["WIRE_JSON", "RPC_NO_DELETE", "PACKAGE_SERVICE_NO_DELETE"]},
}
FORMER = {"before the contracts changed": versions.before_the_contracts_changed, "last": versions.the_last_commit}
TURNS = 4


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The short form is content with the version that differs most."""
    if "which" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("--kills", SHORT_KILLS) > SHORT_KILLS
        metafunc.parametrize("which", list(FORMER)[: 2 if is_long else 1])


@pytest.fixture
def former(which: str, tmp_path: Path) -> Path:
    """The former version, unpacked."""
    try:
        return versions.unpack(FORMER[which](), tmp_path / "former")
    except NoHistory as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("newer", ["services", "runner"])
async def test_turns_with_tools_go_on_while_versions_differ(
    tmp_path: Path, former: Path, newer: str, seed: int
) -> None:
    services, runner = (ROOT, former) if newer == "services" else (former, ROOT)
    ground = Ground(tmp_path / "data", environment={"PYTHONPATH": versions.python_path(services)})
    try:
        await ground.until_ready()
        async with versions.runner_of(runner, ground), api(ground.platform.url) as client:
            agent_id = await client.agent(tools=[*TOOLS, CUSTOM_TOOL])
            clients = [Client(client, random.Random(f"{seed} {number}"), agent_id) for number in range(3)]
            await asyncio.gather(*(one.run(lambda one=one: one.turns >= TURNS) for one in clients))
            assert any(one.told.lines for one in clients), "no tool ran"
            faults = [fault for one in clients for fault in await check_session(ground, client, one)]
            assert not faults, "\n".join(faults)
            logs = {one.told.session_id: await client.log(one.told.session_id) for one in clients}
            assert "session.error" not in {event["type"] for log in logs.values() for event in log}
            await check_outbox(ground, logs)
    finally:
        ground.stop()


def _broken(protos: Path, against: Path) -> str:
    """What a process that speaks the other contracts would misunderstand; empty where nothing."""
    buf = Path(sys.executable).with_name("buf")
    done = subprocess.run(
        [str(buf), "breaking", ".", "--config", json.dumps(RULES), "--against", str(against)],
        cwd=protos.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 100), done.stderr
    return done.stdout


def test_the_contracts_mean_what_they_meant_when_frozen() -> None:
    assert _broken(ROOT / "protos", FROZEN) == ""


def test_the_contracts_mean_what_they_meant_in_the_former_version(former: Path) -> None:
    assert _broken(ROOT / "protos", former) == ""


@pytest.mark.parametrize(
    ("pattern", "replacement", "told"),
    [
        (r"  int64 epoch = (\d+);", r"  string epoch = \1;", "changed type"),
        (r"  int64 epoch = (\d+);", r"", "deleted"),
        (r"rpc AppendTurnEvents\(", "rpc AppendEventsOfTurn(", "deleted"),
    ],
)
def test_a_change_that_old_processes_misunderstand_is_found(
    tmp_path: Path, pattern: str, replacement: str, told: str
) -> None:
    protos = shutil.copytree(ROOT / "protos", tmp_path / "protos")
    turns = protos / "managed_agents" / "sessions" / "v1" / "turns.proto"
    turns.write_text(re.sub(pattern, replacement, turns.read_text(), count=1))
    found = _broken(protos, FROZEN)
    assert told in found
