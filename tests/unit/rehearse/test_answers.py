"""Proves what counts as an answer of the protocol, and that everything else is told with what came."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.rehearse.agents import MAX_CALLS_PER_ANSWER, Calls, Reply, RuntimeFailure, read_answer
from cli.rehearse.world import Call

CALL = {"id": "c1", "name": "look", "arguments": {"n": 1}}


def _read(answer: Any) -> Reply | Calls:
    return read_answer(orjson.dumps(answer))


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ({"reply": "Hi."}, Reply("Hi.")),
        ({"reply": ""}, Reply("")),
        ({"reply": "Hi.", "tool_calls": [CALL]}, Reply("Hi.")),
        ({"reply": "Hi.", "tool_calls": "nonsense"}, Reply("Hi.")),
        ({"reply": None, "tool_calls": [CALL]}, Calls([Call("c1", "look", {"n": 1})])),
        ({"tool_calls": [CALL], "usage": {"tokens": 3}}, Calls([Call("c1", "look", {"n": 1})])),
        ({"tool_calls": [{**CALL, "type": "function"}]}, Calls([Call("c1", "look", {"n": 1})])),
    ],
)
def test_a_reply_or_calls_are_read(answer: Any, read: Reply | Calls) -> None:
    assert _read(answer) == read


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({}, "the agent's answer has neither reply nor tool_calls: {}"),
        ([], "the agent's answer has neither reply nor tool_calls: []"),
        (None, "neither reply nor tool_calls: null"),
        ({"reply": None}, "neither reply nor tool_calls"),
        ({"tool_calls": []}, "neither reply nor tool_calls"),
        ({"reply": 5}, '"reply" of the agent\'s answer must be a text'),
        ({"tool_calls": CALL}, '"tool_calls" of the agent\'s answer must be a list'),
        ({"tool_calls": [CALL, 5]}, '"tool_calls[1].id" of the agent\'s answer must be a text'),
        ({"tool_calls": [{"name": "look", "arguments": {}}]}, '"tool_calls[0].id"'),
        ({"tool_calls": [{"id": "c", "arguments": {}}]}, '"tool_calls[0].name"'),
        (
            {"tool_calls": [{"id": "c", "name": "look"}]},
            '"tool_calls[0].arguments" of the agent\'s answer must be an o',
        ),
        ({"tool_calls": [{**CALL, "arguments": "{}"}]}, '"tool_calls[0].arguments"'),
        ({"tool_calls": [CALL] * (MAX_CALLS_PER_ANSWER + 1)}, "257 calls at once; 256 are run"),
    ],
)
def test_anything_else_is_a_runtime_failure_that_shows_it(answer: Any, told: str) -> None:
    with pytest.raises(RuntimeFailure) as raised:
        _read(answer)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<html>Bad gateway</html>", "is not JSON: <html>Bad gateway</html>"),
        (b"", "is not JSON: an empty body"),
        (b'{"reply": NaN}', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 5000, "is not JSON"),
        (b"x" * 10_000, f"is not JSON: {'x' * 2000}…"),
    ],
)
def test_what_is_not_json_is_shown(content: bytes, told: str) -> None:
    with pytest.raises(RuntimeFailure) as raised:
        read_answer(content)
    assert told in str(raised.value) and len(str(raised.value)) < 2_100


@pytest.mark.parametrize("depth", [65, 900])
def test_what_is_nested_too_deep_is_refused(depth: int) -> None:
    for deep in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        with pytest.raises(RuntimeFailure, match="nested deeper than 64 levels"):
            read_answer(b'{"tool_calls": [{"id": "c", "name": "look", "arguments": {"a": ' + deep + b"}}]}")


@given(st.binary(max_size=40))
def test_any_bytes_are_an_answer_or_a_failure(content: bytes) -> None:
    try:
        read_answer(content)
    except RuntimeFailure as failure:
        assert str(failure)
