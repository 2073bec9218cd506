"""How long the fault tests run: the short form by default, `--kills` and `--sessions` for the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent
# The clients' HTTP library forgets to close a connection that a killed server breaks while it is being opened. What the
# platform itself leaves open is counted by the tests (`census.py`).
_LEFT_BY_A_CLIENT = "ignore:Exception ignored in. .socket.socket fd=:pytest.PytestUnraisableExceptionWarning"
SHORT_KILLS, SHORT_SESSIONS, SHORT_OUTAGE_SECONDS, SHORT_ITEMS = 15, 8, 3.0, 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that exist only where this folder is named on the command line."""
    parser.addoption("--kills", type=int, default=SHORT_KILLS, help="harms that the nemesis does")
    parser.addoption("--sessions", type=int, default=SHORT_SESSIONS, help="sessions that work meanwhile")
    parser.addoption("--outage", type=float, default=SHORT_OUTAGE_SECONDS, help="seconds that a server is away")
    parser.addoption("--work-items", type=int, default=SHORT_ITEMS, help="items that workers are given")
    parser.addoption("--fault-seed", type=int, default=20261129, help="seed of the nemesis and the clients")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Servers die under the clients of every test here."""
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(_LEFT_BY_A_CLIENT))


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How often something is killed or paused."""
    return request.config.getoption("--kills", SHORT_KILLS)


@pytest.fixture
def sessions(request: pytest.FixtureRequest) -> int:
    """How many sessions work."""
    return request.config.getoption("--sessions", SHORT_SESSIONS)


@pytest.fixture
def outage_seconds(request: pytest.FixtureRequest) -> float:
    """How long something that the platform stands on is away."""
    return request.config.getoption("--outage", SHORT_OUTAGE_SECONDS)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Where chance begins."""
    return request.config.getoption("--fault-seed", 20261129)


@pytest.fixture
def items(request: pytest.FixtureRequest) -> int:
    """How many items workers are given."""
    return request.config.getoption("--work-items", SHORT_ITEMS)
