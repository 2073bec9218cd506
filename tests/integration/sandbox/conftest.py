"""Sandboxes of every kind that this host offers, as whoever runs the tests."""

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from services.worker.sandbox import SandboxLimits, SandboxManager
from tests.support.sandboxes import known_host

KINDS = ("bubblewrap", "landlock", "process")
MIB = 1024 * 1024
LIMITS = replace(
    SandboxLimits(), memory_bytes=256 * MIB, processes=64, disk_bytes=64 * MIB, file_bytes=32 * MIB, open_files=256
)


class Session:
    """One session of a manager, with the calls that tests make all the time."""

    def __init__(self, manager: SandboxManager, session_id: str, environment: dict) -> None:
        self.sandbox = manager.session(session_id, environment)
        self.id = session_id

    async def bash(self, command: str, **more):
        return await self.sandbox.run_tool("bash", {"command": command, **more})

    async def text(self, command: str) -> str:
        """Output of a command that must succeed."""
        outcome = await self.bash(command)
        assert not outcome.is_error, outcome.text
        return outcome.text

    async def tool(self, tool: str, **value):
        return await self.sandbox.run_tool(tool, value)


def processes_with(word: str) -> list[int]:
    """Pids on the host whose command line has `word`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as stream:
                    if word.encode() in stream.read():
                        found.append(int(name))
            except OSError:
                continue
    return found


@pytest.fixture(scope="package", autouse=True)
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This one, looked at once."""
    with known_host(tmp_path_factory.mktemp("host")):
        yield


@pytest.fixture
def make_manager(tmp_path_factory):
    """Managers that are closed at the end of the test."""
    made: list[SandboxManager] = []

    def make(kind: str = "auto", **options) -> SandboxManager:
        # Short: the folder is looked up with every path, and is shown in failures.
        root = options.pop("root", None) or tmp_path_factory.mktemp("sbx")
        manager = SandboxManager(root, kind=kind, limits=options.pop("limits", LIMITS), **options)
        if manager.describe().kind != kind and kind != "auto":
            pytest.skip(f"{kind}: {' '.join(manager.describe().notes)}")
        made.append(manager)
        return manager

    make.made = made
    return make


@pytest.fixture(params=KINDS)
async def manager(request, make_manager) -> AsyncIterator[SandboxManager]:
    """A manager of each kind."""
    manager = make_manager(request.param)
    yield manager
    await manager.aclose()


@pytest.fixture
async def bubblewrap(make_manager) -> AsyncIterator[SandboxManager]:
    """A manager of the kind with its own view, which a host must offer for these tests."""
    manager = make_manager("bubblewrap")
    yield manager
    await manager.aclose()


@pytest.fixture
def session(manager) -> Session:
    return Session(manager, "sess_one", {})


@pytest.fixture
def isolated(bubblewrap) -> Session:
    return Session(bubblewrap, "sess_one", {})
