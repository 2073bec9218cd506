"""Proves that every event becomes one harmless line, or none."""

import pytest

from cli.event_lines import event_line, plain


def _line(event: dict) -> str:
    line = event_line({"created_at": "2026-11-29T21:08:47.123456Z", **event})
    return "" if line is None else line.plain


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "user.message", "content": [{"type": "text", "text": "Hi"}]}, "21:08:47 user    Hi"),
        ({"type": "user.message", "content": "Hi"}, "21:08:47 user    Hi"),
        ({"type": "agent.tool_use", "name": "bash", "input": {"command": "ls"}}, "21:08:47 tool    bash  $ ls"),
        (
            {
                "type": "agent.tool_use",
                "name": "edit",
                "input": {"file_path": "a", "n": 2},
                "evaluated_permission": "ask",
            },
            "21:08:47 tool    edit  file_path=a  n=2  (waits for a confirmation)",
        ),
        ({"type": "agent.tool_result", "content": []}, "21:08:47 result  (no output)"),
        (
            {"type": "agent.tool_result", "is_error": True, "content": [{"type": "text", "text": "gone"}]},
            "21:08:47 result  failed: gone",
        ),
        ({"type": "session.status_idle", "stop_reason": {"type": "end_turn"}}, "21:08:47 session idle: done"),
        ({"type": "session.error", "error": {"type": "x", "message": "y"}}, "21:08:47 error   x: y"),
        ({"type": "session.brand_new"}, "21:08:47 session brand new"),
        ({"type": "span.model_request_start"}, ""),
        ({"type": "session.thread_status_rescheduled", "agent_name": "helper"}, ""),
        ({}, "21:08:47         "),
    ],
)
def test_an_event_is_one_line(event: dict, expected: str) -> None:
    assert _line(event) == expected


def test_a_terminal_is_not_obeyed() -> None:
    assert plain("\x1b[2Jclear\r\x07 \x9b31m tab\there") == "[2Jclear 31m tab  here"


def test_lines_are_joined_and_cut() -> None:
    assert plain("a\n\nb\n") == "a ⏎ b"
    assert plain("x" * 400) == "x" * 299 + "…"


def test_markup_of_others_is_text() -> None:
    assert "[bold]x[/bold]" in _line({"type": "agent.message", "content": [{"type": "text", "text": "[bold]x[/bold]"}]})


def test_what_an_agent_says_keeps_its_lines() -> None:
    event = {"type": "agent.message", "content": [{"type": "text", "text": "a\n\x1b[1mb"}]}
    assert _line(event) == "21:08:47 agent   a\n                 [1mb"
