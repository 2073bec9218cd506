"""The context is a pure function of the log, and any log gives a conversation that every vendor takes."""

from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.runner.loop.context import UNANSWERED, Conversation
from services.worker.runner.models.base import Message

_INPUTS = ("user.message", "system.message")


def text(value: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": value}]


def build(events: list[dict[str, Any]]) -> Conversation:
    conversation = Conversation()
    for seq, event in enumerate(events, 1):
        conversation.apply_stored(seq, event["id"], event["type"], orjson.dumps(event))
    return conversation


def shape(messages: list[Message]) -> list[tuple[str, list[Any]]]:
    return [(message.role, [dict(block) for block in message.content]) for message in messages]


def use(event_id: str, block_id: str, *, custom: bool = False, **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": block_id, "name": "bash", "input": {"command": block_id}}
    kind = "agent.custom_tool_use" if custom else "agent.tool_use"
    return {"id": event_id, "type": kind, "name": "bash", "input": block["input"], "content": [block], **fields}


def test_input_between_a_call_and_its_result_comes_after_the_result() -> None:
    events = [
        {"id": "e1", "type": "user.message", "content": text("go")},
        {"id": "e2", "type": "span.model_request_start", "context_seq": 1},
        {"id": "e3", "type": "agent.message", "content": text("calling")},
        use("e4", "t1"),
        {"id": "e5", "type": "span.model_request_end", "model_request_start_id": "e2"},
        {"id": "e6", "type": "user.message", "content": text("meanwhile")},
        {"id": "e7", "type": "agent.tool_result", "tool_use_id": "e4", "content": text("out"), "is_error": False},
    ]
    assert shape(build(events).messages()) == [
        ("user", text("go")),
        ("assistant", [*text("calling"), {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "t1"}}]),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "t1", "content": text("out"), "is_error": False},
                *text("meanwhile"),
            ],
        ),
    ]


def test_input_that_an_answer_had_not_read_comes_after_it() -> None:
    events = [
        {"id": "e1", "type": "user.message", "content": text("one")},
        {"id": "e2", "type": "user.message", "content": text("two")},
        {"id": "e3", "type": "span.model_request_start", "context_seq": 1},
        {"id": "e4", "type": "agent.message", "content": text("to one")},
        {"id": "e5", "type": "span.model_request_end", "model_request_start_id": "e3"},
    ]
    assert shape(build(events).messages()) == [
        ("user", text("one")),
        ("assistant", text("to one")),
        ("user", text("two")),
    ]


def test_a_system_message_is_a_turn_of_its_own_and_an_empty_one_is_dropped() -> None:
    events = [
        {"id": "e1", "type": "user.message", "content": text("hi")},
        {"id": "e2", "type": "system.message", "content": text("in Japanese")},
        {"id": "e3", "type": "system.message", "content": text("   ")},
    ]
    assert shape(build(events).messages()) == [("user", text("hi")), ("system", text("in Japanese"))]


def test_an_answered_call_is_found_by_either_id_and_only_once() -> None:
    events = [
        {"id": "e1", "type": "span.model_request_start"},
        use("e2", "t1", custom=True),
        {"id": "e3", "type": "user.custom_tool_result", "custom_tool_use_id": "t1", "content": text("first")},
        {"id": "e4", "type": "user.custom_tool_result", "custom_tool_use_id": "e2", "content": text("second")},
    ]
    conversation = build(events)
    assert conversation.open_calls() == []
    assert conversation.calls[0].result["content"] == text("first")


def test_a_call_that_nobody_answered_gets_a_result_that_says_so() -> None:
    conversation = build([{"id": "e1", "type": "span.model_request_start"}, use("e2", "t1", custom=True)])
    (result,) = conversation.messages()[-1].content
    assert result["is_error"] and result["content"] == text(UNANSWERED)
    assert [call.event_id for call in conversation.open_calls()] == ["e2"]


def test_messages_that_were_given_out_never_change() -> None:
    conversation = build([{"id": "e1", "type": "user.message", "content": text("one")}])
    before = conversation.messages()
    conversation.apply_stored(2, "e2", "user.message", orjson.dumps({"content": text("two")}))
    assert shape(before) == [("user", text("one"))]
    assert shape(conversation.messages()) == [("user", [*text("one"), *text("two")])]


_LETTERS = st.text("ab ", max_size=3)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Any order of events that name calls, answer them, or don't."""
    events: list[dict[str, Any]] = []
    calls: list[str] = []
    for number in range(draw(st.integers(0, 25))):
        event_id = f"e{number}"
        kind = draw(
            st.sampled_from(
                (*_INPUTS, "agent.message", "use", "custom", "result", "answer", "confirm", "start", "end", "other")
            )
        )
        known = draw(st.sampled_from(calls)) if calls else "nothing"
        if kind in (*_INPUTS, "agent.message"):
            events.append({"id": event_id, "type": kind, "content": text(draw(_LETTERS))})
        elif kind in ("use", "custom"):
            calls.append(event_id)
            events.append(use(event_id, f"t{number}", custom=kind == "custom", evaluated_permission="ask"))
        elif kind == "result":
            events.append({"id": event_id, "type": "agent.tool_result", "tool_use_id": known, "content": text("r")})
        elif kind == "answer":
            events.append({"id": event_id, "type": "user.custom_tool_result", "custom_tool_use_id": known})
        elif kind == "confirm":
            events.append({"id": event_id, "type": "user.tool_confirmation", "tool_use_id": known, "result": "allow"})
        elif kind == "start":
            seq = draw(st.integers(0, len(events)))
            events.append({"id": event_id, "type": "span.model_request_start", "context_seq": seq})
        elif kind == "end":
            events.append({"id": event_id, "type": "span.model_request_end"})
        else:
            events.append({"id": event_id, "type": "session.status_running"})
    return events


@settings(max_examples=150, deadline=None)
@given(histories())
def test_any_log_gives_a_sound_conversation(events: list[dict[str, Any]]) -> None:
    messages = build(events).messages()
    spoken = [message for message in messages if message.role != "system"]
    assert all(message.content for message in messages)
    for before, after in pairwise(messages):
        assert before.role != after.role or before.role == "system"
    for number, message in enumerate(spoken):
        calls = [block["id"] for block in message.content if block["type"] == "tool_use"]
        after = spoken[number + 1].content if number + 1 < len(spoken) else ()
        results = [block["tool_use_id"] for block in after if block["type"] == "tool_result"]
        if message.role == "assistant":
            assert results == calls
            assert [block["type"] for block in after[: len(results)]] == ["tool_result"] * len(results)
        else:
            assert not calls


@settings(max_examples=100, deadline=None)
@given(histories(), st.data())
def test_events_one_by_one_give_what_all_at_once_give(events: list[dict[str, Any]], data: st.DataObject) -> None:
    """Looking at the context on the way, or seeing an event twice, changes nothing."""
    conversation = Conversation()
    for seq, event in enumerate(events, 1):
        for _ in range(data.draw(st.integers(1, 2))):
            conversation.apply_stored(seq, event["id"], event["type"], orjson.dumps(event))
        if data.draw(st.booleans()):
            conversation.messages()
    assert shape(conversation.messages()) == shape(build(events).messages())
    assert conversation.open_request == build(events).open_request


@settings(max_examples=100, deadline=None)
@given(histories())
def test_no_text_of_a_person_is_lost_or_doubled(events: list[dict[str, Any]]) -> None:
    said = [event["content"][0]["text"] for event in events if event["type"] == "user.message"]
    seen = [
        block["text"]
        for message in build(events).messages()
        if message.role == "user"
        for block in message.content
        if block["type"] == "text"
    ]
    assert seen == [value for value in said if value.strip()]
