"""The model of an agent: both forms, the config beside it, each refusal under its own reason."""

from __future__ import annotations

from typing import Any

import pytest

from kit.errors import DomainError
from services.sessions.domain.model import merge_model, validate_model

LOW = {"type": "low"}
STORED = {"id": "old", "speed": "fast", "effort": {"type": "high"}}


@pytest.mark.parametrize(
    ("value", "config", "stored"),
    [
        ("m", None, {"id": "m", "speed": "standard"}),
        ({"id": "m"}, None, {"id": "m", "speed": "standard"}),
        ({"id": "m", "speed": None, "effort": None, "inference_geo": None}, None, {"id": "m", "speed": "standard"}),
        ({"id": "m", "speed": "extended"}, None, {"id": "m", "speed": "extended"}),
        ({"effort": "max", "id": "m"}, None, {"id": "m", "speed": "standard", "effort": {"type": "max"}}),
        ({"id": "m", "effort": {"type": "low"}}, None, {"id": "m", "speed": "standard", "effort": {"type": "low"}}),
        ("m", {"speed": "fast"}, {"id": "m", "speed": "fast"}),
        ("m", {}, {"id": "m", "speed": "standard"}),
        ("m", {"id": "m", "effort": "xhigh"}, {"id": "m", "speed": "standard", "effort": {"type": "xhigh"}}),
        ({"id": "m", "speed": "fast"}, {"effort": "low"}, {"id": "m", "speed": "fast", "effort": {"type": "low"}}),
        (
            {"id": "m", "effort": "low"},
            {"effort": {"type": "low"}},
            {"id": "m", "speed": "standard", "effort": {"type": "low"}},
        ),
    ],
)
def test_each_way_to_say_it_is_stored_as_one_object(value: Any, config: Any, stored: dict[str, Any]) -> None:
    model = validate_model(value, config)
    assert model == stored
    assert list(model) == [key for key in ("id", "speed", "effort") if key in stored]
    assert validate_model(model) == model


@pytest.mark.parametrize(
    ("value", "config", "reason", "field"),
    [
        ("", None, "INVALID_MODEL", "model"),
        ("  ", None, "INVALID_MODEL", "model"),
        (4, None, "INVALID_MODEL", "model"),
        (["m"], None, "INVALID_MODEL", "model"),
        ("m" * 257, None, "INVALID_MODEL", "model"),
        ("m\x00", None, "INVALID_MODEL", "model"),
        ({}, None, "INVALID_MODEL", "model.id"),
        ({"id": None}, None, "INVALID_MODEL", "model.id"),
        ({"id": ""}, None, "INVALID_MODEL", "model.id"),
        ({"speed": "fast"}, None, "INVALID_MODEL", "model.id"),
        ({"id": "m", "speed": "turbo"}, None, "INVALID_MODEL_SPEED", "model.speed"),
        ({"id": "m", "speed": 1}, None, "INVALID_MODEL_SPEED", "model.speed"),
        ({"id": "m", "speed": ["fast"]}, None, "INVALID_MODEL_SPEED", "model.speed"),
        ({"id": "m", "effort": "huge"}, None, "INVALID_MODEL_EFFORT", "model.effort"),
        ({"id": "m", "effort": {}}, None, "INVALID_MODEL_EFFORT", "model.effort"),
        ({"id": "m", "effort": {"type": "low", "x": 1}}, None, "INVALID_MODEL_EFFORT", "model.effort"),
        ({"id": "m", "effort": {"type": ["low"]}}, None, "INVALID_MODEL_EFFORT", "model.effort"),
        ({"id": "m", "inference_geo": "us"}, None, "UNSUPPORTED_MODEL_FIELD", "model.inference_geo"),
        ({"id": "m", "temperature": 1}, None, "UNSUPPORTED_MODEL_FIELD", "model.temperature"),
        ("m", "fast", "INVALID_MODEL", "model_config"),
        ("m", {"speed": "turbo"}, "INVALID_MODEL_SPEED", "model_config.speed"),
        ("m", {"x": 1}, "UNSUPPORTED_MODEL_FIELD", "model_config.x"),
        ("m", {"id": "other"}, "INVALID_MODEL", "model_config"),
        ({"id": "m", "speed": "fast"}, {"speed": "standard"}, "INVALID_MODEL", "model_config"),
    ],
)
def test_each_refusal_has_its_reason_and_names_the_field(value: Any, config: Any, reason: str, field: str) -> None:
    with pytest.raises(DomainError) as refusal:
        validate_model(value, config)
    assert (refusal.value.reason, refusal.value.field) == (reason, field)


def test_refusals_list_what_is_accepted() -> None:
    for value, accepted in (
        ({"id": "m", "speed": "x"}, "standard, fast, extended"),
        ({"id": "m", "effort": "x"}, "low, medium, high, xhigh, max"),
        ({"id": "m", "x": "x"}, "id, speed, effort"),
    ):
        with pytest.raises(DomainError, match=accepted):
            validate_model(value)


@pytest.mark.parametrize(
    ("patch", "merged"),
    [
        ({}, STORED),
        ({"model": "new"}, {"id": "new", "speed": "standard"}),
        ({"model": {"id": "new"}}, {"id": "new", "speed": "standard"}),
        (
            {"model": "new", "model_config": {"effort": "low"}},
            {"id": "new", "speed": "standard", "effort": {"type": "low"}},
        ),
        ({"model": "old"}, {"id": "old", "speed": "standard"}),
        ({"model": {"id": "old", "speed": "standard"}}, {"id": "old", "speed": "standard", "effort": {"type": "high"}}),
        ({"model": {"id": "old", "effort": None}}, {"id": "old", "speed": "standard"}),
        ({"model": STORED}, STORED),
        ({"model_config": {"speed": "fast"}}, {"id": "old", "speed": "fast"}),
        ({"model_config": None}, {"id": "old", "speed": "standard"}),
        ({"model": "old", "model_config": STORED}, STORED),
    ],
)
def test_replacing_a_model_drops_the_stale_config(patch: dict[str, Any], merged: dict[str, Any]) -> None:
    assert merge_model(STORED, patch) == merged


@pytest.mark.parametrize("cleared", [None, ""])
def test_clearing_the_model_gets_its_own_message(cleared: Any) -> None:
    with pytest.raises(DomainError, match="model cannot be cleared") as refusal:
        merge_model(STORED, {"model": cleared})
    assert refusal.value.reason == "INVALID_MODEL"


def test_a_config_for_another_model_than_the_stored_one_is_refused() -> None:
    with pytest.raises(DomainError) as refusal:
        merge_model(STORED, {"model_config": {"id": "new", "speed": "fast"}})
    assert refusal.value.field == "model_config"
