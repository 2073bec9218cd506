"""An event of a session as a line for people: when, who, what."""

import re
from collections.abc import Callable
from typing import Any

import orjson
from rich.text import Text

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LIMIT = 300
_LONG_LIMIT = 4000
_STYLES = {"user": "cyan", "agent": "green", "tool": "yellow", "result": "yellow", "session": "blue", "error": "red"}
# Written for programs that measure or draw; between the lines of people they are noise.
_SILENT = {
    "session.thread_status_running",
    "session.thread_status_idle",
    "session.thread_status_rescheduled",
    "span.model_request_start",
    "span.model_request_end",
    "session.usage",
}


def event_line(event: dict[str, Any]) -> Text | None:
    """None for an event that tells a person nothing."""
    kind = str(event.get("type", ""))
    if kind in _SILENT:
        return None
    who, what = _TOLD.get(kind, _told_by_name)(event)
    clock = str(event.get("created_at", ""))[11:19]
    line = Text()
    line.append(f"{clock:8} ", style="dim")
    line.append(f"{who:<8}", style=_STYLES.get(who, ""))
    line.append(what)
    return line


def _indented(text: str) -> str:
    """A text of several lines, each under the first one."""
    return f"\n{'':17}".join(plain(line) for line in text.strip()[:_LONG_LIMIT].split("\n"))


def plain(text: str, limit: int = _LIMIT) -> str:
    """On one line, without anything that a terminal would obey, cut to a length."""
    text = " ⏎ ".join(filter(None, (line.rstrip() for line in text.strip().split("\n"))))
    text = _CONTROLS.sub("", text.replace("\t", "  "))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def text_of(event: dict[str, Any]) -> str:
    """The text blocks of an event's content, joined."""
    blocks = event.get("content") or []
    if isinstance(blocks, str):
        return blocks
    return "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")


def _said(who: str) -> Callable[[dict[str, Any]], tuple[str, str]]:
    return lambda event: (who, plain(text_of(event)))


def _tool_use(event: dict[str, Any]) -> tuple[str, str]:
    given = event.get("input") or {}
    if list(given) == ["command"]:
        shown = f"$ {given['command']}"
    else:
        shown = "  ".join(f"{name}={_value(value)}" for name, value in given.items())
    waiting = "  (waits for a confirmation)" if event.get("evaluated_permission") == "ask" else ""
    return "tool", f"{event.get('name', '?')}  {plain(shown)}{waiting}"


def _value(value: Any) -> str:
    return plain(value if isinstance(value, str) else orjson.dumps(value).decode(), 120)


def _tool_result(event: dict[str, Any]) -> tuple[str, str]:
    shown = plain(text_of(event)) or "(no output)"
    return "result", f"failed: {shown}" if event.get("is_error") else shown


def _idle(event: dict[str, Any]) -> tuple[str, str]:
    reason = (event.get("stop_reason") or {}).get("type", "")
    # The published reason of every turn that failed, tried again or not; the error before it says which.
    told = {"end_turn": "done", "requires_action": "waits for an answer", "retries_exhausted": "the turn failed"}
    return "session", f"idle: {told.get(reason, reason or 'no reason given')}"


def _error(event: dict[str, Any]) -> tuple[str, str]:
    error = event.get("error") or {}
    return "error", plain(f"{error.get('type', 'error')}: {error.get('message', '')}")


def _told_by_name(event: dict[str, Any]) -> tuple[str, str]:
    who, _, what = str(event.get("type", "")).partition(".")
    return who, plain(" ".join(filter(None, (what.replace("_", " "), text_of(event)))))


_TOLD: dict[str, Callable[[dict[str, Any]], tuple[str, str]]] = {
    "user.message": _said("user"),
    "system.message": _said("system"),
    # What the agent says is the result of it all, so it is shown whole.
    "agent.message": lambda event: ("agent", _indented(text_of(event))),
    "agent.tool_use": _tool_use,
    "agent.custom_tool_use": _tool_use,
    "agent.tool_result": _tool_result,
    "session.error": _error,
    "session.status_running": lambda _: ("session", "running"),
    "session.status_idle": _idle,
    "session.status_rescheduled": lambda _: ("session", "the model can't be reached now; it is asked again soon"),
}
