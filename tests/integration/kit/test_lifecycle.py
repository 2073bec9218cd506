"""A real process starts in order, stops in reverse order, and ends with the code that says why."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.testing import await_until

CHILD = Path(__file__).with_name("lifecycle_child.py")
STARTED = ["start one", "start two", "start three", "ready"]
STOPPED = ["stop three", "stop two", "task ended", "stop one"]


class Child:
    """The child process with the lines that it printed so far."""

    def __init__(self, mode: str, *arguments: str, **options) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MANAGED_AGENTS_")}
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), mode, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | options.pop("env", {}),
            **options,
        )
        self.lines: list[str] = []

    def until(self, line: str) -> "Child":
        while (got := self.process.stdout.readline().strip()) != line:
            assert got, f"ended before {line!r}: {self.lines} {self.process.stderr.read()}"
            self.lines.append(got)
        self.lines.append(line)
        return self

    def end(self) -> int:
        output, self.errors = self.process.communicate(timeout=20)
        self.lines += output.split("\n")[:-1]
        return self.process.returncode

    def logged(self, event: str) -> dict:
        (entry,) = [entry for entry in map(json.loads, self.errors.splitlines()) if entry["event"] == event]
        return entry


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_parts_in_reverse_order(number):
    child = Child("plain").until("ready")
    child.process.send_signal(number)
    assert child.end() == 0
    assert child.lines == STARTED + STOPPED


def test_a_task_that_swallows_its_cancellation_is_stopped_all_the_same():
    child = Child("swallows").until("ready")
    child.process.send_signal(signal.SIGTERM)
    assert child.end() == 0
    assert child.lines == [*STARTED, "stop three", "swallowed", "stop two", "task ended", "stop one"]
    assert "a part did not stop in time" not in child.errors


def test_the_end_of_the_supervisor_stops_in_order():
    reading, writing = os.pipe()
    child = Child("plain", str(reading), pass_fds=[reading])
    os.close(reading)
    child.until("ready")
    os.close(writing)
    assert child.end() == 0
    assert child.lines == STARTED + STOPPED
    assert child.logged("the supervisor is gone")["service"] == "child"


def test_a_task_that_dies_takes_the_process_down_with_its_cause():
    child = Child("dies")
    assert child.end() == 1
    assert child.lines == [*STARTED, *STOPPED]
    died = child.logged("a background task died")
    assert died["task"] == "dying"
    assert "ValueError: the cause" in died["exception"]


def test_a_task_may_end_by_itself():
    child = Child("ends").until("ready")
    child.process.terminate()
    assert child.end() == 0


def test_a_failed_start_undoes_what_had_started():
    child = Child("fails")
    assert child.end() == 1
    assert child.lines == ["start one", "start two", "stop failing", "stop two", "stop one"]
    assert "ValueError: the cause" in child.logged("could not start")["exception"]


def test_a_signal_during_the_start_undoes_it_too():
    child = Child("start-hangs").until("hanging")
    child.process.terminate()
    assert child.end() == 0
    assert child.lines[-4:] == ["stop slow", "stop two", "task ended", "stop one"]


def test_a_part_that_hangs_or_fails_does_not_keep_the_others_from_stopping():
    for mode, event in (("stop-hangs", "a part did not stop in time"), ("stop-fails", "a part failed to stop")):
        child = Child(mode).until("ready")
        child.process.terminate()
        assert child.end() == 0
        assert child.lines[-3:] == ["stop two", "task ended", "stop one"]
        assert child.logged(event)["part"] in ("stuck", "broken")


def test_a_second_signal_ends_the_process_at_once():
    child = Child("stop-hangs-long").until("ready")
    child.process.terminate()
    child.process.terminate()
    # Both at nearly the same time are one request: it is still stopping in order.
    child.until("hanging")
    await_until(lambda: child.process.terminate() or child.process.poll() is not None)
    assert child.end() == 128 + signal.SIGTERM
    assert "stop one" not in child.lines


def test_an_unusable_environment_is_told_in_one_message():
    child = Child("config", env={"MANAGED_AGENTS_NUMBER": "many"})
    assert child.end() == 2
    assert "MANAGED_AGENTS_NEEDED" in child.errors
    assert "MANAGED_AGENTS_NUMBER" in child.errors
    assert "Traceback" not in child.errors
