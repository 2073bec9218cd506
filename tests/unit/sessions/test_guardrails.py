"""Guardrails and `gateway_session` of an agent: what may be saved, how it is stored, which field is wrong otherwise."""

from typing import Any

import pytest

from services.sessions.domain.agent import AgentDocument, merge_definition, validate_definition
from services.sessions.domain.guardrails import MAX_CHARACTERS, MAX_PATTERNS, validate_guardrails
from services.sessions.domain.session_errors import InvalidRequest, UnknownField

PLAIN: dict[str, Any] = {"name": "a", "model": "m", "system": "s"}
CHECKS = {"max_characters": 10, "deny_patterns": ["(?i)x"], "endpoint": {"url": "https://g.example/check"}}


def test_what_is_stored_has_every_default() -> None:
    stored = validate_guardrails({"input": CHECKS | {"code": "no_x", "message": "No."}, "output": None})
    assert stored == {
        "input": {
            "max_characters": 10,
            "deny_patterns": [{"pattern": "(?i)x"}],
            "endpoint": {"url": "https://g.example/check", "timeout_seconds": 5, "on_failure": "block"},
            "code": "no_x",
            "message": "No.",
        }
    }
    # What was stored may be sent back as it is.
    assert validate_guardrails(stored) == stored


@pytest.mark.parametrize("value", [None, {}, {"input": None}, {"input": {}, "output": {"deny_patterns": []}}])
def test_no_checks_are_no_guardrails(value: Any) -> None:
    assert validate_guardrails(value) is None


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "guardrails"),
        ({"inputs": {}}, "guardrails.inputs"),
        ({"input": []}, "guardrails.input"),
        ({"input": {"max": 1}}, "guardrails.input.max"),
        ({"input": {"max_characters": 0}}, "guardrails.input.max_characters"),
        ({"input": {"max_characters": MAX_CHARACTERS + 1}}, "guardrails.input.max_characters"),
        ({"input": {"max_characters": True}}, "guardrails.input.max_characters"),
        ({"input": {"deny_patterns": "x"}}, "guardrails.input.deny_patterns"),
        ({"input": {"deny_patterns": ["x"] * (MAX_PATTERNS + 1)}}, "guardrails.input.deny_patterns"),
        ({"input": {"deny_patterns": ["x", "("]}}, "guardrails.input.deny_patterns.1.pattern"),
        ({"input": {"deny_patterns": ["(?=a)b"]}}, "guardrails.input.deny_patterns.0.pattern"),
        ({"input": {"deny_patterns": [r"(a)\1"]}}, "guardrails.input.deny_patterns.0.pattern"),
        ({"input": {"deny_patterns": [""]}}, "guardrails.input.deny_patterns.0.pattern"),
        ({"input": {"deny_patterns": ["x" * 1001]}}, "guardrails.input.deny_patterns.0.pattern"),
        ({"input": {"deny_patterns": [{"pattern": "x", "flags": "i"}]}}, "guardrails.input.deny_patterns.0.flags"),
        ({"input": {"deny_patterns": [{"pattern": "x", "code": "No!"}]}}, "guardrails.input.deny_patterns.0.code"),
        ({"input": CHECKS | {"code": ""}}, "guardrails.input.code"),
        ({"input": CHECKS | {"message": " "}}, "guardrails.input.message"),
        ({"input": {"code": "alone"}}, "guardrails.input"),
        ({"output": {"endpoint": {}}}, "guardrails.output.endpoint.url"),
        ({"output": {"endpoint": {"url": "ftp://x"}}}, "guardrails.output.endpoint.url"),
        ({"output": {"endpoint": {"url": "https://user:pass@x/"}}}, "guardrails.output.endpoint.url"),
        ({"output": {"endpoint": {"url": "https:///x"}}}, "guardrails.output.endpoint.url"),
        ({"output": {"endpoint": {"url": "https://x", "timeout_seconds": 31}}}, "endpoint.timeout_seconds"),
        ({"output": {"endpoint": {"url": "https://x", "timeout_seconds": 0}}}, "endpoint.timeout_seconds"),
        ({"output": {"endpoint": {"url": "https://x", "timeout_seconds": True}}}, "endpoint.timeout_seconds"),
        ({"output": {"endpoint": {"url": "https://x", "on_failure": "log"}}}, "endpoint.on_failure"),
        ({"output": {"endpoint": {"url": "https://x", "headers": {}}}}, "endpoint.headers"),
    ],
)
def test_what_means_nothing_is_refused_by_its_field(value: Any, field: str) -> None:
    with pytest.raises((InvalidRequest, UnknownField)) as refused:
        validate_guardrails(value)
    assert field in str(refused.value.message) and field in str(refused.value.field)


def test_an_agent_keeps_replaces_and_clears_them() -> None:
    saved = validate_definition(PLAIN | {"guardrails": {"input": CHECKS}}, published=False)
    read = AgentDocument.from_json(saved.document_json(), saved.model_json())
    assert read.same_as(saved) and read.guardrails == saved.guardrails
    kept = merge_definition(read, {"name": "b"}, published=False)
    assert kept.guardrails == saved.guardrails
    replaced = merge_definition(kept, {"guardrails": {"output": {"max_characters": 5}}}, published=False)
    assert replaced.guardrails == {"output": {"max_characters": 5}}
    cleared = merge_definition(replaced, {"guardrails": None, "gateway_session": None}, published=False)
    assert cleared.guardrails is None and "guardrails" not in cleared.document_json()


def test_an_agent_without_them_is_stored_as_ever() -> None:
    for given in ({}, {"guardrails": None}, {"guardrails": {}, "gateway_session": {}}):
        stored = validate_definition(PLAIN | given, published=False).document_json()
        assert "guardrails" not in stored and "gateway_session" not in stored
