"""Outcomes as a runner sees them: what a log says of them, what the grader is asked, and how verdicts are read."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.runner.loop import goal as goals
from services.worker.runner.loop import grading
from services.worker.runner.loop.context import Conversation
from services.worker.runner.models import demo_grader
from services.worker.runner.models.base import VERDICT_TOOL, Message, ModelAccess, ModelRequest, Stop, ToolCall
from services.worker.runner.models.demo import DemoModel

ABOUT = {"outcome_id": "outc_1", "iteration": 0}
DECLARATION = {
    "type": "user.define_outcome",
    "outcome_id": "outc_1",
    "description": "Ship it",
    "rubric": {"type": "text", "content": "It returns 200"},
    "max_iterations": 2,
}
REQUEST = [
    {"type": "span.model_request_start"},
    {"type": "agent.message", "content": [{"type": "text", "text": "done"}]},
    {"type": "span.model_request_end"},
]
START, ONGOING = {"type": goals.START, **ABOUT}, {"type": goals.ONGOING, **ABOUT}


def end(result: str, **fields: Any) -> dict[str, Any]:
    """The end of an evaluation."""
    return {"type": goals.END, **ABOUT, "result": result, "explanation": "because", **fields}


def revision(text: str = "because") -> dict[str, Any]:
    """What the runtime tells the agent."""
    return {"type": "user.message", "content": [{"type": "text", "text": text}], "metadata": ABOUT}


def read(*events: dict[str, Any]) -> Conversation:
    """The conversation of a log."""
    conversation = Conversation()
    for seq, event in enumerate(events, 1):
        conversation.apply_stored(seq, f"sevt_{seq}", event["type"], orjson.dumps(event))
    return conversation


def goal_of(*events: dict[str, Any]) -> goals.Goal:
    """The goal that a log leaves."""
    goal = read(*events).goal
    assert goal is not None
    return goal


def texts(message: Message) -> list[str]:
    """The texts of a message."""
    return [block["text"] for block in message.content]


def test_a_declaration_is_an_instruction_and_a_goal() -> None:
    conversation = read(DECLARATION)
    assert conversation.needs_answer() and conversation.has_unread_input()
    (message,) = conversation.messages()
    assert message.role == "user"
    assert "Ship it" in texts(message)[0] and "It returns 200" in texts(message)[0]
    assert goal_of(DECLARATION).max_iterations == 2
    assert not read(DECLARATION, *REQUEST).needs_answer()


def test_an_evaluation_that_has_no_end_is_remembered() -> None:
    assert (goal_of(DECLARATION, *REQUEST).start_id, goal_of(DECLARATION, *REQUEST).is_told) == ("", False)
    begun = goal_of(DECLARATION, *REQUEST, START)
    assert (begun.start_id, begun.is_told) == ("sevt_5", False)
    assert goal_of(DECLARATION, *REQUEST, START, ONGOING).is_told
    revised = goal_of(DECLARATION, *REQUEST, START, ONGOING, end("needs_revision"))
    assert (revised.start_id, revised.is_told, revised.iteration, revised.is_last) == ("", False, 1, True)


def test_a_message_that_a_crash_swallowed_is_missed() -> None:
    log = [DECLARATION, *REQUEST, START, ONGOING, end("needs_revision")]
    assert goal_of(*log).revision == "because"
    assert goal_of(*log, {**revision(), "metadata": {}}).revision == "because"
    assert goal_of(*log, revision()).revision == ""
    assert goal_of(*log[:-1], end("needs_revision", explanation="")).revision == goals.UNEXPLAINED


@pytest.mark.parametrize("result", ["satisfied", "failed", "max_iterations_reached", "interrupted", "budget_reached"])
def test_any_other_result_ends_the_goal(result: str) -> None:
    conversation = read(DECLARATION, *REQUEST, START, ONGOING, end(result))
    assert conversation.goal is None
    settles = result == "max_iterations_reached"
    assert conversation.needs_answer() == settles
    if settles:
        assert "because" in texts(conversation.messages()[-1])[0]
        assert not read(DECLARATION, *REQUEST, START, ONGOING, end(result), *REQUEST).needs_answer()


def test_what_is_said_of_another_outcome_is_not_its_end() -> None:
    assert goal_of(DECLARATION, *REQUEST, end("satisfied", outcome_id="outc_0")).outcome_id == "outc_1"
    again = {**DECLARATION, "outcome_id": "outc_2"}
    assert goal_of(DECLARATION, *REQUEST, end("satisfied"), again).outcome_id == "outc_2"


def test_the_instruction_outlives_a_compaction() -> None:
    summary = {"type": "agent.thread_context_compacted", "content": [{"type": "text", "text": "summary"}]}
    compacted = {**summary, "outcome": goal_of(DECLARATION, *REQUEST, START).dump()}
    after = read(DECLARATION, *REQUEST, START, compacted)
    alone = Conversation()
    alone.apply_stored(6, "sevt_6", compacted["type"], orjson.dumps(compacted))
    for conversation in (after, alone):
        assert "Ship it" in texts(conversation.messages()[0])[-1]
        assert conversation.goal == goal_of(DECLARATION, *REQUEST, START)
    over = read(DECLARATION, *REQUEST, end("satisfied"), summary)
    assert over.goal is None
    assert not any("Ship it" in text for message in over.messages() for text in texts(message))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_context_is_the_same_one_by_one_and_after_a_crash(data: st.DataObject) -> None:
    """Messages of others come before our own where they were in the log before it, as the service tells them."""
    live, log, ids = Conversation(), list[dict[str, Any]](), itertools.count()

    def store(*events: dict[str, Any]) -> None:
        log.extend(event | {"id": f"sevt_{next(ids)}"} for event in events)

    def apply_new(own: int) -> None:
        """The service's answer to an append of our last `own` events: what others stored before them."""
        for seq in range(live.known_seq + 1, len(log) - own + 1):
            event = log[seq - 1]
            live.apply_stored(seq, event["id"], event["type"], orjson.dumps(event))
        live.known_seq = len(log)

    store(DECLARATION)
    apply_new(0)
    for iteration in range(data.draw(st.integers(0, 3))):
        for event in REQUEST:
            event = event | ({"context_seq": live.known_seq} if event["type"] == "span.model_request_start" else {})
            live.apply("sevt_x", event["type"], event)
            store(event)
        apply_new(len(REQUEST))
        others = [
            {"type": "user.message", "content": [{"type": "text", "text": f"other {iteration} {number}"}]}
            for number in range(data.draw(st.integers(0, 2)))
        ]
        store(*others)
        own = [start := {"type": goals.START, **ABOUT}, end("needs_revision"), revision(f"revision {iteration}")]
        for event in own:
            live.apply("sevt_x", event["type"], event)
        store(*own)
        apply_new(len(own))
        live.settle_own_inputs()
        assert start
        if data.draw(st.booleans()):
            store({"type": "user.message", "content": [{"type": "text", "text": "later"}]})
            apply_new(0)
    again = Conversation()
    for seq, event in enumerate(log, 1):
        again.apply_stored(seq, event["id"], event["type"], orjson.dumps(event))
    assert [(each.role, texts(each)) for each in live.messages()] == [
        (each.role, texts(each)) for each in again.messages()
    ]


def test_the_record_has_what_the_agent_produced() -> None:
    record = grading.Record()
    text = [{"type": "text", "text": "words"}]
    for kind, fields in (
        ("user.message", {"content": text}),
        ("system.message", {"content": text}),
        (goals.END, {"explanation": "words"}),
        ("agent.message", {"content": [{"type": "text", "text": "a message"}]}),
        ("agent.tool_use", {"name": "bash", "input": {"command": "ls"}}),
        ("agent.custom_tool_use", {"name": "lookup", "input": {"word": "x"}}),
        ("agent.mcp_tool_use", {"name": "search", "input": {"q": "y"}}),
        ("agent.tool_result", {"content": [{"type": "text", "text": "a.txt"}, {"type": "image"}], "is_error": True}),
        ("user.custom_tool_result", {"content": [{"type": "text", "text": "found"}]}),
    ):
        record.take(kind, orjson.dumps(fields))
    told = record.text()
    assert "words" not in told
    for shown in ("a message", '"command":"ls"', '"word":"x"', '"q":"y"', "a.txt", "(image)", "an error", "found"):
        assert shown in told
    assert grading.Record().text() == "(The agent produced nothing.)"


def test_a_record_is_bounded_and_keeps_what_is_newest() -> None:
    record = grading.Record()
    for number in range(100):
        content = [{"type": "text", "text": f"start {number} " + "x" * 100_000 + f" end {number}"}]
        record.take("agent.message", orjson.dumps({"content": content}))
    told = record.text()
    assert len(told) < grading.MOST_RECORD_CHARS * 1.1
    assert "start 99 " in told and "end 99" in told and "start 1 " not in told
    assert grading.OMITTED in told and "characters are left out" in told


def test_a_record_is_halved_until_one_entry_is_left() -> None:
    record = grading.Record()
    for number in range(40):
        record.take("agent.message", orjson.dumps({"content": [{"type": "text", "text": f"part {number}."}]}))
    sizes = [len(record.text())]
    while record.shorten():
        sizes.append(len(record.text()))
        assert "part 39." in record.text() and "part 0." not in record.text()
    assert len(sizes) > 4 and all(later < earlier for earlier, later in itertools.pairwise(sizes))
    assert not grading.Record().shorten()


@pytest.mark.parametrize(
    ("calls", "text", "result"),
    [
        ([{"result": "satisfied", "explanation": "yes"}], "", "satisfied"),
        ([{"result": "perfect", "explanation": "yes"}], "", None),
        ([{"result": "satisfied"}], "", None),
        ([{"result": "satisfied", "explanation": 1}], "", None),
        ([{}, {"result": "failed", "explanation": ""}], "", "failed"),
        ([], "", None),
        ([], "satisfied", None),
        ([], '```json\n{"result": "needs_revision", "explanation": "{no}"}\n```', "needs_revision"),
        ([], 'I think {so}: {"verdict": {"result": "failed", "explanation": "x"}}', "failed"),
        ([], "{" * 100_000, None),
        ([], '{"a":' * 100_000, None),
    ],
)
def test_verdicts(calls: list[dict[str, Any]], text: str, result: str | None) -> None:
    made = [ToolCall("toolu_1", VERDICT_TOOL, arguments) for arguments in calls]
    verdict = grading.read_verdict(made, text)
    assert (verdict.result if verdict else None) == result


def test_a_call_of_another_tool_is_no_verdict() -> None:
    call = ToolCall("toolu_1", "bash", {"result": "satisfied", "explanation": ""})
    assert grading.read_verdict([call], "") is None


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    grading.read_verdict([], text)


def question(rubric: str, *said: str) -> Message:
    """What a grader is asked."""
    record = grading.Record()
    for text in said:
        record.take("agent.message", orjson.dumps({"content": [{"type": "text", "text": text}]}))
    return grading.question("Ship it", rubric, record)


@pytest.mark.parametrize(
    ("rubric", "said", "result"),
    [
        ("The endpoint returns 200", "My ENDPOINT now returns this.", "satisfied"),
        ("The endpoint returns 200", "Nothing.", "needs_revision"),
        ('- It says "200 OK"\n\n- endpoint', "the endpoint: 200 OK", "satisfied"),
        ('- It says "200 OK"\n- endpoint', "the endpoint: 200", "needs_revision"),
        ("1. alpha\n2) beta", "alpha beta", "satisfied"),
        ("GRADE:failed", "anything", "failed"),
        ("GRADE:needs_revision", "GRADE needs_revision", "needs_revision"),
        ("GRADE:satisfied", "", "satisfied"),
    ],
)
async def test_the_demo_model_grades_by_words(rubric: str, said: str, result: str) -> None:
    request = ModelRequest("demo", grading.SYSTEM, [question(rubric, said)], (grading.TOOL,))
    first, again = [[delta async for delta in DemoModel(ModelAccess("demo")).stream(request)] for _ in range(2)]
    assert first == again
    (call,) = [delta for delta in first if isinstance(delta, ToolCall)]
    verdict = grading.read_verdict([call], "")
    assert verdict is not None and verdict.result == result
    assert isinstance(first[-1], Stop)


async def test_the_demo_model_may_give_no_verdict() -> None:
    request = ModelRequest("demo", grading.SYSTEM, [question("GRADE:none")], (grading.TOOL,))
    deltas = [delta async for delta in DemoModel(ModelAccess("demo")).stream(request)]
    assert not [delta for delta in deltas if isinstance(delta, ToolCall)]


def test_the_demo_grader_names_what_is_missing() -> None:
    verdict = demo_grader.verdict([question("- alpha\n- beta\n- gamma", "beta")])
    assert verdict == {"result": "needs_revision", "explanation": "The record does not show:\n- alpha\n- gamma"}
