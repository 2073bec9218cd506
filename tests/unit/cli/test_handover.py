"""Proves that what was parsed reaches the process that goes on, and that nothing is lost where none can."""

import os
import signal
import sys
from typing import Any

import pytest

from cli import handover

WANTED = {"host": "::1", "port": 3000, "database_url": "postgresql://admin:pässword@db/agents"}


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], dict[str, str]]]:
    """What `give` executed; the fake returns as if it could not."""
    calls = []

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        # The descriptor that is named is the next process's; this one keeps a copy for the test.
        environment["MANAGED_AGENTS_HANDED_FD"] = str(os.dup(int(environment["MANAGED_AGENTS_HANDED_FD"])))
        calls.append((path, arguments, environment))
        raise OSError("no such program")

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(handover, "allowed", True)
    return calls


def test_what_was_parsed_arrives(executed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    before, descriptors = signal.pthread_sigmask(signal.SIG_BLOCK, ()), len(os.listdir("/proc/self/fd"))
    handover.give(WANTED)
    ((path, arguments, environment),) = executed
    assert (path, arguments) == (sys.executable, [sys.executable, *sys.orig_argv[1:]])
    assert "pässword" not in "".join([*arguments, *environment.values()])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before

    monkeypatch.setenv("MANAGED_AGENTS_HANDED_FD", environment["MANAGED_AGENTS_HANDED_FD"])
    assert handover.taken() == WANTED
    assert handover.taken() is None
    assert "MANAGED_AGENTS_HANDED_FD" not in os.environ
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_who_calls_a_command_from_python_stays(executed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "allowed", False)
    handover.give(WANTED)
    assert executed == []


def test_what_does_not_fit_a_pipe_stays(executed: list[Any]) -> None:
    handover.give({"database_url": "x" * 1_000_000})
    assert executed == []


@pytest.mark.parametrize("named", ["", "x", "-1"])
def test_a_process_that_follows_none_takes_nothing(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANAGED_AGENTS_HANDED_FD", named)
    assert handover.taken() is None
