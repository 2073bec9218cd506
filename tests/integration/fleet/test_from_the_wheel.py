"""The fleet program from our own wheel, in an environment with what the wheel declares and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.integration.fleet.harness import answered
from tests.support.requirements import needed
from tests.support.session_server import SessionServer
from tests.support.work_server import ENVIRONMENT, KEY, WorkServer

ROOT = Path(__file__).parents[3]
# Every module of ours that the command can come to load, and all names that these import, wherever in a module.
_WALK = """
import ast, importlib, json, pkgutil, sys
from importlib.util import find_spec
from pathlib import Path

def inside(name):
    return name.partition(".")[0] in ("cli", "kit", "services")

def is_module(name):
    try:
        return find_spec(name) is not None
    except (ImportError, AttributeError):
        return False

waiting = ["cli.worker"]
for package in ("fleet", "sandbox", "tools", "memory"):
    found = importlib.import_module("services.worker." + package)
    waiting += [each.name for each in pkgutil.walk_packages(found.__path__, found.__name__ + ".")]
seen, missing, places = set(), set(), set()
while waiting:
    name = waiting.pop()
    if name in seen:
        continue
    seen.add(name)
    spec = find_spec(name)
    if spec is None:
        missing.add(name)
        continue
    places.add(spec.origin)
    is_package = spec.submodule_search_locations is not None
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            below = [base + "." + alias.name for alias in node.names] if inside(base) else []
            names = [base, *filter(is_module, below)]
        else:
            continue
        waiting += [each for each in names if inside(each)]
        # A program that is started by its path finds what lies beside it.
        beside = [each for each in names if Path(spec.origin).with_name(each + ".py").exists()]
        waiting += [name.rpartition(".")[0] + "." + each for each in beside]
        names = [each for each in names if each not in beside]
        tops = {each.partition(".")[0] for each in names if not inside(each)} - set(sys.stdlib_module_names)
        missing |= {each for each in tops if not is_module(each)}
print(json.dumps([sorted(seen), sorted(missing), sorted(places)]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with our wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = [*pip, "wheel", "--no-build-isolation", "--no-index", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(built, check=True, timeout=100, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    install = [*pip, "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, timeout=100, cwd=folder)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (metadata,) = site.glob("managed_agents-*.dist-info/METADATA")
    # What stands in the wheel itself counts; extras are not asked for.
    for name in needed(re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(), re.MULTILINE)):
        _lend(name, site)
    return folder / "venv" / "bin"


def _lend(name: str, site: Path) -> None:
    """The files of a package that is installed here."""
    for file in distribution(name).files or ():
        target = site / file
        if ".." in file.parts or target.exists() or not (source := Path(str(file.locate()))).is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)


def test_all_that_the_program_can_load_is_in_the_wheel_or_declared_by_it(installed: Path) -> None:
    line = [str(installed / "python"), "-I", "-c", _WALK]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, cwd=installed)
    assert done.returncode == 0, done.stderr
    seen, missing, places = json.loads(done.stdout)
    assert missing == []
    assert {"services.worker.fleet.app", "services.worker.fleet.session.run", "services.worker.sandbox.proxy"} <= set(
        seen
    )
    assert all(Path(place).is_relative_to(installed.parent) for place in places)


async def poll(installed: Path, server: WorkServer, workdir: Path, *arguments: str) -> str:
    """`managed-agents worker poll --once` as an operator runs it; what it said."""
    told = {"MANAGED_AGENTS_URL": server.url, "MANAGED_AGENTS_ENVIRONMENT_ID": ENVIRONMENT}
    process = await asyncio.create_subprocess_exec(
        *(
            str(installed / "managed-agents"),
            "worker",
            "poll",
            "--once",
            "--json",
            "--workdir",
            str(workdir),
            *arguments,
        ),
        env={"PATH": os.environ["PATH"], "HOME": str(workdir), "MANAGED_AGENTS_ENVIRONMENT_KEY": KEY, **told},
        cwd=workdir,
        stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def test_the_installed_program_runs_an_item(installed: Path, server: WorkServer, tmp_path: Path) -> None:
    item = server.put("exec", {"command": "echo from the wheel > made; cat made"})
    said = await poll(installed, server, tmp_path)
    assert server.completed[item]["result"]["stdout"] == "from the wheel\n"
    assert "Traceback" not in said


async def test_the_installed_program_serves_a_session(installed: Path, sessions: SessionServer, tmp_path: Path) -> None:
    session = sessions.session()
    calls = [
        session.call("write", {"file_path": "x.txt", "content": "one\n"}),
        session.call("bash", {"command": "cat x.txt"}),
        session.call("grep", {"pattern": "o.e"}),
    ]
    session.park(*calls)
    sessions.queue(session)
    polling = asyncio.create_task(poll(installed, sessions, tmp_path, "--max-idle-seconds", "0"))
    await answered(session, *calls, seconds=30)
    session.rest()
    said = await polling
    assert session.text(calls[1]) == "one" and "x.txt" in session.text(calls[2])
    assert "Traceback" not in said
