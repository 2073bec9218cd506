"""The answer of a step: a function of the log from its first event on, read from what is stored and what comes live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from kit.errors import DomainError
from kit.testing import await_until
from kit.waiting import within
from managed_agents.sessions.v1.events_pb2 import Event
from managed_agents.sessions.v1.sessions_pb2 import ReadEventsRequest, ReadEventsResponse
from services.gateway.render.steps import LOOKED_AT, Reading
from services.gateway.streams.frames import frame_of
from services.gateway.streams.step_wait import StepWait

Body = dict[str, Any]


def say(text: str) -> Body:
    return {"type": "agent.message", "content": [{"type": "text", "text": text}]}


def custom(name: str, **arguments: Any) -> Body:
    return {"type": "agent.custom_tool_use", "id": f"sevt_{name}", "name": name, "input": arguments}


def own(name: str, permission: str = "allow", kind: str = "agent.tool_use") -> Body:
    return {"type": kind, "id": f"sevt_{name}", "name": name, "input": {}, "evaluated_permission": permission}


def confirm(name: str, result: str = "allow") -> Body:
    return {"type": "user.tool_confirmation", "tool_use_id": f"sevt_{name}", "result": result}


def idle(kind: str = "end_turn", *waiting: str) -> Body:
    reason: Body = {"type": kind}
    if waiting:
        reason["event_ids"] = [f"sevt_{name}" for name in waiting]
    return {"type": "session.status_idle", "stop_reason": reason}


def thread_idle(thread_id: str) -> Body:
    return {"type": "session.thread_status_idle", "session_thread_id": thread_id}


def error(message: str) -> Body:
    return {"type": "session.error", "error": {"type": "model_overloaded_error", "message": message}}


SAID = {"type": "user.message", "content": [{"type": "text", "text": "go"}]}
RUNS = {"type": "session.status_running"}
INTERRUPT = {"type": "user.interrupt"}
PARKED = "requires_action"
END = {"type": "session.status_terminated"}

CALLS_A = {"tool_calls": [{"id": "sevt_a", "name": "a", "arguments": {"x": 1}}]}
ANSWERS: list[tuple[str, list[Body], Any]] = [
    ("a reply", [SAID, RUNS, say("Hello."), idle()], {"reply": "Hello."}),
    ("all that was said", [SAID, say("One."), own("bash"), say(" "), say("Two."), idle()], {"reply": "One.\n\nTwo."}),
    ("nothing was said", [SAID, idle()], {"reply": ""}),
    ("a call", [SAID, say("Let me see."), custom("a", x=1), idle(PARKED, "a")], CALLS_A),
    (
        "calls in the order of the log",
        [SAID, custom("a", x=1), custom("b"), idle(PARKED, "b", "a")],
        {"tool_calls": [*CALLS_A["tool_calls"], {"id": "sevt_b", "name": "b", "arguments": {}}]},
    ),
    ("a worker runs its tool first", [SAID, own("bash"), idle(PARKED, "bash"), RUNS, say("Done."), idle()], "Done."),
    (
        "a worker's result is waited for before calls are told",
        [SAID, custom("a", x=1), own("bash"), idle(PARKED, "a", "bash"), idle(PARKED, "a")],
        CALLS_A,
    ),
    (
        "a confirmation was given",
        [SAID, own("b", "ask"), idle(PARKED, "b"), confirm("b"), RUNS, say("Ok."), idle()],
        "Ok.",
    ),
    (
        "a confirmed call goes to a worker",
        [SAID, own("b", "ask"), idle(PARKED, "b"), confirm("b"), idle(PARKED, "b"), RUNS, say("Ok."), idle()],
        "Ok.",
    ),
    (
        "the confirmation comes before the caller's calls",
        [SAID, custom("a", x=1), own("b", "ask"), idle(PARKED, "a", "b"), confirm("b", "deny"), idle(PARKED, "a")],
        CALLS_A,
    ),
    ("the budget was raised", [SAID, say("One."), idle("budget_reached"), RUNS, say("Two."), idle()], "One.\n\nTwo."),
    ("failed and went on", [SAID, error("busy"), RUNS, say("Ok."), idle()], "Ok."),
    ("what comes later changes nothing", [SAID, say("One."), idle(), SAID, say("Two."), idle()], "One."),
    ("an owner speaks in between", [SAID, say("One."), SAID, say("Two."), idle()], "One.\n\nTwo."),
    ("interrupted and told something else", [SAID, say("One."), INTERRUPT, SAID, say("Two."), idle()], "Two."),
    (
        "another thread was interrupted",
        [SAID, {**INTERRUPT, "session_thread_id": "sthr_2"}, say("One."), thread_idle("sthr_1"), idle()],
        "One.",
    ),
    ("a refusal in words", [SAID, say("I would rather not."), idle("refusal")], "I would rather not."),
]
REFUSALS: list[tuple[str, list[Body], str, str]] = [
    ("interrupted", [SAID, INTERRUPT, say("Half a"), idle()], "STEP_INTERRUPTED", "interrupted"),
    (
        "the primary thread was interrupted by its name",
        [SAID, {**INTERRUPT, "session_thread_id": "sthr_1"}, say("Half a"), thread_idle("sthr_1"), idle()],
        "STEP_INTERRUPTED",
        "interrupted",
    ),
    (
        "interrupted while calls waited",
        [SAID, own("b", "ask"), idle(PARKED, "b"), INTERRUPT, idle()],
        "STEP_INTERRUPTED",
        "",
    ),
    ("failed", [SAID, say("One."), error("busy."), idle("retries_exhausted")], "STEP_TURN_FAILED", "failed: busy. The"),
    ("failed without a word", [SAID, idle("retries_exhausted")], "STEP_TURN_FAILED", "It failed."),
    ("refused without a word", [SAID, idle("refusal")], "STEP_TURN_FAILED", "refused"),
    ("at the budget", [SAID, say("One."), idle("budget_reached")], "BUDGET_REACHED", "budget"),
    ("the session was ended", [SAID, say("One."), END], "SESSION_ENDED", "ended"),
    ("the session was deleted", [SAID, say("One."), {"type": "session.deleted"}], "SESSION_ENDED", "ended"),
]
PAUSES: list[list[Body]] = [
    [SAID, own("b", "ask"), idle(PARKED, "b")],
    [SAID, own("b", "ask", "agent.mcp_tool_use"), idle(PARKED, "b")],
    [SAID, custom("a", x=1), own("b", "ask"), idle(PARKED, "a", "b")],
    [SAID, own("b", "ask"), own("c", "ask"), idle(PARKED, "b", "c"), confirm("c"), idle(PARKED, "b")],
    # The call stands before the step.
    [{"type": "user.custom_tool_result"}, idle(PARKED, "b")],
]
UNDER_WAY: list[list[Body]] = [
    [],
    [SAID],
    [SAID, RUNS, say("One."), own("bash")],
    [SAID, own("bash"), idle(PARKED, "bash")],
    # A thread was answered and is about to run.
    [SAID, custom("a"), {"type": "session.status_idle", "stop_reason": {"type": PARKED, "event_ids": []}}],
    [SAID, own("b", "ask"), idle(PARKED, "b"), confirm("b"), RUNS],
    [SAID, error("busy"), {"type": "session.status_rescheduled"}],
    [SAID, own("b", "ask"), idle(PARKED, "b"), INTERRUPT],
]


def numbered(bodies: Sequence[Body]) -> Iterator[Body]:
    for seq, body in enumerate(bodies, 1):
        yield {"id": f"sevt_{seq}", "seq": seq, **body}


def read(bodies: Sequence[Body]) -> tuple[Reading, int]:
    """The reading of a log, and how many events it took."""
    reading = Reading("sess_1")
    for event in numbered(bodies):
        if event["type"] in LOOKED_AT and reading.take(event["type"], event):
            return reading, event["seq"]
    return reading, len(bodies)


def wanted(answer: Any) -> Body:
    return {"reply": answer} if isinstance(answer, str) else answer


@pytest.mark.parametrize(("log", "answer"), [each[1:] for each in ANSWERS], ids=[each[0] for each in ANSWERS])
def test_the_answer_is_a_reply_or_calls_and_never_both(log: list[Body], answer: Any) -> None:
    body = orjson.loads(read(log)[0].body())
    assert body == wanted(answer) and len(body) == 1


@pytest.mark.parametrize(("log", "code", "told"), [each[1:] for each in REFUSALS], ids=[each[0] for each in REFUSALS])
def test_a_turn_without_an_answer_is_told_as_what_it_is(log: list[Body], code: str, told: str) -> None:
    with pytest.raises(DomainError) as refused:
        read(log)[0].body()
    assert refused.value.reason == code and told in str(refused.value.message)
    assert orjson.loads(refused.value.metadata["details"])["session_id"] == "sess_1"


@pytest.mark.parametrize("log", PAUSES)
def test_a_turn_that_waits_for_a_confirmation_is_paused_and_says_for_which(log: list[Body]) -> None:
    reading, _ = read(log)
    assert reading.is_paused and reading.answer is None and reading.refusal is None
    with pytest.raises(DomainError) as refused:
        reading.body()
    assert refused.value.reason == "STEP_REQUIRES_CONFIRMATION"
    assert orjson.loads(refused.value.metadata["details"]) == {"session_id": "sess_1", "event_ids": ["sevt_b"]}


@pytest.mark.parametrize("log", UNDER_WAY)
def test_a_turn_that_goes_on_by_itself_has_no_answer_yet(log: list[Body]) -> None:
    reading, _ = read(log)
    assert not reading.is_paused and reading.answer is None and reading.refusal is None


# The same, waited for.


class Ground:
    """A log of a session in which the step begins at seq 4, and a hub with one tail."""

    def __init__(self, stored: Sequence[Body]) -> None:
        self._seqs = count(4)
        self.stored = self.events(stored)
        self.begun_at: list[int] = []
        self.left = 0
        self.clients = SimpleNamespace(events=SimpleNamespace(ReadEvents=self._read))
        self.context = None

    def events(self, bodies: Sequence[Body]) -> list[Event]:
        numbered = [{"id": f"sevt_{seq}", "seq": seq, **body} for body, seq in zip(bodies, self._seqs, strict=False)]
        return [Event(id=body["id"], seq=body["seq"], type=body["type"], body=orjson.dumps(body)) for body in numbered]

    def follow(self, rpc: Any, request: ReadEventsRequest) -> AsyncIterator[ReadEventsResponse]:
        return rpc(request)

    async def _read(self, request: ReadEventsRequest) -> AsyncIterator[ReadEventsResponse]:
        assert request.after_seq == 3
        last = self.stored[-1].seq if self.stored else 3
        half = len(self.stored) // 2
        yield ReadEventsResponse(last_seq=last, events=self.stored[:half])
        yield ReadEventsResponse(last_seq=last, events=self.stored[half:])

    async def join(self, session_id: str, wait: StepWait, context: Any) -> Any:
        return SimpleNamespace(begin_at=self.begun_at.append)

    async def leave(self, tail: Any, wait: StepWait) -> None:
        self.left += 1


@pytest.mark.parametrize("log", [each[1] for each in ANSWERS + REFUSALS], ids=[each[0] for each in ANSWERS + REFUSALS])
async def test_wherever_the_live_part_begins_the_answer_is_the_same(log: list[Body]) -> None:
    reading, needed = read(log)
    for cut in range(len(log) + 1):
        ground, wait = Ground(log[:cut]), StepWait("sess_1", 60, first_seq=4)
        if any(read(log[:end])[0].is_paused for end in range(cut, needed)):
            continue
        waiting = asyncio.ensure_future(wait.until_over(ground, ground))  # type: ignore[arg-type]
        await await_until(lambda: bool(ground.begun_at) or waiting.done())  # noqa: B023
        for body in log[cut:]:
            wait.push([frame_of(event) for event in ground.events([body])])
        assert await within(waiting, 30) and ground.left == 1
        assert (wait.reading.answer, str(wait.reading.refusal)) == (reading.answer, str(reading.refusal))


@pytest.mark.parametrize("log", PAUSES)
async def test_a_wait_ends_with_the_pause_wherever_it_is_told_of_it(log: list[Body]) -> None:
    for cut in (0, len(log) - 1, len(log)):
        if read(log[:cut])[0].is_paused and cut < len(log):
            continue
        ground, wait = Ground(log[:cut]), StepWait("sess_1", 60, first_seq=4)
        waiting = asyncio.ensure_future(wait.until_over(ground, ground))  # type: ignore[arg-type]
        await await_until(lambda: bool(ground.begun_at))  # noqa: B023
        wait.push([frame_of(event) for event in ground.events(log[cut:])])
        assert await within(waiting, 30) and wait.reading.is_paused


async def test_a_pause_that_is_over_by_now_is_passed() -> None:
    log = next(log for name, log, _ in ANSWERS if name == "a confirmation was given")
    for cut in range(4, len(log)):
        ground, wait = Ground(log[:cut]), StepWait("sess_1", 60, first_seq=4)
        waiting = asyncio.ensure_future(wait.until_over(ground, ground))  # type: ignore[arg-type]
        await await_until(lambda: bool(ground.begun_at))  # noqa: B023
        wait.push([frame_of(event) for event in ground.events(log[cut:])])
        assert await within(waiting, 30) and wait.reading.answer == {"reply": "Ok."}
