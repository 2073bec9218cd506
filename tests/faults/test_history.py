"""The judge of histories finds each fault that is planted in a sound one; what finds nothing proves nothing."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import pytest

from tests.faults.census import grown
from tests.faults.history import epoch_faults, faults_of, line_faults, stream_faults
from tests.support.api import Event

IDLE = {"stop_reason": {"type": "end_turn"}}
TEXT = [{"type": "text", "text": "one"}]


def _log(*entries: tuple[str, dict]) -> list[Event]:
    moment = "2026-11-29T21:08:47.{:06}Z"
    return [
        {
            "id": f"sevt_{seq}",
            "type": kind,
            "seq": seq,
            "created_at": moment.format(seq),
            "processed_at": moment.format(seq),
            **fields,
        }
        for seq, (kind, fields) in enumerate(entries, 1)
    ]


SOUND = _log(
    ("user.message", {"content": TEXT}),
    ("session.status_running", {}),
    ("span.model_request_start", {}),
    ("agent.tool_use", {"name": "bash", "input": {"command": "echo abc"}}),
    ("span.model_request_end", {"model_request_start_id": "sevt_3"}),
    ("session.status_rescheduled", {}),
    ("session.status_running", {}),
    ("agent.tool_result", {"tool_use_id": "sevt_4", "is_error": False}),
    ("span.model_request_start", {}),
    ("span.model_request_end", {"model_request_start_id": "sevt_9"}),
    ("session.status_idle", IDLE),
)
Plant = Callable[[list[Event]], object]


def _twice(log: list[Event], seq: int) -> None:
    log.insert(seq, {**log[seq - 1], "id": "sevt_new"})
    for number, event in enumerate(log, 1):
        event["seq"] = number


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (lambda log: log.pop(2), "seq is not"),
        (lambda log: log[4].update(id="sevt_4"), "sevt_4 is there 2 times"),
        (lambda log: log[4].update(created_at="2026-11-29T21:08:47.000001Z"), "times run backwards"),
        (lambda log: log[0].update(id="sevt_x"), "sevt_1 is lost"),
        (lambda log: log[0].update(content=[{"type": "text", "text": "two"}]), "has changed"),
        (lambda log: log[0].update(processed_at=None), "never read"),
        (lambda log: _twice(log, 1), "was never sent"),
        (lambda log: _twice(log, 1), "message 'one' is there 2 times"),
        (lambda log: _twice(log, 3), "began while sevt_3 was open"),
        (lambda log: _twice(log, 5), "ended while none was open"),
        (lambda log: log[9].update(type="agent.message"), "idle while request sevt_9 was open"),
        (lambda log: _twice(log, 8), "call sevt_4 has 2 results"),
        (lambda log: log[7].update(type="agent.message"), "call sevt_4 has 0 results"),
        (lambda log: log[7].update(tool_use_id="sevt_y"), "which nobody called"),
        (lambda log: _twice(log, 2), "session.status_running came after session.status_running"),
        (lambda log: log[10].update(type="agent.message"), "the log ends in agent.message"),
        (lambda log: log[10].update(stop_reason={"type": "retries_exhausted"}), "without saying why"),
    ],
)
def test_a_planted_fault_is_found(plant: Plant, told: str) -> None:
    acknowledged = [dict(SOUND[0])]
    log = copy.deepcopy(SOUND)
    assert faults_of(log, acknowledged) == []

    plant(log)

    assert any(told in fault for fault in faults_of(log, acknowledged))


@pytest.mark.parametrize(
    ("lines", "told"),
    [(["abc", "abc"], "abc was written 2 times"), ([], "abc is missing"), (["abc", "xyz"], "xyz was never asked for")],
)
def test_a_tool_that_ran_twice_or_never_is_found(lines: list[str], told: str) -> None:
    assert line_faults(SOUND, ["abc"], ["abc"]) == []
    assert line_faults(SOUND, ["abc"], lines) == [f"line {told}"]


def test_epochs_that_interleave_are_found() -> None:
    wrote = {f"sevt_{seq}": ("runner", 1) for seq in (3, 4, 5)} | {f"sevt_{seq}": ("runner-2", 2) for seq in (8, 9, 10)}
    assert epoch_faults(SOUND, wrote) == []
    assert epoch_faults(SOUND, {**wrote, "sevt_10": ("runner", 1)}) == ["epoch 1 wrote seq 10 after epoch 2 had begun"]
    assert epoch_faults(SOUND, {**wrote, "sevt_10": ("runner", 2)}) == [
        "epoch 2 was written by runner-2 and, at seq 10, by runner"
    ]


def test_what_is_held_after_a_run_is_compared_with_what_was_before() -> None:
    before = Counter({"processes": 9, "subscriptions of gateway": 2, "descriptors of vault": 30})
    assert grown(before, before) == {}
    after = before + Counter({"processes": 1, "subscriptions of gateway": 1, "descriptors of vault": 5})
    assert grown(before, after) == {"processes": (9, 10), "subscriptions of gateway": (2, 3)}
    assert grown(before, before + Counter({"descriptors of vault": 60})) == {"descriptors of vault": (30, 90)}


def test_a_stream_that_is_not_the_log_is_found() -> None:
    unread = [{**SOUND[0], "processed_at": None}, *SOUND[1:]]
    assert stream_faults(SOUND, SOUND) == stream_faults(unread, SOUND) == []
    assert stream_faults(SOUND[:-1], SOUND) == ["the stream brought 10 of 11 events"]
    otherwise = [{**SOUND[0], "content": "x"}, *SOUND[1:]]
    assert "seq 1 otherwise" in stream_faults(otherwise, SOUND)[0]
