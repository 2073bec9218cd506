"""What must be true of a session's log, whatever was killed while it was written. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support.api import Event

CALLS = ("agent.tool_use", "agent.custom_tool_use")
RESULTS = {"agent.tool_result": "tool_use_id", "user.custom_tool_result": "custom_tool_use_id"}
# Which statuses may follow which.
NEXT_STATUS = {
    "session.status_idle": {"session.status_running", "session.status_idle"},
    "session.status_running": {"session.status_idle", "session.status_rescheduled"},
    "session.status_rescheduled": {"session.status_running", "session.status_idle"},
}


def faults_of(log: list[Event], acknowledged: list[Event] = (), unsure: list[str] = ()) -> list[str]:
    """Everything that is wrong with a finished session's log, in words."""
    return [
        *_numbering(log),
        *_writes(log, list(acknowledged), list(unsure)),
        *_requests(log),
        *_calls(log),
        *_statuses(log),
    ]


def line_faults(log: list[Event], asked: list[str], found: list[str]) -> list[str]:
    """Lines that a tool appended more often than once, or not at all although its call succeeded."""
    faults = [f"line {line} was written {count} times" for line, count in Counter(found).items() if count > 1]
    faults += [f"line {line} was never asked for" for line in set(found) - set(asked)]
    commands = {event["id"]: event["input"].get("command", "") for event in log if event["type"] == "agent.tool_use"}
    for event in log:
        if event["type"] == "agent.tool_result" and not event["is_error"]:
            command = commands.get(event["tool_use_id"], "")
            faults += [f"line {line} is missing" for line in asked if line in command and line not in found]
    return faults


def epoch_faults(log: list[Event], wrote: dict[str, tuple[str, int]]) -> list[str]:
    """Events that an earlier epoch wrote after a later one, and epochs that two runners wrote in.

    `wrote` is what runners said before they wrote; an event that nobody spoke of is a client's or the platform's own.
    """
    faults: list[str] = []
    newest = 0
    holders: dict[int, str] = {}
    for event in log:
        if event["id"] not in wrote:
            continue
        runner, epoch = wrote[event["id"]]
        if epoch < newest:
            faults.append(f"epoch {epoch} wrote seq {event['seq']} after epoch {newest} had begun")
        if holders.setdefault(epoch, runner) != runner:
            faults.append(f"epoch {epoch} was written by {holders[epoch]} and, at seq {event['seq']}, by {runner}")
        newest = max(newest, epoch)
    return faults


def stream_faults(delivered: list[Event], log: list[Event]) -> list[str]:
    """Where what a stream brought is not the log; an event that was read later may still look unread."""
    faults = []
    if len(delivered) != len(log):
        faults.append(f"the stream brought {len(delivered)} of {len(log)} events")
    for got, stored in zip(delivered, log, strict=False):
        if got["processed_at"] is None:
            got = {**got, "processed_at": stored["processed_at"]}
        if got != stored:
            differ = {
                key: (got.get(key), stored.get(key)) for key in {*got, *stored} if got.get(key) != stored.get(key)
            }
            faults.append(f"the stream brought seq {stored['seq']} otherwise than the log has it: {differ}")
    return faults


def _numbering(log: list[Event]) -> list[str]:
    faults = []
    if [event["seq"] for event in log] != list(range(1, len(log) + 1)):
        faults.append(f"seq is not 1, 2, 3 …: {[event['seq'] for event in log]}")
    faults += [f"id {each} is there {count} times" for each, count in _several(event["id"] for event in log)]
    times = [event["created_at"] for event in log]
    if times != sorted(times):
        faults.append("times run backwards")
    return faults


def _several(values: Any) -> list[tuple[Any, int]]:
    return [(value, count) for value, count in Counter(values).items() if count > 1]


def _text(event: Event) -> str:
    return "".join(block.get("text", "") for block in event.get("content", ()))


def _writes(log: list[Event], acknowledged: list[Event], unsure: list[str]) -> list[str]:
    by_id = {event["id"]: event for event in log}
    faults = []
    for event in acknowledged:
        stored = by_id.get(event["id"])
        if stored is None:
            faults.append(f"acknowledged {event['type']} {event['id']} is lost")
        elif {**stored, "processed_at": None} != {**event, "processed_at": None}:
            faults.append(f"acknowledged {event['type']} {event['id']} has changed")
    known = {event["id"] for event in acknowledged}
    for event in log:
        if event["type"].startswith("user.") and event["id"] not in known and _text(event) not in unsure:
            faults.append(f"{event['type']} {event['id']} was never sent")
    texts = Counter(_text(event) for event in log if event["type"] == "user.message")
    faults += [f"message {text!r} is there {count} times" for text, count in texts.items() if count > 1]
    faults += [
        f"{event['type']} {event['id']} was never read"
        for event in log
        if event["type"] == "user.message" and event["processed_at"] is None
    ]
    return faults


def _requests(log: list[Event]) -> list[str]:
    """Model requests never overlap: one writer at a time."""
    faults, open_id = [], ""
    for event in log:
        if event["type"] == "span.model_request_start":
            if open_id:
                faults.append(f"request {event['id']} began while {open_id} was open")
            open_id = event["id"]
        elif event["type"] == "span.model_request_end":
            if event["model_request_start_id"] != open_id:
                faults.append(f"request {event['model_request_start_id']} ended while {open_id or 'none'} was open")
            open_id = ""
        elif event["type"] == "session.status_idle" and open_id:
            faults.append(f"idle while request {open_id} was open")
    return faults


def _waits(idle: Event) -> bool:
    return idle["stop_reason"]["type"] == "requires_action"


def _calls(log: list[Event]) -> list[str]:
    calls: dict[str, int] = {}
    faults = []
    for event in log:
        if event["type"] in CALLS:
            calls[event["id"]] = 0
        elif event["type"] in RESULTS:
            call_id = event[RESULTS[event["type"]]]
            if call_id not in calls:
                faults.append(f"result {event['id']} is for {call_id}, which nobody called before")
            calls[call_id] = calls.get(call_id, 0) + 1
        elif event["type"] == "session.status_idle" and not _waits(event):
            faults += [f"idle at seq {event['seq']} while {call_id} was open" for call_id, n in calls.items() if not n]
    return faults + [f"call {call_id} has {count} results" for call_id, count in calls.items() if count != 1]


def _statuses(log: list[Event]) -> list[str]:
    faults, before = [], "session.status_idle"
    errors = 0
    for event in log:
        kind = event["type"]
        if kind == "session.error":
            errors += 1
        if kind not in NEXT_STATUS:
            continue
        if kind not in NEXT_STATUS[before]:
            faults.append(f"{kind} came after {before} at seq {event['seq']}")
        if kind == "session.status_idle":
            reason = event["stop_reason"]["type"]
            if reason == "retries_exhausted" and not errors:
                faults.append(f"gave up at seq {event['seq']} without saying why")
            if before == "session.status_idle" and reason not in ("requires_action", "end_turn"):
                faults.append(f"ended twice at seq {event['seq']}")
            errors = 0
        before = kind
    if log and (before != "session.status_idle" or log[-1]["type"] != "session.status_idle"):
        faults.append(f"the log ends in {log[-1]['type']} with {before}")
    return faults
