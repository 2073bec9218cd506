"""NUL characters in events: what a tool printed is made fit to be stored, anything else is refused by its place."""

from typing import Any

import pytest

from services.gateway.errors import InvalidRequest
from services.gateway.operation import body
from services.gateway.routes.events import without_nul


def result(text: str) -> dict[str, Any]:
    return {"type": "user.tool_result", "tool_use_id": "sevt_1", "content": [{"type": "text", "text": text}]}


def message(text: str) -> dict[str, Any]:
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def test_results_are_stored_with_a_mark_in_its_place() -> None:
    assert without_nul([result("a\0b"), message("c")]) == [result("a\ufffdb"), message("c")]


def test_another_event_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidRequest) as refused:
        without_nul([result("a\0b"), message("c"), message("d\0")])
    assert refused.value.field == "events.2.content.0.text"


def test_a_text_that_spells_one_out_holds_none() -> None:
    assert without_nul([message("\\u0000"), "\\u0000"]) == [message("\\u0000"), "\\u0000"]


def test_many_events_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, seen = body.parse, list[int]()
    monkeypatch.setattr(body, "parse", lambda raw: (seen.append(len(raw)), parse(raw))[1])
    events = [message("\\u0000") for _ in range(100)]
    assert without_nul(events) == events and len(seen) == 1
